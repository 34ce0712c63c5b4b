"""Incremental fetch sessions (KIP-227).

A consumer of a thousand partitions names them once, and later only what changed. The broker keeps the partitions of the
session. An append marks the partition in the sessions that fetch it, so that a Fetch looks only at marked partitions.

The session id and session epoch of a request say what it is: (0, 0) opens a session, (id, n) continues it, (any, -1) is
a full fetch outside any session and closes the session that it names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ottla.errors import ErrorCode, Refused
from ottla.replication.partition import Partition
from ottla.wire.fetch import FetchPartition, FetchRequest, Topic

if TYPE_CHECKING:
    from random import Random

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1
NO_FOLLOWER = -1
NOT_NOTED = -2
"""No leader epoch."""

Resolve = Callable[[Topic, int], "Partition | None"]


class CachedPartition:
    """One partition of a fetch session: the fetch offset, and the offsets that were sent last."""

    __slots__ = (
        "bytes_max", "fetch", "high_watermark", "last_epoch", "leader_epoch", "log_start", "offset", "own_start",
        "partition", "topic", "watched",
    )  # fmt: skip

    def __init__(self, fetch: FetchSession, topic: Topic, wanted: FetchPartition) -> None:
        self.fetch = fetch
        self.topic = topic
        self.partition = wanted.partition
        self.watched: Partition | None = None
        self.high_watermark = -1
        self.log_start = -1
        self.update(wanted)

    def update(self, wanted: FetchPartition) -> None:
        self.offset = wanted.offset
        self.leader_epoch = wanted.leader_epoch
        self.last_epoch = wanted.last_fetched_epoch
        self.own_start = wanted.log_start
        self.bytes_max = wanted.bytes_max

    def on_high_watermark(self, size: int) -> None:
        fetch = self.fetch
        fetch.dirty[self] = fetch.moved[self] = None
        if fetch.notify is not None:
            fetch.notify(size)

    def start_of(self, replica: Partition) -> int:
        """Where the log starts, for this reader."""
        return replica.log_start

    def watch(self, replica: Partition | None) -> None:
        """Listen to this replica, and to no other."""
        if replica is self.watched:
            return
        before, self.watched = self.watched, replica
        if before is not None:
            before.high_watermark_listeners.pop(self, None)
        if replica is not None:
            replica.high_watermark_listeners[self] = None


class FollowerPartition(CachedPartition):
    """One partition that a follower fetches. New records complete its delayed Fetch; a new high watermark does not."""

    __slots__ = ("diverging", "noted_epoch")

    def update(self, wanted: FetchPartition) -> None:
        """Send all offsets again: the client may have dropped the previous response, because it has sent a new
        request."""
        super().update(wanted)
        self.high_watermark = self.log_start = -1
        self.diverging: tuple[int, int] | None = None
        self.noted_epoch = NOT_NOTED

    def note_progress(self, replica: Partition, follower: int, broker_epoch: int) -> None:
        """Report the follower's progress to the leader state: once for each Fetch, and again after a new leader epoch.
        `diverging` is the diverging epoch, if there is one."""
        self.diverging = replica.leader.fetched_by(follower, broker_epoch, self.offset, self.last_epoch, self.own_start)
        self.noted_epoch = replica.leader_epoch

    def on_high_watermark(self, size: int) -> None:
        self.fetch.dirty[self] = None

    def start_of(self, replica: Partition) -> int:
        """A follower deletes records before the log start, so it gets only a log start that is in the manifest."""
        return replica.log.proven_start

    def on_append(self, size: int) -> None:
        fetch = self.fetch
        fetch.dirty[self] = fetch.moved[self] = None
        if fetch.notify is not None:
            fetch.notify(size)

    def watch(self, replica: Partition | None) -> None:
        if replica is self.watched:
            return
        if self.watched is not None:
            self.watched.append_listeners.pop(self, None)
        super().watch(replica)
        if replica is not None:
            replica.append_listeners[self] = None


class FetchSession:
    """The partitions that one client fetches: in one request, or in a session."""

    __slots__ = (
        "_entries", "_entry", "by_id", "closed", "dirty", "epoch", "follower", "heard", "id", "moved", "notify",
    )  # fmt: skip

    def __init__(self, session_id: int = 0, by_id: bool = False, follower: int = NO_FOLLOWER) -> None:
        self.id = session_id
        self.epoch = 1
        self.by_id = by_id
        self.follower = follower
        """The follower's broker id; below 0: a consumer."""
        self.heard = 0
        """The number of Fetch requests of that follower."""
        self._entry = CachedPartition if follower == NO_FOLLOWER else FollowerPartition
        self._entries: dict[tuple[Topic, int], CachedPartition] = {}
        self.dirty: dict[CachedPartition, None] = {}
        """Partitions that may have new records, in the order in which they are served: one that got records moves to
        the end."""
        self.moved: dict[CachedPartition, None] = {}
        """Partitions whose offsets may have changed since they were sent to the client."""
        self.notify: Callable[[int], object] | None = None
        """The callback of a delayed Fetch, for new bytes."""
        self.closed = False

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_session(self) -> bool:
        return self.id != 0 and not self.closed

    def want(self, topics: Iterable[tuple[Topic, list[FetchPartition]]]) -> None:
        for topic, partitions in topics:
            for wanted in partitions:
                key = (topic, wanted.partition)
                entry = self._entries.get(key)
                if entry is None:
                    entry = self._entries[key] = self._entry(self, topic, wanted)
                else:
                    entry.update(wanted)
                self.dirty[entry] = self.moved[entry] = None

    def entry(self, topic: Topic, partition: int) -> CachedPartition:
        return self._entries[topic, partition]

    def forget(self, topics: Iterable[tuple[Topic, list[int]]]) -> None:
        for topic, partitions in topics:
            for partition in partitions:
                entry = self._entries.pop((topic, partition), None)
                if entry is not None:
                    entry.watch(None)
                    self.dirty.pop(entry, None)
                    self.moved.pop(entry, None)

    def watch(self, resolve: Resolve) -> None:
        """Listen at the partitions. A fetch without a session does this only while it is delayed."""
        for entry in self._entries.values():
            entry.watch(resolve(entry.topic, entry.partition))

    def unwatch(self) -> None:
        for entry in self._entries.values():
            entry.watch(None)

    def all_dirty(self) -> None:
        self.dirty = dict.fromkeys(self._entries.values())


class FetchSessionCache:
    """The fetch sessions of one broker. If there are too many, the least recently used one is removed."""

    def __init__(self, random: Random, slots_max: int) -> None:
        self._random = random
        self._slots_max = slots_max
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._by_follower: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(self, request: FetchRequest, by_id: bool) -> FetchSession:
        """The fetch session of a request, updated with the partitions that the request names."""
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id:
                self.close(request.session_id)
            follower = max(request.replica_id, NO_FOLLOWER)
            opens = request.session_epoch == INITIAL_EPOCH
            fetch = self._open(by_id, follower) if opens else FetchSession(by_id=by_id, follower=follower)
            fetch.want(request.topics)
            return fetch
        session = self._sessions.get(request.session_id)
        if session is None or session.follower != max(request.replica_id, NO_FOLLOWER):
            raise Refused(ErrorCode.fetch_session_id_not_found)
        if session.by_id != by_id:
            raise Refused(ErrorCode.fetch_session_topic_id_error)
        if session.epoch != request.session_epoch or session.notify is not None:
            raise Refused(ErrorCode.invalid_fetch_session_epoch)
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        self._sessions.move_to_end(session.id)
        session.want(request.topics)
        session.forget(request.forgotten)
        return session

    def _open(self, by_id: bool, follower: int) -> FetchSession:
        if follower in self._by_follower:
            # The client opened it on another connection: its listeners would be called for every append, without use.
            self.close(self._by_follower[follower])
        if self._slots_max <= 0:
            return FetchSession(by_id=by_id, follower=follower)
        if len(self._sessions) >= self._slots_max:
            # A session with a delayed request is kept.
            unused = next((id for id, session in self._sessions.items() if session.notify is None), None)
            if unused is None:
                return FetchSession(by_id=by_id, follower=follower)
            self.close(unused)
        session_id = 0
        while not session_id or session_id in self._sessions:
            session_id = self._random.randrange(1, 2**31)
        session = self._sessions[session_id] = FetchSession(session_id, by_id, follower)
        if follower != NO_FOLLOWER:
            self._by_follower[follower] = session_id
        return session

    def close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        if self._by_follower.get(session.follower) == session_id:
            del self._by_follower[session.follower]
        session.closed = True
        session.unwatch()
        if session.notify is not None:
            session.notify(0)  # no other event would complete it
