"""Assignors of classic groups: which member reads which partitions, under the names that other clients know.

Only the group's leader computes. For members of different clients to share a group they need to agree on the names of
the assignors and on the bytes that members send to the leader, not on the algorithm.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import Final, Protocol

from ottla.client.values import TopicPartition
from ottla.errors import BadFrame
from ottla.wire.consumer_protocol import NO_GENERATION, Subscription
from ottla.wire.topic_partition import by_topic

Assignment = dict[str, list[TopicPartition]]
"""Partitions by member id; every member has an entry."""


class Assignor(Protocol):
    """Without state: the caller passes what a member must remember between two rebalances."""

    name: str
    """Its name in the protocol; the group uses one that all members support."""
    cooperative: bool = False
    """Whether members may keep their partitions while they rebalance (KIP-429)."""

    def user_data(self, owned: Collection[TopicPartition], generation: int) -> bytes | None:
        """User data for the leader's assignor: the member's last assignment, and its generation."""
        return None

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
        """`partitions` has the number of partitions of each topic there is; others are left out."""


def in_order(members: Mapping[str, Subscription]) -> list[str]:
    """Static members first and by their own names: when one restarts under a new member id nothing moves."""
    return sorted(members, key=lambda member: _rank(member, members[member]))


def _rank(member: str, subscription: Subscription) -> tuple[bool, str]:
    instance = subscription.instance_id
    return instance is None, member if instance is None else instance


def subscribers(members: Mapping[str, Subscription]) -> dict[str, list[str]]:
    """The members that want each topic, in order."""
    wanted: dict[str, list[str]] = {}
    for member in in_order(members):
        for topic in set(members[member].topics):
            wanted.setdefault(topic, []).append(member)
    return wanted


def partitions_of(topics: Iterable[str], partitions: Mapping[str, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic in sorted(topics) for number in range(partitions.get(topic, 0))]


class RangeAssignor(Assignor):
    """Range: each topic by itself, in runs of consecutive partitions.

    Members in order, partitions in order; the first members get one more where the division leaves a remainder. Topics
    with as many partitions and the same subscribers are co-partitioned: the member that has partition 3 of one has
    partition 3 of the other, so that equal keys of both are read by one member.
    """

    name = "range"

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
        assignment: Assignment = {member: [] for member in members}
        for topic, wanting in sorted(subscribers(members).items()):
            share, extra = divmod(partitions.get(topic, 0), len(wanting))
            start = 0
            for index, member in enumerate(wanting):
                end = start + share + (index < extra)
                assignment[member] += [TopicPartition(topic, number) for number in range(start, end)]
                start = end
        return assignment


class RoundRobinAssignor(Assignor):
    """Round-robin: all partitions of all topics in one list, assigned one by one; a member that is not subscribed to
    the topic is skipped."""

    name = "roundrobin"

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
        order = in_order(members)
        wants = {member: frozenset(members[member].topics) for member in order}
        assignment: Assignment = {member: [] for member in members}
        at = 0
        for partition in partitions_of(subscribers(members), partitions):
            while partition.topic not in wants[order[at % len(order)]]:
                at += 1
            assignment[order[at % len(order)]].append(partition)
            at += 1
        return assignment


Claims = Mapping[str, tuple[Collection[TopicPartition], int]]
"""By member: the partitions it claims to own, and the generation of the claim."""


class StickyAssignor:
    """Sticky (KIP-54): as even as the subscriptions allow, and as few moves as that allows.

    Every member keeps its partitions if it may; partitions without an owner go to the least loaded member. Then
    partitions move along chains, from a member that has at least two more than the last in the chain, until no chain is
    left: member c may not read a topic that a has too much of, but b may, and c may read one that b has. A chain moves
    one partition per link and changes the load of its two ends only. Partitions that are new to their member are moved
    first.

    A member sends the leader what it had in its user data: the partitions by topic, then the generation (KIP-341), by
    which the leader knows which of two claims to the same partition is stale.
    """

    name = "sticky"
    cooperative = False

    def user_data(self, owned: Collection[TopicPartition], generation: int) -> bytes | None:
        return encode_user_data(owned, generation) if owned else None

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
        # The field for owned partitions says nothing here: an eager member has given up all of them by now.
        claims = {member: decode_user_data(subscription.user_data) for member, subscription in members.items()}
        return stick(partitions, members, claims)


def stick(partitions: Mapping[str, int], members: Mapping[str, Subscription], claims: Claims) -> Assignment:
    loads = _Loads(partitions, members)
    for partition, member in _undisputed(claims).items():
        loads.keep(partition, member)
    loads.deal_out()
    loads.level(only_new=True)
    loads.level(only_new=False)
    return {member: sorted(loads.held[member]) for member in members}


def _undisputed(claims: Claims) -> dict[TopicPartition, str]:
    """Claimed partitions by member: the claim of the younger generation counts. If two members claim a partition in the
    same generation, neither keeps it."""
    best: dict[TopicPartition, tuple[int, str | None]] = {}
    for member, (owned, generation) in claims.items():
        for partition in owned:
            rival = best.get(partition)
            if rival is None or generation > rival[0]:
                best[partition] = generation, member
            elif generation == rival[0] and rival[1] != member:
                best[partition] = generation, None
    return {partition: member for partition, (_, member) in best.items() if member is not None}


class _Loads:
    """The owners of partitions while the assignment is made."""

    def __init__(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> None:
        self.order = in_order(members)
        self.wanting = subscribers(members)
        self.wants = {member: frozenset(members[member].topics) for member in members}
        self.held: dict[str, set[TopicPartition]] = {member: set() for member in members}
        self.new: set[TopicPartition] = set()
        self.free = dict.fromkeys(partitions_of(self.wanting, partitions))

    def keep(self, partition: TopicPartition, member: str) -> None:
        if partition in self.free and partition.topic in self.wants[member]:
            self.held[member].add(partition)
            del self.free[partition]

    def deal_out(self) -> None:
        """What few members want first: it leaves the least choice."""
        queues: dict[str, list[tuple[int, int, str]]] = {}
        for partition in sorted(self.free, key=lambda partition: (len(self.wanting[partition.topic]), partition)):
            member = self._least_loaded(queues, partition.topic)
            self.held[member].add(partition)
            self.new.add(partition)
        self.free.clear()

    def _least_loaded(self, queues: dict[str, list[tuple[int, int, str]]], topic: str) -> str:
        """Loads only grow here, so an entry with an outdated load is put back with the current one when it is
        reached."""
        queue = queues.get(topic)
        if queue is None:
            queue = queues[topic] = [(len(self.held[m]), rank, m) for rank, m in enumerate(self.wanting[topic])]
            heapify(queue)
        while True:
            load, rank, member = queue[0]
            if load == len(self.held[member]):
                return member
            heapreplace(queue, (len(self.held[member]), rank, member))

    def level(self, *, only_new: bool) -> None:
        """Always from the member with the most partitions: taking from another one could give a partition to a member
        that loses some later."""
        stuck: set[str] = set()
        moved = False
        while True:
            giver = max((m for m in self.order if m not in stuck), key=lambda m: len(self.held[m]), default=None)
            if giver is None:
                if not moved:
                    return
                stuck.clear()
                moved = False
            elif chain := self._chain_from(giver, only_new):
                for partition, source, taker in chain:
                    self.held[source].remove(partition)
                    self.held[taker].add(partition)
                    self.new.add(partition)
                moved = True
            else:
                stuck.add(giver)

    def _chain_from(self, start: str, only_new: bool) -> list[tuple[TopicPartition, str, str]]:
        """The shortest chain of moves to a member with at least two less, the least loaded at that distance."""
        limit = len(self.held[start]) - 2
        if limit < min(map(len, self.held.values()), default=0):
            return []
        came_by: dict[str, tuple[TopicPartition, str] | None] = {start: None}
        level = [start]
        while level:
            reached: list[str] = []
            for giver in level:
                for partition, taker in self._moves(giver, only_new, came_by):
                    came_by[taker] = partition, giver
                    reached.append(taker)
            lowest = min(reached, key=lambda member: len(self.held[member]), default=start)
            if len(self.held[lowest]) <= limit:
                return self._links(came_by, lowest)
            level = reached
        return []

    def _moves(self, giver: str, only_new: bool, seen: Mapping[str, object]) -> Iterator[tuple[TopicPartition, str]]:
        """For each topic of the giver: one partition, and the members that could take it."""
        movable: dict[str, TopicPartition] = {}
        for partition in sorted(self.held[giver]):
            if partition in self.new:
                movable[partition.topic] = partition
            elif not only_new:
                movable.setdefault(partition.topic, partition)
        for topic, partition in movable.items():
            for taker in self.wanting[topic]:
                if taker not in seen:
                    yield partition, taker

    @staticmethod
    def _links(
        came_by: Mapping[str, tuple[TopicPartition, str] | None], end: str
    ) -> list[tuple[TopicPartition, str, str]]:
        links: list[tuple[TopicPartition, str, str]] = []
        while (link := came_by[end]) is not None:
            partition, giver = link
            links.append((partition, giver, end))
            end = giver
        return links


def encode_user_data(owned: Collection[TopicPartition], generation: int) -> bytes:
    topics = by_topic(owned)
    parts = [_int32(len(topics))]
    for topic, partitions in topics.items():
        name = topic.encode()
        parts += [len(name).to_bytes(2, "big"), name, _int32(len(partitions)), *map(_int32, partitions)]
    parts.append(_int32(generation))
    return b"".join(parts)


def decode_user_data(data: bytes | None) -> tuple[tuple[TopicPartition, ...], int]:
    """The partitions, and the generation; a client from before KIP-341 leaves the latter out.

    What cannot be read counts as nothing owned: one odd member must not keep the group from its work.
    """
    view = memoryview(data or b"")
    # kafka-python 3 alone puts a version of two bytes before it.
    for start in (0, 2):
        try:
            return _decoded(view, start)
        except BadFrame:
            pass
    return (), NO_GENERATION


def _decoded(view: memoryview, pos: int) -> tuple[tuple[TopicPartition, ...], int]:
    owned: list[TopicPartition] = []
    topics, pos = _read_int(view, pos, 4)
    for _ in range(topics):
        size, pos = _read_int(view, pos, 2)
        if not 0 <= size <= len(view) - pos:
            raise BadFrame("a topic name longer than the user data")
        try:
            topic = bytes(view[pos : pos + size]).decode()
        except UnicodeDecodeError:
            raise BadFrame("a topic name that is no text") from None
        count, pos = _read_int(view, pos + size, 4)
        for _ in range(count):
            partition, pos = _read_int(view, pos, 4)
            owned.append(TopicPartition(topic, partition))
    if pos == len(view):
        return tuple(owned), NO_GENERATION
    generation, pos = _read_int(view, pos, 4)
    if pos != len(view):
        raise BadFrame("bytes after the generation")
    return tuple(owned), generation


def _int32(number: int) -> bytes:
    return number.to_bytes(4, "big", signed=True)


def _read_int(view: memoryview, pos: int, size: int) -> tuple[int, int]:
    if len(view) - pos < size:
        raise BadFrame("user data that ends early")
    return int.from_bytes(view[pos : pos + size], "big", signed=True), pos + size


GENERATION_BYTES: Final = 4


class CooperativeStickyAssignor:
    """Cooperative sticky (KIP-429): the sticky assignment, reached in two rebalances, so that no member stops reading
    what it keeps.

    Members join with the partitions they own, and continue to read them. A partition that is to move is not assigned in
    this rebalance: its owner revokes it and triggers another rebalance, in which it is free. So no
    partition ever has two readers.

    Members send what they own in the subscription itself (since version 1), and the generation there (since version 2)
    or, as older Java clients do, in four bytes of user data, or, as older librdkafka does, as sticky does.
    """

    name = "cooperative-sticky"
    cooperative = True

    def user_data(self, owned: Collection[TopicPartition], generation: int) -> bytes | None:
        return generation.to_bytes(GENERATION_BYTES, "big", signed=True)

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
        claims: Claims = {
            member: (subscription.owned, _generation(subscription)) for member, subscription in members.items()
        }
        final = stick(partitions, members, claims)
        owners: dict[TopicPartition, set[str]] = {}
        for member, subscription in members.items():
            for partition in subscription.owned:
                owners.setdefault(partition, set()).add(member)
        return {
            member: [partition for partition in assigned if member in owners.get(partition, {member})]
            for member, assigned in final.items()
        }


def _generation(subscription: Subscription) -> int:
    if subscription.generation != NO_GENERATION or not subscription.user_data:
        return subscription.generation
    if len(subscription.user_data) == GENERATION_BYTES:
        return int.from_bytes(subscription.user_data, "big", signed=True)
    return decode_user_data(subscription.user_data)[1]


ASSIGNORS: Final[Mapping[str, Assignor]] = {
    each.name: each for each in (RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor())
}


def assignors_named(names: Sequence[str]) -> tuple[Assignor, ...]:
    """In the order of preference given. ValueError for a name that none has."""
    unknown = [name for name in names if name not in ASSIGNORS]
    if unknown or not names:
        raise ValueError(f"no assignor is called {unknown[0] if unknown else ''!r}: there are {', '.join(ASSIGNORS)}")
    return tuple(ASSIGNORS[name] for name in names)
