"""The in-sync set, changed on a leader's word (AlterPartition, KIP-497).

The leader knows who has caught up, the controller who is alive: a leader proposes, the controller accepts or refuses as
a whole. Refused is who is behind: a leader that was deposed (leader epoch), that has not seen the latest change of
its own partition (partition epoch), that has itself registered anew (broker epoch); and a set that names a replica
whose broker is gone, is about to stop, or has registered again since it was seen to catch up (KIP-903).

A leader may name a set without itself: its log is damaged, and those that it names have all that is missing there. One
of them leads then, and the old leader is neither in sync nor eligible until it has copied its log anew. A follower may
take itself out, and nobody else, for the same reason. Its leader leads on under a new leader epoch: so what the
follower fetches once it has let go of the damaged part is never taken for what it fetched before.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.cluster.changes import partition_changed
from ottla.cluster.elections import Census, Terms, counted, due, reassigned, settled, with_eligible
from ottla.cluster.image import Draft, Image
from ottla.cluster.model import Broker, Partition
from ottla.cluster.requests import AlterPartitionResult, Decision, InSyncProposal, Rules
from ottla.errors import ErrorCode, Refused


def alter_partitions(
    image: Image, broker_id: int, broker_epoch: int, proposals: Sequence[InSyncProposal], rules: Rules
) -> Decision[AlterPartitionResult]:
    """Change in-sync sets, each for itself. Refused as a whole if the broker is not the one that is registered."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.epoch != broker_epoch:
        raise Refused(ErrorCode.stale_broker_epoch, f"Broker {broker_id} is not registered under {broker_epoch}.")
    everybody = Census(image.brokers)
    draft = Draft(image)
    decision: Decision[AlterPartitionResult] = Decision([], [])
    for proposal in proposals:
        try:
            old = _found(draft, proposal)
            census = everybody.of(proposal.topic_id, proposal.partition)
            terms = Terms.of(draft.topics.map[draft.names.map[proposal.topic_id]], rules)
            _check(old, proposal, broker, census)
            if settled(old, census, terms) is not old:
                raise Refused(ErrorCode.invalid_update_version)  # it is about to change anyway
            if broker_id == old.leader:
                new = _altered(old, proposal, census, terms)
            else:
                new = _without(old, broker_id, census, terms)
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


def _found(draft: Draft, proposal: InSyncProposal) -> Partition:
    if proposal.topic_id not in draft.names.map:
        raise Refused(ErrorCode.unknown_topic_id)
    partitions = draft.topics.map[draft.names.map[proposal.topic_id]].partitions
    if not 0 <= proposal.partition < len(partitions):
        raise Refused(ErrorCode.unknown_topic_or_partition)
    return draft.partition(proposal.topic_id, proposal.partition)


def _check(partition: Partition, proposal: InSyncProposal, broker: Broker, census: Census) -> None:
    if proposal.leader_epoch > partition.leader_epoch or proposal.partition_epoch > partition.partition_epoch:
        raise Refused(ErrorCode.not_controller)  # somebody knows more than we do
    if proposal.leader_epoch < partition.leader_epoch:
        raise Refused(ErrorCode.fenced_leader_epoch)
    if broker.id not in partition.replicas:
        raise Refused(ErrorCode.invalid_request)
    if broker.id == partition.leader and broker.epoch != partition.broker_epoch:
        raise Refused(ErrorCode.stale_broker_epoch)  # registered again: to be elected anew first
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
        # A leader that drains and leads on, because nobody else can, is in its own in-sync set all the same.
        known = broker.epoch if replica == broker.id else census.staying.get(replica)
        if known != epoch:
            raise Refused(ErrorCode.ineligible_replica)


def _altered(old: Partition, proposal: InSyncProposal, census: Census, terms: Terms) -> Partition:
    state = old._replace(
        in_sync=tuple(replica for replica, _ in proposal.in_sync),
        in_sync_epochs=tuple(epoch for _, epoch in proposal.in_sync),
    )
    held = [*zip(old.in_sync, old.in_sync_epochs, strict=True)]
    if old.leader not in state.in_sync:  # it resigns, for its log is damaged: what it held does not count
        return counted(old, due(state._replace(eligible=(), eligible_epochs=()), census, terms))
    enough = min(terms.min_in_sync, len(old.replicas))
    if len(old.in_sync) < enough:
        held += zip(old.eligible, old.eligible_epochs, strict=True)
    intact = {replica: epoch for replica, epoch in held if census.intact(replica, epoch)}
    return counted(old, reassigned(with_eligible(state, intact, enough, census), census, terms))


def _without(old: Partition, broker_id: int, census: Census, terms: Terms) -> Partition:
    """A replica that does not lead is damaged, and leaves both sets."""
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
    new = counted(old, due(state, census, terms))
    return new._replace(leader_epoch=old.leader_epoch + 1)
