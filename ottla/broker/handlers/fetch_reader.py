"""What one Fetch request reads, and its answer. Whether it is answered now or waits is decided in `fetch`.

A small answer is loaded at once, beside the loop where it is not in the page cache; the records of a large one stay in
their files until the client takes them.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from ottla.broker.dispatch import Request
from ottla.errors import ErrorCode, Refused, StorageFault
from ottla.log.slice import Slice
from ottla.net.server import Pending, Reply
from ottla.net.streaming import Streamed
from ottla.replication import gaps
from ottla.replication.fetch_sessions import INITIAL_EPOCH, CachedPartition, FetchSession, FollowerPartition
from ottla.replication.partition import READ_COMMITTED, Partition
from ottla.runtime import Buffer, ResponseSource
from ottla.wire import fetch as wire
from ottla.wire.fetch import FetchRequest, PartitionFetched

if TYPE_CHECKING:
    from ottla.broker.handlers.fetch import FetchHandler

log = logging.getLogger("ottla.broker.fetch")

RACK_FROM = 11
"""The first version in which a follower may serve consumers (KIP-392)."""
MISSES_MAX = 32
"""In a session: how many partitions with a batch that is too large are skipped for smaller ones after them."""

SMALL_BYTES_MAX = 128 * 1024
"""Answers with more records are loaded as they are sent."""

Found = list[tuple[CachedPartition, "PartitionFetched | Slice"]]


class FetchReader:
    """Reads the partitions of a Fetch for a consumer."""

    __slots__ = ("_bytes_max", "_full", "_handler", "message", "pending", "request", "session")

    def __init__(self, handler: FetchHandler, request: Request, message: FetchRequest, session: FetchSession) -> None:
        self._handler = handler
        self.request = request
        self.message = message
        self.session = session
        self.pending: Pending | None = None
        """The pending response, if it is not sent at once."""
        self._full = not session.is_session or message.session_epoch == INITIAL_EPOCH
        self._bytes_max = max(min(message.bytes_max, handler.config.current.fetch_max_bytes), 0)

    def look(self) -> tuple[Found, int, bool]:
        """Read the partitions that may have new records. Returns what was found, how many bytes, and whether the
        response must be sent at once. As in Kafka, only the first partition with data gets its first batch however
        large it is; other batches must fit. A response that opens a session, or has none, names every partition: the
        Java client drops any other. A partition that did not fit keeps its place in the queue; one that got records
        moves to the end. If its offsets have changed it is named anyway, without records: clients use the high
        watermark to see whether there is more, and Kafka Streams waits for it (KIP-695)."""
        session = self.session
        full, level = self._full, self.message.isolation_level
        found: Found = []
        size = misses = 0
        urgent = False
        for entry in list(session.dirty):
            room = max(self._bytes_max - size, 0)
            if size and not full and (not room or misses > MISSES_MAX):
                urgent = self._find_moved(found) or urgent
                break
            seen = self._seen(entry, min(entry.bytes_max, room), whole_first_batch=not size)
            if isinstance(seen, PartitionFetched):
                found.append((entry, seen))
                urgent = True
                continue
            partition, piece = seen
            if piece is not None and (piece.length or not piece.located):
                # What is not in memory has not been measured yet; it is there all the same.
                size += piece.length or max(min(entry.bytes_max, room), 1)
                urgent = urgent or not piece.located
                found.append((entry, piece))
                continue
            misses += piece is not None
            if full or not self._is_up_to_date(entry, partition):
                found.append((entry, state_of(entry, partition, b"", level)))
            elif piece is None:
                del session.dirty[entry]  # until an append marks it again
        # To wait for more is of no use when there is no room for more.
        return found, size, urgent or misses > 0 or size >= self._bytes_max > 0

    def _find_moved(self, found: Found) -> bool:
        """Add partitions without records in this response whose offsets have changed. Returns whether the response must
        be sent at once."""
        session, urgent = self.session, False
        named = {entry for entry, _ in found}
        for entry in [entry for entry in session.moved if entry not in named]:
            seen = self._seen(entry, 0, whole_first_batch=False)
            if isinstance(seen, PartitionFetched):
                found.append((entry, seen))
                urgent = True
            elif self._is_up_to_date(entry, seen[0]):
                del session.moved[entry]
            else:
                found.append((entry, state_of(entry, seen[0], b"", self.message.isolation_level)))
        return urgent

    def _seen(
        self, entry: CachedPartition, bytes_max: int, *, whole_first_batch: bool
    ) -> PartitionFetched | tuple[Partition, Slice | None]:
        """The readable slice of one partition, or its error."""
        try:
            partition = self._handler.replica_manager.find(entry.topic, entry.partition)
            if self.session.is_session:
                entry.watch(partition)
            piece = self._read(entry, partition, bytes_max, whole_first_batch=whole_first_batch)
        except (Refused, StorageFault) as failure:  # one that cannot be read must not keep back all others
            return self._handler.failed(entry, failure)
        return piece if isinstance(piece, PartitionFetched) else (partition, piece)

    def _read(
        self, entry: CachedPartition, partition: Partition, bytes_max: int, *, whole_first_batch: bool
    ) -> Slice | PartitionFetched | None:
        if rack := self.message.rack:
            nearer = self._handler.replica_manager.nearer_replica(partition, rack, entry.offset)
            if nearer is not None:
                return state_of(entry, partition, b"", self.message.isolation_level)._replace(preferred_replica=nearer)
        return partition.read(
            entry.offset,
            bytes_max,
            isolation_level=self.message.isolation_level,
            leader_epoch=entry.leader_epoch,
            whole_first_batch=whole_first_batch,
            from_follower=self.request.version >= RACK_FROM,
        )

    def _is_up_to_date(self, entry: CachedPartition, partition: Partition) -> bool:
        """In a session a partition without records is named only if its offsets have changed."""
        return (
            self.session.is_session
            and entry.high_watermark == partition.high_watermark
            and entry.log_start == entry.start_of(partition)
        )

    # Answering.

    def finish(self, found: Found, size: int) -> Reply | Pending:
        results: list[tuple[CachedPartition, PartitionFetched]] = []
        small = size <= SMALL_BYTES_MAX
        for entry, piece in found:
            if isinstance(piece, PartitionFetched):
                results.append((entry, piece))
                continue
            if piece.position < 0:
                return self._finish_later(found)
            try:
                data = piece.load_nowait() if small else _data(piece, size)
                if data is None:
                    return self._finish_later(found)
                results.append((entry, self._loaded(entry, piece, data)))
            except (Refused, StorageFault) as failure:
                results.append((entry, self._handler.failed(entry, failure)))
        return self._encode(results, size)

    def _count(self, topic: str, piece: Slice) -> None:
        traffic = self._handler.traffic[topic]
        traffic.bytes_out += piece.length
        traffic.records_out += piece.end_offset() - piece.offset

    def _loaded(self, entry: CachedPartition, piece: Slice, data: Buffer | ResponseSource) -> PartitionFetched:
        handler, topic, index = self._handler, entry.topic, entry.partition
        partition = handler.replicas.get(topic, index) or handler.replica_manager.find(topic, index)  # which says why
        level = self.message.isolation_level
        if piece.length:
            self._count(partition.topic, piece)
        if level != READ_COMMITTED:
            return state_of(entry, partition, data, level)
        if entry.offset < partition.log_start:  # what was aborted there is known no more
            return PartitionFetched(entry.partition, ErrorCode.offset_out_of_range)
        return state_of(entry, partition, data, level)._replace(aborted=partition.aborted(piece))

    def _finish_later(self, found: Found) -> Pending:
        """Some slices must be read from the device."""
        if self.pending is None:
            self.pending = Pending()
        self._handler.runtime.spawn(self._load(found), name="cold fetch")
        return self.pending

    async def _load(self, found: Found) -> None:
        reply: Reply = None
        try:
            reply = await self._load_all(found)
        except Exception as failure:
            log.error("Fetch failed", exc_info=failure)
            self.request.connection.close("Fetch failed")
        assert self.pending is not None
        if not self.pending.resolved:
            self.pending.resolve(reply)

    async def _load_all(self, found: Found) -> Reply:
        if not all(isinstance(piece, PartitionFetched) or piece.located for _, piece in found):
            await self._handler.runtime.offload(self._fit, found)
        size = sum(piece.length for _, piece in found if isinstance(piece, Slice))
        results = []
        for entry, piece in found:
            if isinstance(piece, PartitionFetched):
                results.append((entry, piece))
                continue
            try:
                data = _data(piece, size)
                if data is None:
                    data = await self._handler.runtime.offload(piece.load)
                results.append((entry, self._loaded(entry, piece, data)))
            except (Refused, StorageFault) as failure:
                results.append((entry, self._handler.failed(entry, failure)))
        return self._encode(results, size)

    def _fit(self, found: Found) -> None:
        """Find the sizes of slices that were not in memory, and apply the limits as `look` does. In a thread."""
        size = 0
        for entry, piece in found:
            if isinstance(piece, Slice):
                with suppress(Refused, StorageFault):  # the error is raised again when it is loaded
                    room = max(self._bytes_max - size, 0)
                    size += piece.fit(min(entry.bytes_max, room), whole_first_batch=not size)

    def _encode(self, results: list[tuple[CachedPartition, PartitionFetched]], size: int) -> Reply:
        session = self.session
        dirty = session.dirty
        topics: dict[wire.Topic, list[PartitionFetched]] = {}
        for entry, result in results:
            if entry.topic in topics:
                topics[entry.topic].append(result)
            else:
                topics[entry.topic] = [result]
            if result.error:
                self.request.count_error(result.error)
            entry.high_watermark = result.high_watermark
            entry.log_start = result.log_start
            if session.is_session and result.records and entry in dirty:
                del dirty[entry]
                dirty[entry] = None  # at the end: the others come first next time
        body = wire.encode_response(self.request.version, list(topics.items()), session_id=session.id)
        parts = self.request.frame_parts(body)
        return Streamed(parts) if size > SMALL_BYTES_MAX else cast("list[Buffer]", parts)


class ReplicaFetchReader(FetchReader):
    """Reads the partitions of a Fetch for a follower: up to the log end, with diverging epochs."""

    __slots__ = ()

    def _find_moved(self, found: Found) -> bool:
        """A follower gets high watermarks with the records, not separately."""
        return False

    def _count(self, topic: str, piece: Slice) -> None:
        """Replication does not count as traffic of clients."""

    def _throttled(self, partition: Partition) -> bool:
        return partition.policy.leader_throttled and self.message.replica_id not in partition.in_sync

    def _held_back(self, partition: Partition) -> bool:
        """Whether the leader's replication throttle is exceeded (KIP-73). It is checked again when the request is
        due."""
        throttle = self._handler.replica_manager.leader_throttle
        return self._throttled(partition) and not throttle.ready(self._handler.runtime.now())

    def _is_up_to_date(self, entry: CachedPartition, partition: Partition) -> bool:
        return super()._is_up_to_date(entry, partition) and not self._held_back(partition)

    def _read(
        self, entry: CachedPartition, partition: Partition, bytes_max: int, *, whole_first_batch: bool
    ) -> Slice | PartitionFetched | None:
        partition.check_leads(entry.leader_epoch)
        assert isinstance(entry, FollowerPartition)
        if entry.noted_epoch != partition.leader_epoch:
            entry.note_progress(partition, self.message.replica_id, self.message.replica_epoch)
        if entry.diverging is not None:
            return state_of(entry, partition, b"", 0)._replace(diverging=entry.diverging)
        if (gap := gaps.gap_for(partition, self.message.replica_id, entry.offset)) is not None:
            # With an error for those that do not know of gaps: they ask again after a while.
            state = state_of(entry, partition, b"", 0)
            return state._replace(error=ErrorCode.kafka_storage_error, missing=gap)
        if self._held_back(partition):
            return None
        try:
            piece = partition.read_tail(
                entry.offset, bytes_max, leader_epoch=entry.leader_epoch, whole_first_batch=whole_first_batch
            )
            self._handler.scrubber.sent(partition, self.message.replica_id, entry.offset, piece)
            if piece is not None and self._throttled(partition):
                size = piece.length if piece.located else bytes_max
                self._handler.replica_manager.leader_throttle.spend(size, self._handler.runtime.now())
            return piece
        except Refused as refused:
            if refused.code != ErrorCode.offset_out_of_range:
                raise
            # It needs to know where the log begins to go on from there.
            return state_of(entry, partition, b"", 0)._replace(error=refused.code)


def _data(piece: Slice, size: int) -> Buffer | ResponseSource | None:
    """The bytes of a slice in a response of this total size: a small one is loaded, a large one is loaded as it is
    sent. None: it must be read from the device."""
    if not piece.located:
        return None
    if size > SMALL_BYTES_MAX and piece.may_wait:
        piece.check()
        return piece
    return piece.load_nowait()


def state_of(
    entry: CachedPartition, partition: Partition, data: Buffer | ResponseSource, level: int
) -> PartitionFetched:
    return PartitionFetched(
        entry.partition, 0, partition.high_watermark, partition.last_stable, entry.start_of(partition),
        [] if level == READ_COMMITTED else None, -1, data,
    )  # fmt: skip
