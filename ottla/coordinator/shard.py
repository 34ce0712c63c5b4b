"""Coordinator shard: one partition of an internal topic that this broker leads, and the state machine it drives.

    LOADING ---the whole log was replayed---> ACTIVE ---leadership lost---> GONE
        +------the log cannot be read-------> FAILED ---leadership lost---> GONE

An active shard applies decisions: it appends their records as one batch, replays them into the machine, and sends the
replies when the high watermark has passed the batch. A decision without records may depend on records that are not
committed yet, so its replies wait for them. With one replica in sync all this happens at once.

`loader` replays a log into a machine.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from ottla.coordinator import log_batch
from ottla.coordinator.decision import Decision, LogRecord, ProducerIdAndEpoch, Reply, ReplyTo
from ottla.errors import ErrorCode, Refused
from ottla.replication.partition import Partition
from ottla.replication.waits import Marks
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


class _Held(NamedTuple):
    """Replies that wait for the high watermark."""

    offset: int
    until: float
    replies: Sequence[tuple[ReplyTo, Reply]]


class Shard(Generic[M]):
    def __init__(
        self,
        partition: Partition,
        machine: M,
        codec: Codec,
        send_reply: SendReply,
        delayed: Marks,
        *,
        held_s_max: float,
        compression: str = batch.CODECS[0],
    ) -> None:
        self.partition = partition
        self.machine = machine
        self.phase = Phase.LOADING
        self._codec = codec
        self._send_reply = send_reply
        self._delayed = delayed
        self._marked = False
        self._held: deque[_Held] = deque()
        self._held_s_max = held_s_max
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
        self.partition.high_watermark_listeners[self] = None
        for decision in self.machine.settle(now, now_ms):
            self.apply(decision, now, now_ms)

    def unload(self) -> None:
        """Another broker leads: all waiting requests get NOT_COORDINATOR."""
        if self.phase is Phase.ACTIVE:
            self.partition.high_watermark_listeners.pop(self, None)
        self.phase = Phase.GONE
        gone = Refused(ErrorCode.not_coordinator)
        for held in self._held:
            self._refuse(held.replies, gone)
        self._held.clear()
        for reply_to in list(self.machine.pending_replies()):
            self._send_reply(reply_to, gone)

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
                self._refuse(replies, Refused(_APPEND_ERRORS.get(refused.code, refused.code), refused.message))
                return
            if pre_encoded is None:
                replay = self.machine.replay
                for key, value in records:
                    replay(key, value, producer)
            else:
                pre_encoded.replay_into(self.machine)
        if partition.high_watermark >= partition.log_end:
            for reply_to, reply in replies:
                self._send_reply(reply_to, reply)
        elif replies:
            self._held.append(_Held(partition.log_end, now + self._held_s_max, replies))
        if records:
            for consequence in self.machine.settle(now, now_ms):
                self.apply(consequence, now, now_ms)

    def _refuse(self, replies: Sequence[tuple[ReplyTo, Reply]], refused: Refused) -> None:
        for reply_to, _ in replies:
            self._send_reply(reply_to, refused)

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
        partition.append_internal(data, header, self.leader_epoch, now_ms)

    # Waiting.

    @property
    def deadline(self) -> float | None:
        machine = self.machine.deadline
        if not self._held:
            return machine
        held = self._held[0].until
        return held if machine is None else min(machine, held)

    def expire(self, now: float, now_ms: int) -> None:
        for decision in self.machine.expire(now, now_ms):
            self.apply(decision, now, now_ms)
        while self._held and self._held[0].until <= now:
            self._refuse(self._held.popleft().replies, Refused(ErrorCode.coordinator_not_available))

    def on_high_watermark(self, size: int) -> None:
        if self._held and self._held[0].offset <= self.partition.high_watermark and not self._marked:
            self._marked = True
            self._delayed.mark(self)

    def complete(self) -> None:
        """The high watermark has passed what replies wait for."""
        self._marked = False
        while self._held and self._held[0].offset <= self.partition.high_watermark:
            for reply_to, reply in self._held.popleft().replies:
                self._send_reply(reply_to, reply)
