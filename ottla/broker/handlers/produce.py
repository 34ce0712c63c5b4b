"""Produce: append to the leader's log, and answer when `acks` is satisfied (KIP-98, KIP-890).

acks=0    no answer; an error closes the connection, which is all such a client can notice
acks=1    answered when the leader has it
acks=all  answered when every in-sync replica has it
"""

from __future__ import annotations

import logging

from ottla.broker.context import Context
from ottla.broker.dispatch import RawHandler, Request, serves_raw
from ottla.broker.traffic import TopicTraffic
from ottla.coordinator.transaction_verification import TransactionVerifier, Verification
from ottla.errors import BadFrame, ErrorCode, Refused
from ottla.log.transactions import Guard
from ottla.net.server import Pending, Reply
from ottla.replication.partition import ACKS_ALL, Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.replication.waits import DelayedOperations
from ottla.runtime import Runtime
from ottla.wire import produce
from ottla.wire.apis import PRODUCE
from ottla.wire.produce import PartitionProduced
from ottla.wire.records import RecordsRefused

log = logging.getLogger("ottla.broker.produce")

Produced = tuple[produce.Topic, list[PartitionProduced]]


@serves_raw(PRODUCE)
def produce_handler(context: Context) -> RawHandler:
    handler = ProduceHandler(
        context.runtime, context.replica_manager, context.verifier, context.delayed, context.traffic
    )
    return handler.handle


class ProduceHandler:
    def __init__(
        self,
        runtime: Runtime,
        replica_manager: ReplicaManager,
        verifier: TransactionVerifier,
        delayed: DelayedOperations,
        traffic: TopicTraffic,
    ) -> None:
        self._runtime = runtime
        self._replica_manager = replica_manager
        self._verifier = verifier
        self._delayed = delayed
        self._traffic = traffic

    def handle(self, request: Request, frame: memoryview, pos: int) -> Reply | Pending:
        """Fast path for one batch for one partition, which is nearly every request: a third of the work of the general
        case."""
        version = request.version
        one = produce.decode_one(frame, pos, version) if version >= produce.FLEXIBLE_FROM else None
        if one is None or one.acks not in (-1, 1):
            return self._handle_general(request, produce.decode(frame, pos, version))
        try:
            partition = self._replica_manager.find(one.topic, one.partition)
            appended = partition.append(one.records, one.acks, self._runtime.wall_ms())
        except Refused as refused:
            results = [self._refused(request, one.topic, one.partition, refused)]
            return request.frame(produce.encode_response(version, [(one.topic, results)]))
        base_offset, log_append_time_ms, next_offset, log_start = appended
        traffic = self._traffic[partition.topic]
        traffic.bytes_in += len(one.records)
        traffic.records_in += next_offset - base_offset
        if one.acks == ACKS_ALL and partition.high_watermark < next_offset:
            produced = PartitionProduced(one.partition, 0, base_offset, log_append_time_ms, log_start)
            delayed = DelayedProduce(self._delayed, request, [(one.topic, [produced])])
            delayed.await_committed(partition, next_offset, 0, 0)
            return self._delay(delayed, one.timeout_ms)
        return request.frame(
            produce.encode_one(one.topic_bytes, one.partition, base_offset, log_append_time_ms, log_start)
        )

    def _handle_general(self, request: Request, message: produce.ProduceRequest) -> Reply | Pending:
        if message.transactional_id is None:
            return self._produce(request, message)
        verification = self._verifier.begin(message, request.version)
        if verification is not None and not verification.verify_at_once():
            return self._verify_first(request, message, verification)
        return self._produce(request, message, verification)

    def _produce(
        self,
        request: Request,
        message: produce.ProduceRequest,
        verification: Verification | None = None,
        pending: Pending | None = None,
    ) -> Reply | Pending:
        acks = message.acks
        now_ms = self._runtime.wall_ms()
        answers: list[Produced] = []
        delayed = DelayedProduce(self._delayed, request, answers)
        for topic, partitions in message.topics:
            results: list[PartitionProduced] = []
            for index, records in partitions:
                try:
                    if acks not in (-1, 0, 1):
                        raise Refused(ErrorCode.invalid_required_acks, f"acks={acks}: it can be 0, 1 or -1 (all)")
                    if records is None:
                        raise Refused(ErrorCode.invalid_record, "there are no records")
                    partition = self._replica_manager.find(topic, index)
                    guard = None if verification is None else _guard(verification, partition, records)
                    base_offset, log_append_time_ms, next_offset, log_start = partition.append(
                        records, acks, now_ms, guard
                    )
                    traffic = self._traffic[partition.topic]
                    traffic.bytes_in += len(records)
                    traffic.records_in += next_offset - base_offset
                    if acks == ACKS_ALL and partition.high_watermark < next_offset:
                        delayed.await_committed(partition, next_offset, len(answers), len(results))
                    results.append(PartitionProduced(index, 0, base_offset, log_append_time_ms, log_start))
                except Refused as refused:
                    results.append(self._refused(request, topic, index, refused))
            answers.append((topic, results))
        if acks == 0:
            for _, results in answers:
                for result in results:
                    if result.error:
                        raise BadFrame(f"Produce with acks=0 failed: {ErrorCode(result.error).name}")
            return None
        if delayed.awaited:
            return self._delay(delayed, message.timeout_ms, pending)
        return request.frame(produce.encode_response(request.version, answers))

    def _delay(self, delayed: DelayedProduce, timeout_ms: int, pending: Pending | None = None) -> Pending:
        """Delay the response. The connection continues: the next request gets the next offsets, and its response is
        sent after this one."""
        delayed.pending = pending or Pending(overlaps=True)
        self._delayed.add(delayed, self._runtime.now() + timeout_ms / 1000)
        return delayed.pending

    def _verify_first(self, request: Request, message: produce.ProduceRequest, verification: Verification) -> Pending:
        """The first batch of a transaction in a partition: verify it with the coordinator. The connection waits, so
        that later batches are not appended before."""
        kept = message._replace(
            topics=[
                (topic, [(index, None if data is None else memoryview(bytearray(data))) for index, data in partitions])
                for topic, partitions in message.topics
            ]
        )
        pending = Pending()
        self._runtime.spawn(self._produce_verified(request, kept, verification, pending), name="Produce")
        return pending

    async def _produce_verified(
        self, request: Request, message: produce.ProduceRequest, verification: Verification, pending: Pending
    ) -> None:
        reply: Reply | Pending = None
        try:
            await verification.verify()
            reply = self._produce(request, message, verification, pending)
        except BadFrame as failure:
            request.connection.close(str(failure))
        except Exception as failure:
            log.error("Produce failed", exc_info=failure)
            request.connection.close("Produce failed")
        if reply is not pending:
            assert not isinstance(reply, Pending)
            pending.resolve(reply)

    def _refused(self, request: Request, topic: produce.Topic, index: int, refused: Refused) -> PartitionProduced:
        request.count_error(refused.code)
        leader_id = leader_epoch = -1
        if refused.code == ErrorCode.not_leader_or_follower:
            leader_id, leader_epoch = self._replica_manager.leader_of(topic, index)
        return PartitionProduced(
            index,
            refused.code,
            message=refused.message,
            leader_id=leader_id,
            leader_epoch=leader_epoch,
            record_errors=refused.record_errors if isinstance(refused, RecordsRefused) else (),
        )


def _guard(verification: Verification, partition: Partition, records: memoryview) -> Guard | None:
    try:
        return verification.guard(partition)
    except Refused as refused:
        partition.refuse(records, refused)
        raise


class DelayedProduce:
    """A Produce with acks=all whose records are in the leader's log, and not yet committed."""

    __slots__ = ("_answers", "_delayed", "_request", "awaited", "finished", "pending")

    def __init__(self, delayed: DelayedOperations, request: Request, answers: list[Produced]) -> None:
        self._delayed = delayed
        self._request = request
        self._answers = answers
        self.pending: Pending
        self.awaited: list[tuple[Partition, int, int]] = []
        """Partitions whose records are not committed yet, and where their result is in the response."""
        self.finished = False

    def await_committed(self, partition: Partition, offset: int, topic: int, index: int) -> None:
        self.awaited.append((partition, topic, index))
        partition.await_committed(offset, self)

    def on_committed(self, partition: Partition, error: int = 0) -> None:
        if not error and not partition.enough_in_sync:
            # The ISR has become too small since the append: the record is committed, but the producer gets the error.
            error = ErrorCode.not_enough_replicas_after_append
        for entry in self.awaited:
            if entry[0] is partition:
                self.awaited.remove(entry)
                if error:
                    self._fail(entry, error)
                break
        if not self.awaited and not self.finished:
            self._delayed.finish(self)
            self._delayed.mark(self)

    def on_leadership_lost(self, partition: Partition) -> None:
        self.on_committed(partition, ErrorCode.not_leader_or_follower)

    def _fail(self, entry: tuple[Partition, int, int], error: int) -> None:
        partition, topic, index = entry
        self._request.count_error(error)
        leader_id = leader_epoch = -1
        if error == ErrorCode.not_leader_or_follower:
            leader_id, leader_epoch = partition.leader_id, partition.leader_epoch
        results = self._answers[topic][1]
        results[index] = PartitionProduced(
            results[index].partition, error, leader_id=leader_id, leader_epoch=leader_epoch
        )

    def expire(self) -> None:
        for entry in self.awaited:
            self._fail(entry, ErrorCode.request_timed_out)
            entry[0].give_up(self)
        self.awaited.clear()
        self._delayed.mark(self)

    def complete(self) -> None:
        self.pending.resolve(self._request.frame(produce.encode_response(self._request.version, self._answers)))
