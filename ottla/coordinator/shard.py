"""Coordinator shard: one partition of an internal topic that this broker leads, and the state machine it drives.

    LOADING ---the whole log was replayed---> ACTIVE ---leadership lost---> GONE
        +------the log cannot be read-------> FAILED ---leadership lost---> GONE

An active shard applies decisions: it appends their records as one batch, replays them into the machine, and sends the
replies when the high watermark has passed the batch (`DelayedReplies`). A decision without records may depend on
records that are not committed yet, so its replies wait for them. With one replica in sync all this happens at once.

`loader` replays a log into a machine.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from ottla.coordinator import log_batch
from ottla.coordinator.decision import Decision, LogRecord, ProducerIdAndEpoch, Reply, ReplyTo
from ottla.errors import ErrorCode, Refused
from ottla.replication.partition import ACKS_ALL, COORDINATOR, Partition
from ottla.replication.waits import DelayedOperations
from ottla.wire import batch, records
from ottla.wire.batch import BatchHeader

BATCH_BYTES_MAX = 64 * 1024 * 1024
"""Of one decision: far more than any group needs, and small enough to be loaded."""


class Machine(Protocol):
    @property
    def deadline(self) -> float | None: ...

    def replay(self, key: object, value: object | None, producer: ProducerIdAndEpoch | None = None) -> None: ...

    def replay_end(self, producer_id: int, *, committed: bool) -> None: ...

    def settle(self, now: float, now_ms: int) -> Iterator[Decision]: ...

    def expire(self, now: float, now_ms: int) -> Iterator[Decision]: ...

    def pending_replies(self) -> Iterator[ReplyTo]: ...


class Codec(Protocol):
    """How the records of a topic become bytes."""

    def encode_key(self, key: tuple[object, ...]) -> bytes: ...

    def encode_value(self, value: object) -> bytes: ...

    def decode_key(self, data: bytes) -> object | None:
        """None: an unknown type of record, which is skipped."""

    def decode_value(self, key: object, data: bytes) -> object: ...


M = TypeVar("M", bound=Machine)
SendReply = Callable[[ReplyTo, Reply], None]

# Errors of the append, and the errors that a coordinator answers instead (as Kafka does).
_APPEND_ERRORS = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
}


class Phase(enum.Enum):
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    GONE = "gone"


class Shard(Generic[M]):
    def __init__(
        self,
        partition: Partition,
        machine: M,
        codec: Codec,
        send_reply: SendReply,
        delayed: DelayedOperations,
        *,
        commit_timeout_s: float,
        compression: str = batch.CODECS[0],
    ) -> None:
        self.partition = partition
        self.machine = machine
        self.phase = Phase.LOADING
        self._codec = codec
        self.send_reply = send_reply
        self._delayed = delayed
        self.delayed_replies: dict[DelayedReplies, None] = {}
        self._commit_timeout_s = commit_timeout_s
        self._compression = compression
        self.leader_epoch = partition.leader_epoch

    @property
    def leads(self) -> bool:
        """Whether this broker leads in the leader epoch of this shard: in a later one, others may have written
        meanwhile."""
        return self.partition.leads and self.partition.leader_epoch == self.leader_epoch

    def check_active(self) -> None:
        if self.phase is Phase.LOADING:
            raise Refused(ErrorCode.coordinator_load_in_progress)
        if self.phase is Phase.FAILED:
            raise Refused(ErrorCode.coordinator_not_available)
        if self.phase is Phase.GONE:
            raise Refused(ErrorCode.not_coordinator)

    def activate(self, now: float, now_ms: int) -> None:
        """Everything was replayed."""
        self.phase = Phase.ACTIVE
        for decision in self.machine.settle(now, now_ms):
            self.apply(decision, now, now_ms)

    def unload(self) -> None:
        """Another broker leads: all waiting requests get NOT_COORDINATOR."""
        self.phase = Phase.GONE
        gone = Refused(ErrorCode.not_coordinator)
        for delayed in list(self.delayed_replies):
            delayed.refuse(gone)
        for reply_to in list(self.machine.pending_replies()):
            self.send_reply(reply_to, gone)

    # Deciding.

    def apply(self, decision: Decision, now: float, now_ms: int) -> None:
        partition = self.partition
        records, replies, producer, pre_encoded = decision
        if records or pre_encoded is not None:
            try:
                if pre_encoded is None:
                    self._append(*self._encoded(records, producer, now_ms), now_ms)
                else:
                    self._append(pre_encoded.data, pre_encoded.header, now_ms)
            except Refused as refused:
                failed = Refused(_APPEND_ERRORS.get(refused.code, refused.code), refused.message)
                for reply_to, _ in replies:
                    self.send_reply(reply_to, failed)
                return
            if pre_encoded is None:
                replay = self.machine.replay
                for key, value in records:
                    replay(key, value, producer)
            else:
                pre_encoded.replay_into(self.machine)
        if partition.high_watermark >= partition.log_end:
            for reply_to, reply in replies:
                self.send_reply(reply_to, reply)
        elif replies:
            delayed = DelayedReplies(self, self._delayed, replies)
            self.delayed_replies[delayed] = None
            partition.await_committed(partition.log_end, delayed)
            self._delayed.add(delayed, now + self._commit_timeout_s)
        if records:
            for consequence in self.machine.settle(now, now_ms):
                self.apply(consequence, now, now_ms)

    def _encoded(
        self, changes: Sequence[LogRecord], producer: ProducerIdAndEpoch | None, now_ms: int
    ) -> tuple[bytearray, BatchHeader]:
        encode_key, encode_value = self._codec.encode_key, self._codec.encode_value
        return log_batch.build(
            [(encode_key(key), None if value is None else encode_value(value)) for key, value in changes],
            now_ms,
            producer,
        )

    def _append(self, data: bytearray, header: BatchHeader, now_ms: int) -> None:
        partition = self.partition
        if len(data) > BATCH_BYTES_MAX:
            raise Refused(ErrorCode.record_list_too_large)
        codec = partition.policy.codec or self._compression
        if codec != "none" and not header.is_control:  # markers are never compressed
            data = bytearray(records.recompress(data, codec, bytes_max=BATCH_BYTES_MAX))
            header = batch.read_header(data)
        partition.append(
            memoryview(data), ACKS_ALL, now_ms, origin=COORDINATOR, header=header, leader_epoch=self.leader_epoch
        )

    def expire(self, now: float, now_ms: int) -> None:
        for decision in self.machine.expire(now, now_ms):
            self.apply(decision, now, now_ms)


class DelayedReplies:
    """The replies of one decision, until all records that it depends on are committed."""

    __slots__ = ("_delayed", "_replies", "_shard", "finished")

    def __init__(self, shard: Shard[Any], delayed: DelayedOperations, replies: Sequence[tuple[ReplyTo, Reply]]) -> None:
        self._shard = shard
        self._delayed = delayed
        self._replies = replies
        self.finished = False

    def on_committed(self, partition: Partition) -> None:
        if not self.finished:
            self._delayed.finish(self)
            del self._shard.delayed_replies[self]
            for reply_to, reply in self._replies:
                self._shard.send_reply(reply_to, reply)

    def on_leadership_lost(self, partition: Partition) -> None:
        self.refuse(Refused(ErrorCode.not_coordinator))

    def expire(self) -> None:
        self._shard.partition.give_up(self)
        self.refuse(Refused(ErrorCode.coordinator_not_available))

    def refuse(self, refused: Refused) -> None:
        if self in self._shard.delayed_replies:
            del self._shard.delayed_replies[self]
            if not self.finished:
                self._delayed.finish(self)
            for reply_to, _ in self._replies:
                self._shard.send_reply(reply_to, refused)
