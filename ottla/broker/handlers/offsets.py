"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, serves
from ottla.errors import ErrorCode, Refused, StorageFault
from ottla.log.checkpoints import LOG_STARTS
from ottla.replication.partition import Partition
from ottla.replication.waits import DelayedOperations
from ottla.wire.apis import DELETE_RECORDS, LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from ottla.wire.schema.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from ottla.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.wire.schema.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

logger = logging.getLogger("ottla.broker")

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

OFFSET_NOT_AVAILABLE_FROM = 5
DELETE_MS_MAX = 600_000
"""The longest wait for followers in DeleteRecords, whatever timeout the client asks for."""
CONSUMER = -1
"""The replica id of clients; -2 is a debugging consumer."""


class FoundOffset(NamedTuple):
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


@serves(LIST_OFFSETS)
async def list_offsets(context: Context, message: ListOffsetsRequest, request: Request) -> ListOffsetsResponse:
    """`replica_id` is ignored: our brokers do not send this request, and clients fill the field with anything
    (kafka-python: 0)."""
    topics = []
    for topic in message.topics:
        results = []
        for wanted in topic.partitions:
            result = ListOffsetsPartitionResponse(partition_index=wanted.partition_index, timestamp=-1, offset=-1)
            try:
                partition = context.replica_manager.find(topic.name, wanted.partition_index)
                partition.check_leads(wanted.current_leader_epoch)
                found = await _find(context, partition, wanted, message.isolation_level)
                result.timestamp, result.offset, result.leader_epoch = found
            except Refused as refused:
                result.error_code = _error_for(request, refused.code)
            except StorageFault as fault:  # of this partition only
                context.disk_errors.read_refused(partition, fault)
                result.error_code = ErrorCode.kafka_storage_error
            results.append(result)
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=results))
    return ListOffsetsResponse(topics=topics)


def _error_for(request: Request, code: ErrorCode) -> ErrorCode:
    """Clients before KIP-207 retry another error."""
    if code == ErrorCode.offset_not_available and request.version < OFFSET_NOT_AVAILABLE_FROM:
        return ErrorCode.leader_not_available
    return code


async def _find(
    context: Context, partition: Partition, wanted: ListOffsetsPartition, isolation_level: int
) -> FoundOffset:
    limit, established = partition.readable_limit(isolation_level), partition.established
    if wanted.timestamp == LATEST:
        if not established:
            raise Refused(ErrorCode.offset_not_available)
        return FoundOffset(-1, limit, partition.leader_epoch)
    if wanted.timestamp in (EARLIEST, EARLIEST_LOCAL):
        return FoundOffset(-1, *partition.earliest())
    if wanted.timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return FoundOffset()  # there is no tiered storage
    # The search may read segments from disk: in a thread.
    if wanted.timestamp == MAX_TIMESTAMP:
        found = await context.runtime.offload(partition.offset_of_max_timestamp, limit)
    elif wanted.timestamp >= 0:
        found = await context.runtime.offload(partition.offset_for_timestamp, wanted.timestamp, limit)
    else:
        raise Refused(ErrorCode.unsupported_version, f"timestamp {wanted.timestamp} has no meaning")
    if found is None and not established:  # it may exist below the high watermark, which is not known yet (KIP-207)
        raise Refused(ErrorCode.offset_not_available)
    return FoundOffset() if found is None else FoundOffset(*found)


@serves(OFFSET_FOR_LEADER_EPOCH)
def offset_for_leader_epoch(
    context: Context, message: OffsetForLeaderEpochRequest, request: Request
) -> OffsetForLeaderEpochResponse:
    """The end offset of a leader epoch: clients detect truncation with it (KIP-320)."""
    topics = []
    for topic in message.topics:
        results = []
        for wanted in topic.partitions:
            result = EpochEndOffset(partition=wanted.partition, leader_epoch=-1, end_offset=-1)
            try:
                request.session.check_is_broker(message.replica_id)
                partition = context.replica_manager.find(topic.topic, wanted.partition)
                partition.check_leads(wanted.current_leader_epoch)
                result.leader_epoch, result.end_offset = partition.end_offset_for_epoch(wanted.leader_epoch)
            except Refused as refused:
                result.error_code = refused.code
            results.append(result)
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=results))
    return OffsetForLeaderEpochResponse(topics=topics)


class Deletion(NamedTuple):
    partition: Partition
    offset: int
    """Records before it are deleted."""
    result: DeleteRecordsPartitionResult


@serves(DELETE_RECORDS)
async def delete_records(context: Context, message: DeleteRecordsRequest, request: Request) -> DeleteRecordsResponse:
    """The response waits until the new log start is durable here and known to all in-sync replicas: deleted records
    come back neither after a crash nor with the next leader."""
    deadline = context.runtime.now() + min(message.timeout_ms, DELETE_MS_MAX) / 1000
    topics, begun = [], []
    for topic in message.topics:
        results = []
        for wanted in topic.partitions:
            result = DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=-1)
            try:
                begun.append(_delete(context, topic.name, wanted, result))
            except Refused as refused:
                result.error_code = refused.code
            results.append(result)
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    if await _persist(context, begun):
        await DelayedDeleteRecords(context.delayed, begun, deadline).done
    return DeleteRecordsResponse(topics=topics)


async def _persist(context: Context, begun: list[Deletion]) -> bool:
    """Whether the new log starts are durable. On a full disk, the files of deleted records are removed first."""
    fault: StorageFault | None = None
    for again in (False, True):
        if again:
            await context.log_manager.make_room([deletion.partition for deletion in begun])
        try:
            write = context.replicas.checkpoint(LOG_STARTS)
            if write is not None:
                await context.runtime.offload(write)
            for deletion in begun:  # followers get only log starts that are in the manifest
                await context.runtime.offload(deletion.partition.prove_log_start, deletion.offset)
                deletion.partition.wake()
            return True
        except StorageFault as refused:
            fault = refused
    logger.error("DeleteRecords: the new log starts cannot be written (KAFKA_STORAGE_ERROR): %s", fault)
    for deletion in begun:
        deletion.result.error_code = ErrorCode.kafka_storage_error
    return False


def _delete(
    context: Context, topic: str, wanted: DeleteRecordsPartition, result: DeleteRecordsPartitionResult
) -> Deletion:
    partition = context.replica_manager.find(topic, wanted.partition_index)
    partition.check_leads()
    if not partition.config.cleanup_delete:
        raise Refused(ErrorCode.policy_violation)
    started = partition.log_start
    offset = partition.delete_before(wanted.offset)
    if offset > started:
        words = "%s-%d: records deleted before offset %d (it started at %d)"
        logger.info(words, topic, wanted.partition_index, offset, started)
    return Deletion(partition, offset, result)


class DelayedDeleteRecords:
    """Waits until the in-sync followers have deleted the records, or the timeout."""

    def __init__(self, delayed: DelayedOperations, deletions: list[Deletion], deadline: float) -> None:
        self._delayed = delayed
        self._deletions = deletions
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.finished = False
        for deletion in deletions:
            deletion.partition.high_watermark_listeners[self] = None
            deletion.partition.leader.low_watermark_listeners[self] = None
        delayed.add(self, deadline)
        self.on_low_watermark()

    def on_low_watermark(self) -> None:
        settled = [_settled(deletion) for deletion in self._deletions]  # of all: each notes its result
        if all(settled) and not self.finished:
            self._delayed.finish(self)
            self._delayed.mark(self)

    def on_high_watermark(self, size: int) -> None:
        if size == 0:  # the leader or the ISR may be another one
            self.on_low_watermark()

    def expire(self) -> None:
        self._delayed.mark(self)

    def complete(self) -> None:
        for deletion in self._deletions:
            deletion.partition.high_watermark_listeners.pop(self, None)
            deletion.partition.leader.low_watermark_listeners.pop(self, None)
        if not self.done.done():
            self.done.set_result(None)


def _settled(deletion: Deletion) -> bool:
    """Whether the result is final. Until then it is the result at the timeout."""
    partition, offset, result = deletion
    if not partition.leads:
        result.low_watermark, result.error_code = -1, ErrorCode.not_leader_or_follower
        return True
    result.low_watermark = partition.leader.low_watermark
    reached = result.low_watermark >= offset
    result.error_code = ErrorCode.none if reached else ErrorCode.request_timed_out
    return reached
