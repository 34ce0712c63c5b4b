"""Produce: from the receive buffer into the log, and an answer when the promise that `acks` makes is kept.

acks=0    no answer; an error closes the connection, which is all such a client can notice
acks=1    answered when the leader has it
acks=all  answered when every in-sync replica has it
"""

from __future__ import annotations

import logging

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, serves_raw
from ottla.coordinator.transaction_verification import Verification
from ottla.errors import BadFrame, ErrorCode, Refused
from ottla.log.transactions import Guard
from ottla.net.server import Pending, Reply
from ottla.replication.partition import ACKS_ALL, Partition
from ottla.runtime import Handle
from ottla.wire import produce
from ottla.wire.apis import PRODUCE
from ottla.wire.produce import PartitionProduced
from ottla.wire.records import RecordsRefused

log = logging.getLogger("ottla.broker.produce")

Produced = tuple[produce.Topic, list[PartitionProduced]]


@serves_raw(PRODUCE)
def handle(context: Context, request: Request, frame: memoryview, pos: int) -> Reply | Pending:
    if request.version >= produce.FLEXIBLE_FROM:
        one = produce.decode_one(frame, pos, request.version)
        if one is not None and one.acks in (-1, 1):
            return _handle_one(context, request, one)
    return _handle_any(context, request, frame, pos)


def _handle_one(context: Context, request: Request, one: produce.OneBatch) -> bytes | Pending:
    """One batch for one partition: a third of the work of the general case, and nearly every request there is."""
    try:
        partition = context.replica_manager.find(one.topic, one.partition)
        appended = partition.append(one.records, one.acks, context.runtime.wall_ms())
    except Refused as refused:
        results = [_refused(context, request, one.topic, one.partition, refused)]
        return request.frame(produce.encode_response(request.version, [(one.topic, results)]))
    base_offset, log_append_time_ms, next_offset = appended
    traffic = context.traffic[partition.topic]
    traffic.bytes_in += len(one.records)
    traffic.records_in += next_offset - base_offset
    if one.acks == ACKS_ALL and partition.high_watermark < next_offset:
        produced = PartitionProduced(one.partition, 0, base_offset, log_append_time_ms, partition.log.log_start)
        parked = Parked(context, request, [(one.topic, [produced])])
        parked.await_committed(partition, next_offset, 0, 0)
        return parked.park(one.timeout_ms)
    return request.frame(
        produce.encode_one(one.topic_bytes, one.partition, base_offset, log_append_time_ms, partition.log.log_start)
    )


def _handle_any(context: Context, request: Request, frame: memoryview, pos: int) -> Reply | Pending:
    message = produce.decode(frame, pos, request.version)
    if message.transactional_id is not None:
        verification = context.verifier.begin(message, request.version)
        if verification is not None:
            if verification.verify_at_once():
                return _append_all(context, request, message, verification)
            return _verify_first(context, request, message, verification)
    return _append_all(context, request, message)


def _verify_first(
    context: Context, request: Request, message: produce.ProduceRequest, verification: Verification
) -> Pending:
    """A transaction begins in a partition: its coordinator has a word in that. The connection waits, so that what
    comes next is not appended before."""
    kept = message._replace(
        topics=[
            (topic, [(index, None if data is None else memoryview(bytearray(data))) for index, data in partitions])
            for topic, partitions in message.topics
        ]
    )
    pending = Pending()
    context.runtime.spawn(_append_verified(context, request, kept, verification, pending), name="Produce")
    return pending


async def _append_verified(
    context: Context, request: Request, message: produce.ProduceRequest, verification: Verification, pending: Pending
) -> None:
    reply: Reply | Pending = None
    try:
        await verification.verify()
        reply = _append_all(context, request, message, verification, pending)
    except BadFrame as failure:
        request.connection.close(str(failure))
    except Exception as failure:
        log.error("Produce failed", exc_info=failure)
        request.connection.close("Produce failed")
    if reply is not pending:
        assert not isinstance(reply, Pending)
        pending.resolve(reply)


def _append_all(
    context: Context,
    request: Request,
    message: produce.ProduceRequest,
    verification: Verification | None = None,
    pending: Pending | None = None,
) -> Reply | Pending:
    acks = message.acks
    now_ms = context.runtime.wall_ms()
    answers: list[Produced] = []
    parked = Parked(context, request, answers)
    for topic, partitions in message.topics:
        results: list[PartitionProduced] = []
        for index, records in partitions:
            try:
                if acks not in (-1, 0, 1):
                    raise Refused(ErrorCode.invalid_required_acks, f"acks={acks}: it can be 0, 1 or -1 (all)")
                if records is None:
                    raise Refused(ErrorCode.invalid_record, "there are no records")
                partition = context.replica_manager.find(topic, index)
                guard = None if verification is None else _guard(verification, partition, records)
                appended = partition.append(records, acks, now_ms, guard)
                traffic = context.traffic[partition.topic]
                traffic.bytes_in += len(records)
                traffic.records_in += appended.next_offset - appended.base_offset
                if acks == ACKS_ALL and partition.high_watermark < appended.next_offset:
                    parked.await_committed(partition, appended.next_offset, len(answers), len(results))
                results.append(
                    PartitionProduced(
                        index, 0, appended.base_offset, appended.log_append_time_ms, partition.log.log_start
                    )
                )
            except Refused as refused:
                results.append(_refused(context, request, topic, index, refused))
        answers.append((topic, results))
    if acks == 0:
        for _, results in answers:
            for result in results:
                if result.error:
                    raise BadFrame(f"Produce with acks=0 failed: {ErrorCode(result.error).name}")
        return None
    if parked.awaited:
        return parked.park(message.timeout_ms, pending)
    return request.frame(produce.encode_response(request.version, answers))


def _guard(verification: Verification, partition: Partition, records: memoryview) -> Guard | None:
    try:
        return verification.guard(partition)
    except Refused as refused:
        partition.turn_away(records, refused.code)
        raise


class Parked:
    """A request whose records are in the leader's log, and not yet in those of all others that are in sync.

    The connection goes on meanwhile: the next request has the next offsets, and its answer leaves after this one.
    """

    __slots__ = ("_answers", "_context", "_pending", "_request", "_timer", "awaited")

    def __init__(self, context: Context, request: Request, answers: list[Produced]) -> None:
        self._context = context
        self._request = request
        self._answers = answers
        self._pending: Pending | None = None
        self._timer: Handle | None = None
        self.awaited: list[tuple[Partition, int, int]] = []
        """Partitions that have not committed their part, and where its answer stands."""

    def await_committed(self, partition: Partition, offset: int, topic: int, place: int) -> None:
        self.awaited.append((partition, topic, place))
        partition.await_committed(offset, self)

    def park(self, timeout_ms: int, pending: Pending | None = None) -> Pending:
        self._pending = pending or Pending(overlaps=True)
        runtime = self._context.runtime
        self._timer = runtime.call_at(runtime.now() + timeout_ms / 1000, self._expire)
        return self._pending

    def committed(self, partition: Partition) -> None:
        # In sync when it was taken, and not any more: it is committed all the same, but the producer should know.
        self._settle(partition, 0 if partition.enough_in_sync else ErrorCode.not_enough_replicas_after_append)

    def lost(self, partition: Partition) -> None:
        self._settle(partition, ErrorCode.not_leader_or_follower)

    def _settle(self, partition: Partition, error: int) -> None:
        for entry in self.awaited:
            if entry[0] is partition:
                self.awaited.remove(entry)
                if error:
                    self._fail(entry, error)
                break
        if not self.awaited:
            self._finish()

    def _fail(self, entry: tuple[Partition, int, int], error: int) -> None:
        partition, topic, place = entry
        self._request.count_error(error)
        leader_id = leader_epoch = -1
        if error == ErrorCode.not_leader_or_follower:
            leader_id, leader_epoch = partition.leader_id, partition.leader_epoch
        results = self._answers[topic][1]
        results[place] = PartitionProduced(
            results[place].partition, error, leader_id=leader_id, leader_epoch=leader_epoch
        )

    def _expire(self) -> None:
        for entry in self.awaited:
            self._fail(entry, ErrorCode.request_timed_out)
            entry[0].give_up(self)
        self.awaited.clear()
        self._finish()

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        assert self._pending is not None
        self._pending.resolve(self._request.frame(produce.encode_response(self._request.version, self._answers)))


def _refused(
    context: Context, request: Request, topic: produce.Topic, index: int, refused: Refused
) -> PartitionProduced:
    request.count_error(refused.code)
    leader_id = leader_epoch = -1
    if refused.code == ErrorCode.not_leader_or_follower:
        leader_id, leader_epoch = context.replica_manager.leader_of(topic, index)
    return PartitionProduced(
        index,
        refused.code,
        message=refused.message,
        leader_id=leader_id,
        leader_epoch=leader_epoch,
        record_errors=refused.record_errors if isinstance(refused, RecordsRefused) else (),
    )
