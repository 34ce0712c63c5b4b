"""What the state of a partition should be, given who is alive.

One function says it; whatever differs from it is work to do. So a broker that registers, a broker that is lost or about
to stop, a reassignment whose last replica has caught up, and a controller that takes over in the middle of something
are all the same case, and nothing about them has to be remembered anywhere but in the image.

What is protected: a record that was acknowledged to all lies on every replica in sync, at least min.insync.replicas of
them, and a leader raises its high watermark only while that many are in sync (the strict rule of KIP-966), each counted
under the registration that stands beside it in the set. So, below that number, whoever leaves the in-sync set still
holds everything acknowledged: it becomes eligible. A replica holds what it held as long as its broker has stopped only
cleanly since (`Broker.clean_since`); one that came back otherwise may have lost the end of its log with its memory, and
leaves both sets (KIP-903, KIP-966). So does one whose log was found damaged, of this partition alone
(`Broker.damaged`), until it is seen to be in sync under its new registration.

    not led yet                        -> the first live replica leads, all live replicas are in sync
    leader alive since it was elected  -> it goes on, unless it drains and another in-sync replica can lead
    leader gone, or registered again   -> the first of these that is alive, leader_epoch + 1:
                                          an in-sync replica, another one before the same one again;
                                          an eligible one;
                                          any replica, if the topic has unclean.leader.election.enable;
                                          the last leader, if nobody is left in either set; one that may have lost
                                          something asks the others first (`replication.doubt`)
    none of them alive                 -> nobody leads, leader_epoch + 1, and both sets wait

While somebody leads, replicas that are gone or drain leave the in-sync set, except the leader itself. While fewer than
min.insync.replicas are in it those who left it are eligible; as soon as there are enough of them again nobody is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from ottla.cluster.changes import Change, PartitionChanged, PartitionsErased, TopicErased, partition_changed
from ottla.cluster.image import Image
from ottla.cluster.layout import id_text
from ottla.cluster.min_in_sync import missing_records
from ottla.cluster.model import NO_BROKER, NO_EPOCH, Broker, Partition, Topic
from ottla.cluster.persist import ERASED_PARTITIONS_MAX
from ottla.cluster.requests import Rules


class Terms(NamedTuple):
    """What a topic's settings ask of its partitions."""

    min_in_sync: int = 1
    unclean: bool = False

    @staticmethod
    def of(topic: Topic, rules: Rules) -> Terms:
        return Terms(rules.min_in_sync(topic.configs), rules.unclean(topic.configs))


class Census:
    """Who is alive, as elections ask for it."""

    __slots__ = ("_damaged", "_without", "brokers", "staying")

    def __init__(self, brokers: Mapping[int, Broker], without: frozenset[int] = frozenset()) -> None:
        """`without`: those who do not hold what they held of the partition that it is about."""
        self.brokers: Final = brokers
        self._without = without
        self._damaged: dict[tuple[str, int], set[int]] = {}
        for broker in brokers.values():
            for damaged in broker.damaged:
                self._damaged.setdefault(damaged, set()).add(broker.id)
        self.staying: Final = {broker.id: broker.epoch for broker in brokers.values() if not broker.draining}
        """Those who are not about to stop, and since when they are there."""

    def of(self, topic_id: bytes, index: int) -> Census:
        """As the elections of this partition ask for it."""
        without = self._damaged.get((id_text(topic_id), index)) if self._damaged else None
        return Census(self.brokers, frozenset(without)) if without else self

    def intact(self, replica: int, epoch: int) -> bool:
        """Whether a replica that was in sync under this registration holds, or may come back with, what it held."""
        broker = self.brokers.get(replica)
        if broker is None:
            return True
        return (broker.epoch if replica in self._without else broker.clean_since) <= epoch

    def epoch(self, replica: int, known: int) -> int:
        """Its registration now; the one that was known last if it is gone."""
        broker = self.brokers.get(replica)
        return known if broker is None else broker.epoch


def settled(partition: Partition, census: Census, terms: Terms) -> Partition:
    """The partition as it should be; the very same object when there is nothing to do."""
    staying = census.staying
    if (
        not partition.eligible
        and not partition.adding
        and not partition.removing
        and staying.get(partition.leader) == partition.broker_epoch
        and tuple(map(staying.get, partition.in_sync)) == partition.in_sync_epochs
    ):
        return partition
    return counted(partition, due(partition, census, terms))


def due(partition: Partition, census: Census, terms: Terms) -> Partition:
    """As it should be, its epochs not yet counted on."""
    if not partition.has_state:
        return _first_state(partition, census)
    return reassigned(_Election(partition, census, terms).state(), census, terms)


def counted(old: Partition, new: Partition) -> Partition:
    """`new` with its epochs, which tell what changed since `old`; the very same `old` if nothing did.

    Whoever leads anew does so under a new leader epoch. So does a leader that some replica no longer belongs to: what
    that one still asks for is then recognised.
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


def _first_state(partition: Partition, census: Census) -> Partition:
    alive = [replica for replica in partition.replicas if replica in census.brokers]
    in_sync = [replica for replica in alive if replica in census.staying] or alive
    if not in_sync:
        return partition
    return led(partition, in_sync[0], dict.fromkeys(in_sync, NO_EPOCH), census)


def led(partition: Partition, leader: int, in_sync: Mapping[int, int], census: Census) -> Partition:
    """Led by this replica, with these in sync and nobody eligible."""
    return partition._replace(
        leader=leader,
        broker_epoch=census.epoch(leader, NO_EPOCH) if leader != NO_BROKER else NO_EPOCH,
        in_sync=tuple(in_sync),
        in_sync_epochs=tuple(census.epoch(replica, known) for replica, known in in_sync.items()),
        eligible=(),
        eligible_epochs=(),
    )


class _Election:
    """One look at a partition that has a state. `in_sync` and `eligible` hold only replicas that still count, with the
    registration under which that was known last."""

    def __init__(self, partition: Partition, census: Census, terms: Terms) -> None:
        self.partition = partition
        self.census = census
        self.terms = terms
        self.enough = min(terms.min_in_sync, len(partition.replicas))
        self.in_sync = self._intact(partition.in_sync, partition.in_sync_epochs)
        self.eligible: dict[int, int] = {}
        if len(partition.in_sync) < self.enough:  # else more may have been acknowledged since they left
            self.eligible = self._intact(partition.eligible, partition.eligible_epochs)

    def _intact(self, replicas: tuple[int, ...], epochs: tuple[int, ...]) -> dict[int, int]:
        pairs = zip(replicas, epochs, strict=True)
        return {replica: epoch for replica, epoch in pairs if self.census.intact(replica, epoch)}

    def state(self) -> Partition:
        leader = self._leader()
        if leader == NO_BROKER:
            in_sync = self.in_sync
        elif leader in self.in_sync:
            staying = self.census.staying
            in_sync = {r: e for r, e in self.in_sync.items() if r in staying or r == leader}
        else:
            in_sync = {leader: NO_EPOCH}
        state = led(self.partition, leader, in_sync, self.census)
        return with_eligible(state, {**self.in_sync, **self.eligible}, self.enough, self.census)

    def _leader(self) -> int:
        partition = self.partition
        candidates = self._alive(self.in_sync)
        staying = [replica for replica in candidates if replica in self.census.staying]
        if partition.leader in self.in_sync and self._goes_on(partition.leader, bool(staying)):
            return partition.leader
        for able in (staying or candidates, self._alive(self.eligible)):
            if able:
                return next((replica for replica in able if replica != partition.leader), able[0])
        if self.terms.unclean and (replica := unclean_choice(partition, self.census)) != NO_BROKER:
            return replica
        hope = self._alive((partition.last_leader,))
        return hope[0] if hope and not self.in_sync and not self.eligible else NO_BROKER

    def _goes_on(self, leader: int, others: bool) -> bool:
        broker = self.census.brokers.get(leader)
        if broker is None or broker.epoch != self.partition.broker_epoch:
            return False
        return not broker.draining or not others

    def _alive(self, replicas: Iterable[int]) -> list[int]:
        """Those of them that are alive, in the order in which the partition prefers its replicas."""
        return [r for r in self.partition.replicas if r in replicas and r in self.census.brokers]


def with_eligible(state: Partition, held: Mapping[int, int], enough: int, census: Census) -> Partition:
    """The state with those of `held` eligible that are not in sync, as long as not `enough` are in sync."""
    if len(state.in_sync) >= enough:
        return state._replace(eligible=(), eligible_epochs=())
    eligible = {replica: epoch for replica, epoch in held.items() if replica not in state.in_sync}
    return state._replace(
        eligible=tuple(eligible),
        eligible_epochs=tuple(census.epoch(replica, known) for replica, known in eligible.items()),
    )


def unclean_choice(partition: Partition, census: Census) -> int:
    """Whom to elect though acknowledged records may be lost: who was closest to the last leader, if anybody lives."""
    hoped = (partition.last_leader, *partition.in_sync, *partition.eligible, *partition.replicas)
    alive = [replica for replica in hoped if replica in census.brokers and replica in partition.replicas]
    return next((replica for replica in alive if replica in census.staying), alive[0] if alive else NO_BROKER)


def reassigned(state: Partition, census: Census, terms: Terms) -> Partition:
    """The state after its reassignment, if that can be completed now: all replicas to add are in sync, and enough of
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
        leader = next((r for r in replicas if r in in_sync and r in census.staying), NO_BROKER)
        if leader == NO_BROKER:
            return state
    moved = state._replace(replicas=replicas, adding=(), removing=())
    return led(moved, leader, in_sync, census)


class Outlook:
    """All that a controller has to do now, whoever left it: the cluster's min.insync.replicas to be written down,
    partitions to be led, in-sync sets to be brought up to date, deleted topics to be erased. In this order: what cannot
    be written to comes before what can.

    Remembers which topics were found settled, and by whom and what they were judged, so that looking again costs
    little.
    """

    def __init__(self) -> None:
        self._done: Image | None = None
        self._brokers: Mapping[int, Broker] | None = None
        self._rules: Rules | None = None
        self._settled: dict[str, Topic] = {}

    def unfinished(self, image: Image, rules: Rules) -> Iterator[Change]:
        known = self._settled
        if rules is not self._rules or image.brokers is not self._brokers:
            known = {}
        elif image is self._done:
            return
        settled_topics: dict[str, Topic] = {}
        census = Census(image.brokers)
        later: list[Change] = []
        idle = True
        for record in missing_records(image, rules.min_in_sync_started):
            idle = False
            yield record
        for name, topic in image.topics.items():
            if known.get(name) is topic:
                settled_topics[name] = topic
                continue
            work = False
            for change in elections(topic, census, rules):
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
            yield from erasure(topic)
        self._brokers, self._rules, self._settled = image.brokers, rules, settled_topics
        self._done = image if idle else None


def unfinished(image: Image, rules: Rules) -> Iterator[Change]:
    return Outlook().unfinished(image, rules)


def elections(topic: Topic, census: Census, rules: Rules, first: int = 0) -> Iterator[PartitionChanged]:
    terms = Terms.of(topic, rules)
    for index in range(first, len(topic.partitions)):
        partition = topic.partitions[index]
        if (new := settled(partition, census.of(topic.id, index), terms)) is not partition:
            yield partition_changed(topic.id, index, new, partition)


def erasure(topic: Topic) -> Iterator[Change]:
    """Take a deleted topic out of the store, its partitions before itself."""
    for first in range(0, len(topic.partitions), ERASED_PARTITIONS_MAX):
        stop = min(first + ERASED_PARTITIONS_MAX, len(topic.partitions))
        if any(partition.has_state for partition in topic.partitions[first:stop]):
            yield PartitionsErased(topic.id, first, stop)
    yield TopicErased(topic.id)
