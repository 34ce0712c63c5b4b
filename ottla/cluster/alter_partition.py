"""AlterPartition (KIP-497): the controller changes the ISR of a partition as its leader proposes.

Who speaks: the leader knows which followers have caught up, the controller which brokers are alive. The leader
proposes, the controller accepts or refuses as a whole. It refuses a leader that was replaced (leader epoch), that has
not seen the latest change of its partition (partition epoch), or that has registered again (broker epoch); and an ISR
with a replica whose broker is gone, drains, or has registered again since it was seen to catch up (KIP-903).

A leader may propose an ISR without itself: its log is damaged, and the replicas that it names have all that is missing
there. One of them is elected, and the old leader is neither in sync nor eligible until it has copied its log again. A
follower may remove itself only, for the same reason. Its leader continues under a new leader epoch: so fetches of the
follower after dropping the damaged part are never confused with its fetches before.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.cluster.changes import partition_changed
from ottla.cluster.elections import LiveBrokers, Terms, counted, due, reassigned, settled, with_eligible
from ottla.cluster.image import Draft, Image
from ottla.cluster.model import BrokerRegistration, PartitionState
from ottla.cluster.requests import AlterPartitionResult, ControllerDecision, InSyncProposal, Rules
from ottla.errors import ErrorCode, Refused


def alter_partitions(
    image: Image, broker_id: int, broker_epoch: int, proposals: Sequence[InSyncProposal], rules: Rules
) -> ControllerDecision[AlterPartitionResult]:
    """Change ISRs, each independently. Refused as a whole if the broker has registered again."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.epoch != broker_epoch:
        raise Refused(ErrorCode.stale_broker_epoch, f"Broker {broker_id} is not registered under {broker_epoch}.")
    all_live = LiveBrokers(image.brokers)
    draft = Draft(image)
    decision: ControllerDecision[AlterPartitionResult] = ControllerDecision([], [])
    for proposal in proposals:
        try:
            old = _found(draft, proposal)
            live = all_live.of(proposal.topic_id, proposal.partition)
            terms = Terms.of(draft.topics.map[draft.names.map[proposal.topic_id]], rules)
            _check(old, proposal, broker, live)
            if settled(old, live, terms) is not old:
                raise Refused(ErrorCode.invalid_update_version)  # it is about to change anyway
            if broker_id == old.leader:
                new = _altered(old, proposal, live, terms)
            else:
                new = _without(old, broker_id, live, terms)
        except Refused as refused:
            decision.results.append(AlterPartitionResult(proposal.topic_id, proposal.partition, refused.code))
            continue
        if new is not old:
            change = partition_changed(proposal.topic_id, proposal.partition, new, old)
            draft.apply(change)
            decision.changes.append(change)
        resigned = old.leader == broker_id != new.leader
        code = ErrorCode.new_leader_elected if resigned else ErrorCode.none
        decision.results.append(AlterPartitionResult(proposal.topic_id, proposal.partition, code, new))
    return decision


def _found(draft: Draft, proposal: InSyncProposal) -> PartitionState:
    if proposal.topic_id not in draft.names.map:
        raise Refused(ErrorCode.unknown_topic_id)
    partitions = draft.topics.map[draft.names.map[proposal.topic_id]].partitions
    if not 0 <= proposal.partition < len(partitions):
        raise Refused(ErrorCode.unknown_topic_or_partition)
    return draft.partition(proposal.topic_id, proposal.partition)


def _check(partition: PartitionState, proposal: InSyncProposal, broker: BrokerRegistration, live: LiveBrokers) -> None:
    if proposal.leader_epoch > partition.leader_epoch or proposal.partition_epoch > partition.partition_epoch:
        raise Refused(ErrorCode.not_controller)  # the leader has seen changes that this controller has not
    if proposal.leader_epoch < partition.leader_epoch:
        raise Refused(ErrorCode.fenced_leader_epoch)
    if broker.id not in partition.replicas:
        raise Refused(ErrorCode.invalid_request)
    if broker.id == partition.leader and broker.epoch != partition.broker_epoch:
        raise Refused(ErrorCode.stale_broker_epoch)  # registered again: has to be elected again first
    if proposal.partition_epoch < partition.partition_epoch:
        raise Refused(ErrorCode.invalid_update_version)
    replicas = [replica for replica, _ in proposal.in_sync]
    if broker.id != partition.leader:
        if replicas != [replica for replica in partition.in_sync if replica != broker.id]:
            raise Refused(ErrorCode.invalid_request)  # only itself
        return
    if len(set(replicas)) != len(replicas) or not set(replicas) <= set(partition.replicas) or not replicas:
        raise Refused(ErrorCode.invalid_request)
    for replica, epoch in proposal.in_sync:
        # A draining leader that still leads, because no other replica can, stays in its own ISR.
        known = broker.epoch if replica == broker.id else live.staying.get(replica)
        if known != epoch:
            raise Refused(ErrorCode.ineligible_replica)


def _altered(old: PartitionState, proposal: InSyncProposal, live: LiveBrokers, terms: Terms) -> PartitionState:
    state = old._replace(
        in_sync=tuple(replica for replica, _ in proposal.in_sync),
        in_sync_epochs=tuple(epoch for _, epoch in proposal.in_sync),
    )
    held = [*zip(old.in_sync, old.in_sync_epochs, strict=True)]
    if old.leader not in state.in_sync:  # it resigns because its log is damaged: what it held does not count
        return counted(old, due(state._replace(eligible=(), eligible_epochs=()), live, terms))
    enough = min(terms.min_in_sync, len(old.replicas))
    if len(old.in_sync) < enough:
        held += zip(old.eligible, old.eligible_epochs, strict=True)
    intact = {replica: epoch for replica, epoch in held if live.intact(replica, epoch)}
    return counted(old, reassigned(with_eligible(state, intact, enough, live), live, terms))


def _without(old: PartitionState, broker_id: int, live: LiveBrokers, terms: Terms) -> PartitionState:
    """A follower whose log is damaged leaves ISR and ELR."""
    in_sync = {r: e for r, e in zip(old.in_sync, old.in_sync_epochs, strict=True) if r != broker_id}
    eligible = {r: e for r, e in zip(old.eligible, old.eligible_epochs, strict=True) if r != broker_id}
    if len(in_sync) == len(old.in_sync) and len(eligible) == len(old.eligible):
        return old
    state = old._replace(
        in_sync=tuple(in_sync),
        in_sync_epochs=tuple(in_sync.values()),
        eligible=tuple(eligible),
        eligible_epochs=tuple(eligible.values()),
    )
    new = counted(old, due(state, live, terms))
    return new._replace(leader_epoch=old.leader_epoch + 1)
