"""Leader election: what the state of a partition should be, given the live brokers.

One function computes it (`settled`); every difference from it is pending work. So a broker that registers, a broker
that is lost or drains, a reassignment whose last replica has caught up, and a controller that takes over in the middle
of something are one case, and nothing about them is remembered anywhere but in the image.

What is protected: a record that was acknowledged with acks=all is on every in-sync replica, at least
min.insync.replicas of them. A leader raises its high watermark only while that many are in sync (the strict rule of
KIP-966), each counted under the broker epoch beside it in the set. So, below that number, a replica that leaves the ISR
still has every acknowledged record: it becomes eligible (ELR). A replica has what it had as long as its broker has
stopped only cleanly since (`BrokerRegistration.clean_since`); one that came back otherwise may have lost the unsynced
end of its log, and leaves both sets (KIP-903, KIP-966). So does one whose log of this partition was found damaged
(`BrokerRegistration.damaged`), until it is seen in sync under its new registration.

    no leader was ever elected         -> the first live replica leads, all live replicas are in sync
    leader alive since its election    -> it stays, unless it drains and another in-sync replica can lead
    leader gone, or registered again   -> the first of these that is alive, leader_epoch + 1:
                                          an in-sync replica, another one before the same one again;
                                          an eligible one;
                                          any replica, if the topic has unclean.leader.election.enable;
                                          the last leader, if both sets are empty; one that may have lost
                                          something asks the others first (`replication.doubt`)
    none of them alive                 -> no leader, leader_epoch + 1, both sets stay as they are

While there is a leader, replicas that are gone or drain leave the ISR, except the leader itself. While the ISR has
fewer than min.insync.replicas, the replicas that left it are eligible; with enough of them again, none is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from ottla.cluster.changes import (
    BrokerConfigChanged,
    Change,
    PartitionChanged,
    PartitionsRemoved,
    TopicRemoved,
    partition_changed,
)
from ottla.cluster.image import Image
from ottla.cluster.layout import id_text
from ottla.cluster.model import NO_BROKER, NO_EPOCH, BrokerRegistration, PartitionState, TopicImage
from ottla.cluster.persist import REMOVED_PARTITIONS_MAX
from ottla.cluster.requests import Rules

MIN_IN_SYNC: Final = "min.insync.replicas"


class Terms(NamedTuple):
    """The settings of a topic that elections depend on."""

    min_in_sync: int = 1
    unclean: bool = False

    @staticmethod
    def of(topic: TopicImage, rules: Rules) -> Terms:
        return Terms(rules.min_in_sync(topic.configs), rules.unclean(topic.configs))


class LiveBrokers:
    """The live brokers, as elections see them."""

    __slots__ = ("_damaged", "_without", "brokers", "staying")

    def __init__(self, brokers: Mapping[int, BrokerRegistration], without: frozenset[int] = frozenset()) -> None:
        """`without`: brokers whose log of the partition in question is damaged."""
        self.brokers: Final = brokers
        self._without = without
        self._damaged: dict[tuple[str, int], set[int]] = {}
        for broker in brokers.values():
            for damaged in broker.damaged:
                self._damaged.setdefault(damaged, set()).add(broker.id)
        self.staying: Final = {broker.id: broker.epoch for broker in brokers.values() if not broker.draining}
        """The broker epochs of those that do not drain."""

    def of(self, topic_id: bytes, index: int) -> LiveBrokers:
        """As the elections of this partition see them."""
        without = self._damaged.get((id_text(topic_id), index)) if self._damaged else None
        return LiveBrokers(self.brokers, frozenset(without)) if without else self

    def intact(self, replica: int, epoch: int) -> bool:
        """Whether a replica that was in sync under this broker epoch has, or may come back with, all that it had."""
        broker = self.brokers.get(replica)
        if broker is None:
            return True
        return (broker.epoch if replica in self._without else broker.clean_since) <= epoch

    def epoch(self, replica: int, known: int) -> int:
        """Its broker epoch now; the last known one if it is gone."""
        broker = self.brokers.get(replica)
        return known if broker is None else broker.epoch


def settled(partition: PartitionState, live: LiveBrokers, terms: Terms) -> PartitionState:
    """The partition as it should be; the same object when there is nothing to do."""
    staying = live.staying
    if (
        not partition.eligible
        and not partition.adding
        and not partition.removing
        and staying.get(partition.leader) == partition.broker_epoch
        and tuple(map(staying.get, partition.in_sync)) == partition.in_sync_epochs
    ):
        return partition
    return counted(partition, due(partition, live, terms))


def due(partition: PartitionState, live: LiveBrokers, terms: Terms) -> PartitionState:
    """As it should be, its epochs not yet incremented."""
    if not partition.initialized:
        return _first_state(partition, live)
    return reassigned(_Election(partition, live, terms).state(), live, terms)


def counted(old: PartitionState, new: PartitionState) -> PartitionState:
    """`new` with its epochs incremented according to what changed since `old`; the same `old` if nothing did.

    A newly elected leader has a new leader epoch. So has a leader when a replica is removed from the assignment: what
    that replica still fetches is then recognised.
    """
    if new == old:
        return old
    elected = (new.leader, new.broker_epoch) != (old.leader, old.broker_epoch)
    dropped = not set(old.replicas) <= set(new.replicas)
    return new._replace(
        leader_epoch=old.leader_epoch + (1 if elected or dropped else 0),
        partition_epoch=old.partition_epoch + 1,
        last_leader=old.last_leader if new.leader == NO_BROKER else new.leader,
    )


def _first_state(partition: PartitionState, live: LiveBrokers) -> PartitionState:
    alive = [replica for replica in partition.replicas if replica in live.brokers]
    in_sync = [replica for replica in alive if replica in live.staying] or alive
    if not in_sync:
        return partition
    return led(partition, in_sync[0], dict.fromkeys(in_sync, NO_EPOCH), live)


def led(partition: PartitionState, leader: int, in_sync: Mapping[int, int], live: LiveBrokers) -> PartitionState:
    """Led by this replica, with this ISR and an empty ELR."""
    return partition._replace(
        leader=leader,
        broker_epoch=live.epoch(leader, NO_EPOCH) if leader != NO_BROKER else NO_EPOCH,
        in_sync=tuple(in_sync),
        in_sync_epochs=tuple(live.epoch(replica, known) for replica, known in in_sync.items()),
        eligible=(),
        eligible_epochs=(),
    )


class _Election:
    """The election of one partition. `in_sync` and `eligible` are the replicas that still count, with their broker
    epochs."""

    def __init__(self, partition: PartitionState, live: LiveBrokers, terms: Terms) -> None:
        self.partition = partition
        self.live = live
        self.terms = terms
        self.enough = min(terms.min_in_sync, len(partition.replicas))
        self.in_sync = self._intact(partition.in_sync, partition.in_sync_epochs)
        self.eligible: dict[int, int] = {}
        if len(partition.in_sync) < self.enough:  # otherwise more may have been acknowledged since they left
            self.eligible = self._intact(partition.eligible, partition.eligible_epochs)

    def _intact(self, replicas: tuple[int, ...], epochs: tuple[int, ...]) -> dict[int, int]:
        pairs = zip(replicas, epochs, strict=True)
        return {replica: epoch for replica, epoch in pairs if self.live.intact(replica, epoch)}

    def state(self) -> PartitionState:
        leader = self._leader()
        if leader == NO_BROKER:
            in_sync = self.in_sync
        elif leader in self.in_sync:
            staying = self.live.staying
            in_sync = {r: e for r, e in self.in_sync.items() if r in staying or r == leader}
        else:
            in_sync = {leader: NO_EPOCH}
        state = led(self.partition, leader, in_sync, self.live)
        return with_eligible(state, {**self.in_sync, **self.eligible}, self.enough, self.live)

    def _leader(self) -> int:
        partition = self.partition
        candidates = self._alive(self.in_sync)
        staying = [replica for replica in candidates if replica in self.live.staying]
        if partition.leader in self.in_sync and self._goes_on(partition.leader, bool(staying)):
            return partition.leader
        for able in (staying or candidates, self._alive(self.eligible)):
            if able:
                return next((replica for replica in able if replica != partition.leader), able[0])
        if self.terms.unclean and (replica := unclean_choice(partition, self.live)) != NO_BROKER:
            return replica
        last = self._alive((partition.last_leader,))
        return last[0] if last and not self.in_sync and not self.eligible else NO_BROKER

    def _goes_on(self, leader: int, others: bool) -> bool:
        broker = self.live.brokers.get(leader)
        if broker is None or broker.epoch != self.partition.broker_epoch:
            return False
        return not broker.draining or not others

    def _alive(self, replicas: Iterable[int]) -> list[int]:
        """The live ones, in the order of the partition's replicas."""
        return [r for r in self.partition.replicas if r in replicas and r in self.live.brokers]


def with_eligible(state: PartitionState, held: Mapping[int, int], enough: int, live: LiveBrokers) -> PartitionState:
    """The state with the replicas of `held` that are not in sync as ELR, while fewer than `enough` are in sync."""
    if len(state.in_sync) >= enough:
        return state._replace(eligible=(), eligible_epochs=())
    eligible = {replica: epoch for replica, epoch in held.items() if replica not in state.in_sync}
    return state._replace(
        eligible=tuple(eligible),
        eligible_epochs=tuple(live.epoch(replica, known) for replica, known in eligible.items()),
    )


def unclean_choice(partition: PartitionState, live: LiveBrokers) -> int:
    """Unclean election: the live replica that was closest to the last leader. Acknowledged records may be lost."""
    candidates = (partition.last_leader, *partition.in_sync, *partition.eligible, *partition.replicas)
    alive = [replica for replica in candidates if replica in live.brokers and replica in partition.replicas]
    return next((replica for replica in alive if replica in live.staying), alive[0] if alive else NO_BROKER)


def reassigned(state: PartitionState, live: LiveBrokers, terms: Terms) -> PartitionState:
    """The state after its reassignment, if that can be completed now: all added replicas are in sync, and enough of
    those that stay."""
    if not state.adding and not state.removing:
        return state
    replicas = tuple(replica for replica in state.replicas if replica not in state.removing)
    in_sync = {r: e for r, e in zip(state.in_sync, state.in_sync_epochs, strict=True) if r in replicas}
    enough = min(terms.min_in_sync, len(replicas))
    if state.leader == NO_BROKER or not in_sync.keys() >= set(state.adding) or len(in_sync) < max(1, enough):
        return state
    leader = state.leader
    if leader not in in_sync:
        leader = next((r for r in replicas if r in in_sync and r in live.staying), NO_BROKER)
        if leader == NO_BROKER:
            return state
    moved = state._replace(replicas=replicas, adding=(), removing=())
    return led(moved, leader, in_sync, live)


class PendingWork:
    """All that a controller has to do now, whichever controller began it: write down the cluster's min.insync.replicas,
    elect leaders, bring ISRs up to date, remove deleted topics. Partitions that cannot be written to come first.

    Remembers which topics needed nothing, and under which brokers and rules, so that asking again costs little.
    """

    def __init__(self) -> None:
        self._done: Image | None = None
        self._brokers: Mapping[int, BrokerRegistration] | None = None
        self._rules: Rules | None = None
        self._settled: dict[str, TopicImage] = {}

    def unfinished(self, image: Image, rules: Rules) -> Iterator[Change]:
        known = self._settled
        if rules is not self._rules or image.brokers is not self._brokers:
            known = {}
        elif image is self._done:
            return
        settled_topics: dict[str, TopicImage] = {}
        live = LiveBrokers(image.brokers)
        later: list[Change] = []
        idle = True
        for record in missing_min_in_sync(image, rules.min_in_sync_started):
            idle = False
            yield record
        for name, topic in image.topics.items():
            if known.get(name) is topic:
                settled_topics[name] = topic
                continue
            work = False
            for change in elections(topic, live, rules):
                work = True
                if change.leader == topic.partitions[change.partition].leader:
                    later.append(change)
                else:
                    yield change
            if not work:
                settled_topics[name] = topic
            idle = idle and not work
        yield from later
        for topic in image.deleting.values():
            idle = False
            yield from removal(topic)
        self._brokers, self._rules, self._settled = image.brokers, rules, settled_topics
        self._done = image if idle else None


def missing_min_in_sync(image: Image, started_with: int | None) -> Iterator[BrokerConfigChanged]:
    """The cluster's own min.insync.replicas (KIP-966), if it is not stored yet; `started_with`: the value to store."""
    if started_with is None:
        return
    everywhere = image.broker_configs.get(None, {})
    if MIN_IN_SYNC not in everywhere:
        yield BrokerConfigChanged(None, {**everywhere, MIN_IN_SYNC: str(started_with)})
    for broker, configs in image.broker_configs.items():
        if broker is not None and MIN_IN_SYNC in configs:
            yield BrokerConfigChanged(broker, {name: text for name, text in configs.items() if name != MIN_IN_SYNC})


def unfinished(image: Image, rules: Rules) -> Iterator[Change]:
    return PendingWork().unfinished(image, rules)


def elections(topic: TopicImage, live: LiveBrokers, rules: Rules, first: int = 0) -> Iterator[PartitionChanged]:
    terms = Terms.of(topic, rules)
    for index in range(first, len(topic.partitions)):
        partition = topic.partitions[index]
        if (new := settled(partition, live.of(topic.id, index), terms)) is not partition:
            yield partition_changed(topic.id, index, new, partition)


def removal(topic: TopicImage) -> Iterator[Change]:
    """Remove a deleted topic from the store, its partitions first."""
    for first in range(0, len(topic.partitions), REMOVED_PARTITIONS_MAX):
        stop = min(first + REMOVED_PARTITIONS_MAX, len(topic.partitions))
        if any(partition.initialized for partition in topic.partitions[first:stop]):
            yield PartitionsRemoved(topic.id, first, stop)
    yield TopicRemoved(topic.id)
