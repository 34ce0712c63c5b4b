"""Fetch: a slice of the log for everybody who asks, or a wait until there is one (`delayed_fetch`)."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from ottla.broker.context import Context
from ottla.broker.disk_errors import DiskErrors
from ottla.broker.dispatch import RawHandler, Request, serves_raw
from ottla.broker.handlers.delayed_fetch import DelayedFetch, DelayedReplicaFetch, refusal
from ottla.broker.traffic import TopicTraffic
from ottla.config.broker_config import LiveConfig
from ottla.errors import ErrorCode, Refused, StorageFault
from ottla.net.server import Pending, Reply
from ottla.replication.doubt import shows_more
from ottla.replication.fetch_sessions import (
    CachedPartition,
    FetchSession,
    FetchSessionCache,
    FollowerPartition,
)
from ottla.replication.isr import IsrManager
from ottla.replication.replica_manager import ReplicaManager
from ottla.replication.scrubber import Scrubber
from ottla.replication.waits import DelayedOperations
from ottla.runtime import Runtime
from ottla.wire import fetch as wire
from ottla.wire.apis import FETCH
from ottla.wire.fetch import FetchRequest, PartitionFetched

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
        follower = message.replica_id
        try:
            request.session.check_speaks_for(follower)
            session = self._sessions.resolve(message, by_id=request.version >= wire.TOPIC_IDS_FROM)
        except Refused as refused:
            return refusal(request, message, refused.code)
        if follower < 0:
            return DelayedFetch(self, request, message, session).begin()
        session.heard += 1
        self._note_progress(message, session)
        return DelayedReplicaFetch(self, request, message, session).begin()

    def _note_progress(self, message: FetchRequest, session: FetchSession) -> None:
        """All that the follower has come to have, at once: what it is sent back may be cut short."""
        follower, broker_epoch = message.replica_id, message.replica_epoch
        for topic, partitions in message.topics:
            for wanted in partitions:
                partition = self.replicas.get(topic, wanted.partition)
                if partition is None or wanted.leader_epoch != partition.leader_epoch:
                    continue  # it is told when the partition's turn comes
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

    def unreadable(self, entry: CachedPartition, fault: StorageFault) -> PartitionFetched:
        partition = self.replicas.get(entry.topic, entry.partition)
        if partition is not None:
            self._disk_errors.read_refused(partition, fault)
        return PartitionFetched(entry.partition, ErrorCode.kafka_storage_error)

    def refused(self, entry: CachedPartition, refused: Refused) -> PartitionFetched:
        leader_id = leader_epoch = -1
        if refused.code in (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch):
            leader_id, leader_epoch = self.replica_manager.leader_of(entry.topic, entry.partition)
        # As in Kafka: null where the log was asked, empty where there was none to ask.
        aborted: list[tuple[int, int]] | None = [] if refused.code in _NOT_THERE else None
        return PartitionFetched(
            entry.partition, refused.code, leader_id=leader_id, leader_epoch=leader_epoch, aborted=aborted
        )
