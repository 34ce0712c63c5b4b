"""Produce: from the receive buffer into the log, and an answer when the promise that `acks` makes is kept.

    acks=0    no answer; an error closes the connection, which is all such a client can notice
    acks=1    answered when the leader has it
    acks=all  answered when every in-sync replica has it
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.broker.dispatch import Request, serves_raw
from ottla.errors import BadFrame, ErrorCode, Refused
from ottla.net.server import Pending, Reply
from ottla.wire import produce
from ottla.wire.apis import PRODUCE
from ottla.wire.produce import PartitionProduced
from ottla.wire.records import RecordsRefused

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

log = logging.getLogger("ottla.broker.produce")


@serves_raw(PRODUCE)
def handle(broker: Broker, request: Request, frame: memoryview, pos: int) -> Reply | Pending:
    if request.version >= produce.FLEXIBLE_FROM:
        one = produce.decode_one(frame, pos, request.version)
        if one is not None and one.acks in (-1, 1):
            return _handle_one(broker, request, one)
    return _handle_any(broker, request, frame, pos)


def _handle_one(broker: Broker, request: Request, one: produce.OneBatch) -> bytes:
    """One batch for one partition: a third of the work of the general case, and nearly every request there is."""
    try:
        partition = broker.replicas.find(one.topic, one.partition)
        appended = partition.append(one.records, one.acks, broker.runtime.wall_ms())
    except Refused as refused:
        results = [_refused(broker, one.topic, one.partition, refused)]
        return request.frame(produce.encode_response(request.version, [(one.topic, results)]))
    base_offset, log_append_time_ms, _ = appended
    return request.frame(
        produce.encode_one(
            one.topic_bytes, one.partition, base_offset, log_append_time_ms, partition.log.log_start
        )
    )


def _handle_any(broker: Broker, request: Request, frame: memoryview, pos: int) -> Reply | Pending:
    message = produce.decode(frame, pos, request.version)
    acks = message.acks
    now_ms = broker.runtime.wall_ms()
    answers: list[tuple[produce.Topic, list[PartitionProduced]]] = []
    for topic, partitions in message.topics:
        results = []
        for index, records in partitions:
            try:
                if acks not in (-1, 0, 1):
                    raise Refused(ErrorCode.invalid_required_acks, f"acks={acks}: it can be 0, 1 or -1 (all)")
                if records is None:
                    raise Refused(ErrorCode.invalid_record, "there are no records")
                partition = broker.replicas.find(topic, index)
                appended = partition.append(records, acks, now_ms)
                results.append(
                    PartitionProduced(
                        index, 0, appended.base_offset, appended.log_append_time_ms, partition.log.log_start
                    )
                )
            except Refused as refused:
                results.append(_refused(broker, topic, index, refused))
        answers.append((topic, results))
    if acks == 0:
        for _, results in answers:
            for result in results:
                if result.error:
                    raise BadFrame(f"Produce with acks=0 failed: {ErrorCode(result.error).name}")
        return None
    return request.frame(produce.encode_response(request.version, answers))


def _refused(broker: Broker, topic: produce.Topic, index: int, refused: Refused) -> PartitionProduced:
    leader_id = leader_epoch = -1
    if refused.code == ErrorCode.not_leader_or_follower:
        leader_id, leader_epoch = broker.leader_of(topic, index)
    return PartitionProduced(
        index,
        refused.code,
        message=refused.message,
        leader_id=leader_id,
        leader_epoch=leader_epoch,
        record_errors=refused.record_errors if isinstance(refused, RecordsRefused) else (),
    )
