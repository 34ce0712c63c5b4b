"""Fetch: a slice of the log for consumers and followers, or a wait until there is one (KIP-227, KIP-392).

A request that finds less than it wants (`fetch_reader`) is delayed in its session; appends wake it. Several appends in
one iteration of the loop give one answer.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final, cast

from ottla.broker.context import Context
from ottla.broker.disk_errors import DiskErrors
from ottla.broker.dispatch import RawHandler, Request, serves_raw
from ottla.broker.handlers.fetch_reader import FetchReader, ReplicaFetchReader
from ottla.broker.traffic import TopicTraffic
from ottla.config.broker_config import LiveConfig
from ottla.errors import ErrorCode, Refused, StorageFault
from ottla.net.server import Pending, Reply
from ottla.replication.doubt import shows_more
from ottla.replication.fetch_sessions import CachedPartition, FetchSessionCache, FollowerPartition
from ottla.replication.isr import IsrManager
from ottla.replication.partition import READ_COMMITTED
from ottla.replication.replica_manager import ReplicaManager
from ottla.replication.scrubber import Scrubber
from ottla.replication.waits import DelayedOperations
from ottla.runtime import Buffer, Runtime
from ottla.wire import fetch as wire
from ottla.wire.apis import FETCH
from ottla.wire.fetch import PartitionFetched

log = logging.getLogger("ottla.broker.fetch")

WAIT_MS_MAX: Final = 600_000
"""The longest wait, whatever `max_wait_ms` is."""
_NOT_THERE: Final = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)


@serves_raw(FETCH)
def fetch_handler(context: Context) -> RawHandler:
    handler = FetchHandler(
        context.runtime,
        context.live_config,
        context.replica_manager,
        context.isr,
        context.fetch_sessions,
        context.delayed,
        context.traffic,
        context.disk_errors,
        context.scrubber,
    )
    return handler.handle


class FetchHandler:
    def __init__(
        self,
        runtime: Runtime,
        config: LiveConfig,
        replica_manager: ReplicaManager,
        isr: IsrManager,
        sessions: FetchSessionCache,
        delayed: DelayedOperations,
        traffic: TopicTraffic,
        disk_errors: DiskErrors,
        scrubber: Scrubber,
    ) -> None:
        self.runtime: Final = runtime
        self.config: Final = config
        self.replica_manager: Final = replica_manager
        self.replicas: Final = replica_manager.replicas
        self.delayed: Final = delayed
        self.traffic: Final = traffic
        self.scrubber: Final = scrubber
        self._isr = isr
        self._sessions = sessions
        self._disk_errors = disk_errors

    def handle(self, request: Request, frame: memoryview, pos: int) -> Reply | Pending:
        message = wire.decode(frame, pos, request.version)
        follower, broker_epoch = message.replica_id, message.replica_epoch
        request.session.check_is_broker(follower)
        session = self._sessions.resolve(message, by_id=request.version >= wire.TOPIC_IDS_FROM)
        if follower < 0:
            return self._read(FetchReader(self, request, message, session))
        session.heard += 1
        # Note the progress of all partitions first: the response may not include all of them.
        for topic, partitions in message.topics:
            for wanted in partitions:
                partition = self.replicas.get(topic, wanted.partition)
                if partition is None or wanted.leader_epoch != partition.leader_epoch:
                    continue  # it gets the error with the partition's result
                has = follower, broker_epoch, wanted.offset, wanted.last_fetched_epoch, wanted.log_start
                if partition.doubt is not None or shows_more(partition, *has):
                    assert partition.doubt is not None
                    partition.doubt.hear(*has)
                    self._isr.look_at(partition)
                elif partition.leads:
                    with suppress(Refused):
                        entry = session.entry(topic, wanted.partition)
                        assert isinstance(entry, FollowerPartition)
                        entry.note_progress(partition, follower, broker_epoch)
                        self._isr.look_at(partition)
        return self._read(ReplicaFetchReader(self, request, message, session))

    def _read(self, reader: FetchReader) -> Reply | Pending:
        """Respond with the readable bytes, or delay the response until there are enough."""
        found, size, urgent = reader.look()
        message = reader.message
        if size >= message.bytes_min or urgent or message.wait_ms_max <= 0:
            return reader.finish(found, size)
        delayed = DelayedFetch(self, reader, message.bytes_min - size)
        wait_ms = min(message.wait_ms_max, WAIT_MS_MAX)
        self.delayed.add(delayed, self.runtime.now() + wait_ms / 1000)
        return delayed.pending

    def failed(self, entry: CachedPartition, failure: Refused | StorageFault) -> PartitionFetched:
        """The result of a partition that cannot be read."""
        topic, index = entry.topic, entry.partition
        if isinstance(failure, StorageFault):
            if (partition := self.replicas.get(topic, index)) is not None:
                self._disk_errors.read_refused(partition, failure)
            return PartitionFetched(index, ErrorCode.kafka_storage_error)
        leader_id = leader_epoch = -1
        if failure.code in (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch):
            leader_id, leader_epoch = self.replica_manager.leader_of(topic, index)
        # As in Kafka: null where the log was asked, empty where there was none to ask.
        aborted: list[tuple[int, int]] | None = [] if failure.code in _NOT_THERE else None
        return PartitionFetched(index, failure.code, leader_id=leader_id, leader_epoch=leader_epoch, aborted=aborted)


class DelayedFetch:
    """A Fetch with fewer readable bytes than `min_bytes`: it waits for more, for its deadline, or for another
    change."""

    __slots__ = ("_delayed", "_expired", "_look_first", "_marked", "_reader", "_short", "finished", "pending")

    def __init__(self, handler: FetchHandler, reader: FetchReader, short: int) -> None:
        self._delayed = handler.delayed
        self._reader = reader
        self._short = short
        self._marked = self._look_first = self._expired = False
        self.finished = False
        self.pending = reader.pending = Pending()
        self.pending.abandoned = self._stop_waiting
        if reader.message.replica_id >= 0:
            self.pending.expedite = self.complete  # a follower has another partition to fetch
        if not reader.session.is_session:
            reader.session.watch(handler.replicas.get)
        reader.session.notify = self.on_bytes

    def on_bytes(self, size: int) -> None:
        """New bytes, or 0: something else changed. Complete it in the next iteration: more may come in this one."""
        self._short -= size
        if (self._short <= 0 or size == 0) and not self._marked:
            self._marked = True
            # Records of open transactions arrived perhaps, which this reader may not see yet.
            self._look_first = self._reader.message.isolation_level == READ_COMMITTED and size > 0
            self._delayed.mark(self, next_iteration=True)

    def expire(self) -> None:
        self._expired = True
        self._delayed.mark(self)

    def complete(self) -> None:
        expired, self._expired = self._expired, False
        if self.finished and not expired:
            return  # it was completed, or abandoned
        reader = self._reader
        message, session = reader.message, reader.session
        self._marked = False
        if not session.is_session:
            session.all_dirty()  # changes were not marked
        if self._look_first and not expired:
            _, size, urgent = reader.look()
            if size < message.bytes_min and not urgent:
                self._short = message.bytes_min - size
                return
        self._stop_waiting()
        reply: Reply | Pending = None
        try:
            if session.closed:  # while it was delayed: the request is void
                error = ErrorCode.fetch_session_id_not_found
                reader.request.count_error(error)
                parts = wire.encode_response(reader.request.version, [], error=error)
                reply = cast("list[Buffer]", reader.request.frame_parts(parts))
            else:
                found, size, _ = reader.look()
                reply = reader.finish(found, size)
        except Exception as failure:  # no other code would answer
            log.error("Fetch failed", exc_info=failure)
            reader.request.connection.close("Fetch failed")
        if not isinstance(reply, Pending):
            self.pending.resolve(reply)

    def _stop_waiting(self) -> None:
        if not self.finished:
            self._delayed.finish(self)
        session = self._reader.session
        session.notify = None
        if not session.is_session:
            session.unwatch()
