"""Sticky (KIP-54): as even as the subscriptions allow, and as little moved as that allows.

Every member keeps what it had and may still have; what nobody has goes to whoever has least. Then partitions
move along chains, from a member that has at least two more than the last in the chain, until no chain is left:
c may not want a topic that a has too much of, but b may, and c may want one that b has. A chain moves one
partition per link and changes the load of its two ends only. What is new to its member anyway is moved first.

A member tells the leader what it had in its user data: the partitions by topic, then the generation (KIP-341)
by which the leader knows which of two claims to the same partition is stale.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from heapq import heapify, heapreplace

from ottla.client.group.assignors.base import Assignment, in_order, partitions_of, subscribers
from ottla.client.values import TopicPartition
from ottla.errors import BadFrame
from ottla.wire.consumer_protocol import NO_GENERATION, Subscription
from ottla.wire.topic_partition import by_topic

Claims = Mapping[str, tuple[Collection[TopicPartition], int]]
"""By member: what it says it has, and since which generation."""


class Sticky:
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
    """Who keeps what: the younger claim counts. Of two of one age neither does: somebody is wrong, and both let go."""
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
    """Who holds what while the assignment is made."""

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
        """Loads only grow meanwhile, so an entry with an old load is put back where it belongs when it comes up."""
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
        """Always from whoever has most: taking from anybody else could give a partition to one who later loses some."""
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
        """One partition of each topic the giver has some of, and who could take it."""
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
