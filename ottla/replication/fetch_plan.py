"""Fetch plan of a replica fetcher: the partitions that the next Fetch request names, and what a response changes. Pure.

One request fetches all partitions that follow the same broker, in an incremental fetch session (`wire.fetch_session`):
it names only partitions whose fetch offset changed, and the leader answers only with partitions that have something
new. A partition with an error, or whose records could not be appended, leaves the session and is added again after a
backoff.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from ottla.log.damage import held_from
from ottla.replication.partition import Partition
from ottla.wire.fetch import FetchPartition, PartitionFetched
from ottla.wire.fetch_session import FIRST_EPOCH, NO_SESSION, FetchSessionHandler
from ottla.wire.replica_fetch import Answer, Partitions

BACKOFF_SECONDS_MIN: Final = 0.02

Key = tuple[bytes, int]


class Followed:
    """One partition in the plan."""

    __slots__ = ("asked_in", "failures", "partition", "rests_until")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.asked_in = 0
        """The number of the request that named it last."""
        self.failures = 0
        self.rests_until = 0.0


class FetchRequestData(NamedTuple):
    number: int
    """Identifies the response: another request may be in flight."""
    session_id: int
    session_epoch: int
    topics: Partitions
    forgotten: dict[bytes, list[int]]


class FetchPlan:
    def __init__(self, *, partition_bytes_max: int, backoff_s_max: float) -> None:
        self._partition_bytes_max = partition_bytes_max
        self._backoff_s_max = backoff_s_max
        self._followed: dict[Key, Followed] = {}
        self._moved: dict[Key, None] = {}
        self._resting: dict[Key, None] = {}
        self._session: FetchSessionHandler[Key, FetchPartition] = FetchSessionHandler()
        self._requests = 0

    def __len__(self) -> int:
        return len(self._followed)

    def __contains__(self, partition: Partition) -> bool:
        followed = self._followed.get(_key(partition))
        return followed is not None and followed.partition is partition

    def add(self, partition: Partition) -> None:
        """Add a partition. If it is in the plan already, read its fetch offset again: a new leader epoch may have
        begun."""
        key = _key(partition)
        followed = self._followed.get(key)
        if followed is None or followed.partition is not partition:
            self._followed[key] = followed = Followed(partition)
        followed.rests_until = 0.0
        followed.failures = 0
        self._resting.pop(key, None)
        self._moved[key] = None

    def remove(self, partition: Partition) -> None:
        key = _key(partition)
        followed = self._followed.pop(key, None)
        if followed is None:
            return
        self._moved.pop(key, None)
        self._resting.pop(key, None)
        self._session.forget(key)

    def partitions(self) -> Iterator[Partition]:
        for followed in list(self._followed.values()):
            yield followed.partition

    def begin(self) -> None:
        """A new connection, or the leader has lost the session: name everything again."""
        self._session.begin()
        for key in self._followed:
            if key not in self._resting:
                self._moved[key] = None

    def deadline(self) -> float | None:
        """When the first backoff ends."""
        return min((self._followed[key].rests_until for key in self._resting), default=None)

    @property
    def has_news(self) -> bool:
        """Whether the leader needs a request now, before it answers the one in flight. Before the first response the
        session has no id, so it cannot be updated."""
        return self._session.id != NO_SESSION and any(map(self._stale, self._moved))

    def _stale(self, key: Key) -> bool:
        """The leader does not know that this broker follows the partition, or in which leader epoch."""
        known = self._session.known.get(key)
        return known is None or known.leader_epoch != self._followed[key].partition.leader_epoch

    def unsynced(self, now: float) -> list[Partition]:
        """Partitions whose fetch offset may not be sent yet, because the records before it are not flushed."""
        self._wake(now)
        moved = [self._followed[key].partition for key in self._moved]
        return [each for each in moved if each.policy.synced and each.own_end < each.log.log_end]

    def rested(self, now: float) -> list[Partition]:
        """Partitions whose backoff has ended: the next request fetches them again."""
        resting = [self._followed[key] for key in self._resting]
        return [followed.partition for followed in resting if followed.rests_until <= now]

    def _wake(self, now: float) -> None:
        for partition in self.rested(now):
            key = _key(partition)
            del self._resting[key]
            self._moved[key] = None

    def request(self, now: float) -> FetchRequestData | None:
        """The next request; None when there is nothing to fetch."""
        self._wake(now)
        if len(self._resting) == len(self._followed) and self._session.epoch == FIRST_EPOCH:
            return None
        self._requests += 1
        topics: Partitions = {}
        for key in self._moved:
            followed = self._followed[key]
            partition = followed.partition
            log_start = held_from(partition.log)
            wanted = FetchPartition(key[1], *partition.follower.position(), log_start, self._partition_bytes_max)
            if self._session.update(key, wanted):
                followed.asked_in = self._requests
                topics.setdefault(key[0], []).append(wanted)
        self._moved.clear()
        forgotten: dict[bytes, list[int]] = {}
        session_id, session_epoch, gone = self._session.next()
        for topic_id, index in gone:
            forgotten.setdefault(topic_id, []).append(index)
        return FetchRequestData(self._requests, session_id, session_epoch, topics, forgotten)

    def answered(self, answer: Answer, number: int) -> Iterator[tuple[Partition, PartitionFetched]]:
        """The partitions of the response to request `number` that still apply. A response for another leader epoch or
        fetch offset is dropped. A partition that a later request has named waits for that response, because this one
        does not say which request it answers."""
        if answer.error:
            self.begin()
            return
        self._session.id = answer.session_id
        known = self._session.known
        for topic_id, fetched in answer.partitions:
            key = topic_id, fetched.partition
            followed = self._followed.get(key)
            asked = known.get(key)
            if followed is None or asked is None or followed.asked_in > number:
                continue
            if asked[1:4] != followed.partition.follower.position():  # leader epoch, offset, and the epoch before it
                self._moved[key] = None
                continue
            yield followed.partition, fetched
        if not answer.session_id:
            self.begin()  # the leader keeps no session: every request is a full one

    def took(self, partition: Partition) -> None:
        """Its records were appended."""
        key = _key(partition)
        followed = self._followed.get(key)
        if followed is not None:
            followed.failures = 0
            self._moved[key] = None

    def failed(self, partition: Partition, now: float) -> None:
        """It got an error, or its records could not be appended: back off, longer each time."""
        followed = self._followed.get(_key(partition))
        if followed is not None:
            pause = min(BACKOFF_SECONDS_MIN * 2**followed.failures, self._backoff_s_max)
            followed.failures = min(followed.failures + 1, 16)
            self.rest(partition, now + pause)

    def rest(self, partition: Partition, until: float) -> None:
        """Do not fetch it until then."""
        key = _key(partition)
        followed = self._followed.get(key)
        if followed is None:
            return
        followed.rests_until = until
        self._resting[key] = None
        self._moved.pop(key, None)
        self._session.forget(key)


def _key(partition: Partition) -> Key:
    return partition.topic_id, partition.index
