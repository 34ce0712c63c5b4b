"""Batches of one partition in the producer: queue, sequence numbers, and the order of retries.

    queued ──numbered, sent──► in flight ──acknowledged──► gone
                                 │   ▲
                        refused, │   │ sent again, in order
                        or lost  ▼   │
                                waiting

An idempotent producer numbers records per partition (KIP-98), and the broker takes a batch only after the one before:
so a retry is neither lost, doubled nor overtaken. The numbers belong to an identity: producer id and epoch. Rules, and
what breaks without them:
- What has a number keeps it until its outcome is known. A batch may be in the log although its answer never came.
- In flight are only batches whose predecessors went to the same broker before them, and at most five: as many as the
  broker remembers.
- Until the first batch under an identity is acknowledged it is alone in flight. A log that does not know the producer
  takes any number for the first, so if the first is refused, the second would overtake it.
- When the broker misses a predecessor that the client holds for acknowledged (its state was lost), or that the client
  has given up, the rest is renumbered under the next epoch (KIP-360), once everything in flight has been answered.
- Behind a batch that was given up with an unknown outcome, those with numbers are tried with their old ones: if they
  are taken, it was in the log, and nothing may be written twice; if they are refused, it was not, and nor were they.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from ottla.errors import ErrorCode
from ottla.wire.batch import HEADER_BYTES, NO_PRODUCER, SEQUENCE_MAX
from ottla.wire.records import Record, build_batch

BATCHES_IN_FLIGHT_MAX: Final = 5
RECORD_OVERHEAD_BYTES: Final = 14
"""Lengths, deltas and attributes of a record in a batch, seldom more."""
HEADER_OVERHEAD_BYTES: Final = 4
NO_SEQUENCE: Final = -1
PRODUCER_EPOCH_MAX: Final = 2**15 - 1


MISNUMBERED: Final = frozenset(
    {ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id, ErrorCode.invalid_producer_epoch}
)

new_record: Final[Callable[[type[Record], tuple[object, ...]], Record]] = tuple.__new__
"""Makes a record without the detour over its own constructor: one or two are made for everything that is sent."""


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int = NO_PRODUCER
    epoch: int = -1

    def next_epoch(self) -> ProducerIdAndEpoch:
        """An idempotent producer raises its epoch by itself; after the last one it needs another id."""
        return self._replace(epoch=self.epoch + 1) if self.epoch < PRODUCER_EPOCH_MAX else NO_ID


NO_ID: Final = ProducerIdAndEpoch()


class BatchState(Enum):
    QUEUED = "queued"
    IN_FLIGHT = "in flight"
    WAITING = "waiting"


def size_of(record: Record) -> int:
    """About as many bytes as the record takes in a batch, never far less."""
    _, _, key, value, headers = record
    size = RECORD_OVERHEAD_BYTES
    if key:
        size += len(key)
    if value:
        size += len(value)
    if headers:
        for name, content in headers:
            size += HEADER_OVERHEAD_BYTES + len(name) + (len(content) if content is not None else 0)
    return size


@dataclass(slots=True, eq=False)
class Batch:
    """Records that are written together or not at all."""

    serial: int
    """Increases from batch to batch over all partitions; the parts of a split batch have their own."""
    created_at: float
    deadline: float
    records: list[Record] = field(default_factory=list)
    tokens: list[object] = field(default_factory=list)
    size: int = HEADER_BYTES
    state: BatchState = BatchState.QUEUED
    attempts: int = 0
    identity: ProducerIdAndEpoch = NO_ID
    base_sequence: int = NO_SEQUENCE
    node_id: int = -1
    """The broker it was sent to last."""
    _data: bytes | None = None
    given_up: bool = False
    """It was reported as failed; only its outcome is still of interest."""
    doubtful: bool = False
    """No response came, or an error that leaves it open: the batch may be in the log, and only a retry shows it."""
    halved_in_doubt: bool = False
    """It was part of such a batch, which may be in the log as a whole if the log took larger ones then."""

    def __len__(self) -> int:
        return len(self.records)

    def add(self, record: Record, token: object, size: int) -> None:
        """On the wire the offset of a record is its index in the batch."""
        self.records.append(record)
        self.tokens.append(token)
        self.size += size

    def encoded(self, codec: str, level: int | None, transactional: bool) -> bytes:
        """As it goes over the wire; kept, because an attempt must equal the one before it."""
        if self._data is None:
            self._data = self._build(
                codec=codec,
                level=level,
                producer_id=self.identity.producer_id,
                producer_epoch=self.identity.epoch,
                base_sequence=self.base_sequence,
                transactional=transactional,
            )
        return self._data

    def _build(self, **how: Any) -> bytes:
        return build_batch(self.records, by_index=True, **how)

    def depart(self, node_id: int) -> None:
        self.state = BatchState.IN_FLIGHT
        self.node_id = node_id
        self.attempts += 1

    def number(self, identity: ProducerIdAndEpoch, sequence: int) -> None:
        self.identity = identity
        self.base_sequence = sequence
        self._data = None

    def halves(self) -> list[Batch]:
        """The same records as two batches, each about half the size."""
        assert len(self.records) > 1, "one record cannot be split"
        parts = [Batch(self.serial, self.created_at, self.deadline) for _ in range(2)]
        for record, token in zip(self.records, self.tokens, strict=True):
            size = size_of(record)
            first_half = not parts[0].records or (parts[0].size + size) * 2 <= self.size + HEADER_BYTES
            part = parts[0] if first_half and not parts[1].records else parts[1]
            part.add(record, token, size)
        if not parts[1].records:  # the last record is the large one
            record, token = parts[0].records.pop(), parts[0].tokens.pop()
            size = size_of(record)
            parts[0].size -= size
            parts[1].add(record, token, size)
        return parts


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """All batches of one partition that are not done."""

    topic: str
    partition: int
    queued: deque[Batch] = field(default_factory=deque)
    closed: int = 0
    """How many of the queued take no more records; only the last may be open."""
    sent: deque[Batch] = field(default_factory=deque)
    """Those with a number (or, without numbers, those sent once), in their order."""
    identity: ProducerIdAndEpoch = NO_ID
    next_sequence: int = 0
    acknowledged: bool = False
    """Something was acknowledged under this identity: the broker knows us."""
    gap: bool = False
    """A batch was given up: maybe the log has it, maybe not."""
    renumber: bool = False
    """The broker misses batches that were acknowledged: renumber when nothing is in flight."""
    muted_until: float = 0.0
    last_error: ErrorCode = ErrorCode.none
    """The last error of the broker since the last acknowledgement; `last_message` is its text."""
    last_message: str | None = None

    def __iter__(self) -> Iterator[Batch]:
        yield from self.sent
        yield from self.queued

    @property
    def idle(self) -> bool:
        return not self.sent and not self.queued

    @property
    def in_flight(self) -> int:
        return sum(batch.state is BatchState.IN_FLIGHT for batch in self.sent)

    @property
    def deadline(self) -> float | None:
        """When the first batch is given up."""
        return next((batch.deadline for batch in self if not batch.given_up), None)

    # In: the end of the queue.

    def open_batch(self) -> Batch | None:
        return self.queued[-1] if len(self.queued) > self.closed else None

    def close_batch(self) -> None:
        self.closed = len(self.queued)

    def ripe(self, now: float, linger_s: float, *, at_once: bool) -> bool:
        """Whether the first queued batch should leave."""
        if not self.queued:
            return False
        return at_once or self.closed > 0 or now >= self.queued[0].created_at + linger_s

    # Out: its beginning.

    def next_retry(self, node_id: int) -> Batch | None:
        """The first batch to be sent again; None if there is none, or if it must wait for those before it."""
        for batch in self.sent:
            if batch.state is BatchState.WAITING:
                return batch
            if batch.node_id != node_id:
                return None
        return None

    def may_send(self, node_id: int, in_flight_max: int) -> bool:
        """Whether one more batch may go to this broker without overtaking or outnumbering others."""
        limit = in_flight_max if self.acknowledged else 1
        in_flight = 0
        for batch in self.sent:
            if batch.state is BatchState.IN_FLIGHT:
                in_flight += 1
                if batch.node_id != node_id:
                    return False
        return in_flight < limit and not self.renumber

    def take(self) -> Batch:
        """The first queued batch, to be numbered and sent."""
        batch = self.queued.popleft()
        self.closed = max(0, self.closed - 1)
        if self.identity is not NO_ID:
            batch.number(self.identity, self.next_sequence)
            self.next_sequence = (self.next_sequence + len(batch)) & SEQUENCE_MAX
        self.sent.append(batch)
        return batch

    def adopt(self, identity: ProducerIdAndEpoch) -> None:
        """Continue under another producer id and epoch, with sequence numbers from 0 for all numbered batches."""
        assert not self.in_flight, "what is in flight keeps its number"
        self.identity = identity
        self.acknowledged = self.gap = self.renumber = False
        self.next_sequence = 0
        for batch in self.sent:
            batch.number(identity, self.next_sequence)
            self.next_sequence = (self.next_sequence + len(batch)) & SEQUENCE_MAX

    # Outcomes.

    def is_first(self, batch: Batch) -> bool:
        return self.sent[0] is batch

    def acknowledge(self, batch: Batch) -> None:
        """The broker has it; then it has all before it under the same identity."""
        self.sent.remove(batch)
        self.acknowledged = True
        self.gap = False
        self.last_error = ErrorCode.none

    def refused(self, code: ErrorCode, message: str | None) -> None:
        """An out-of-order sequence follows from an earlier error, if there was one: return that one."""
        if code not in MISNUMBERED or self.last_error is ErrorCode.none:
            self.last_error, self.last_message = code, message

    def drop(self, batch: Batch) -> None:
        """It is given up, and no answer to it is outstanding."""
        if batch.state is BatchState.QUEUED:
            self.closed = max(0, self.closed - 1)
            self.queued.remove(batch)
            return
        last = self.sent[-1] is batch
        self.sent.remove(batch)
        if self.identity is NO_ID:
            return
        if last and not batch.doubtful:
            # Surely not in the log, and nothing has a number behind it.
            self.next_sequence = batch.base_sequence
        else:
            self.gap = True

    def split(self, batch: Batch) -> None:
        """Two batches in its stead, which share its sequence numbers."""
        at = self.sent.index(batch)
        halves = batch.halves()
        del self.sent[at]
        sequence = batch.base_sequence
        for index, half in enumerate(halves, at):
            half.state = BatchState.WAITING
            half.attempts = batch.attempts
            half.doubtful = half.halved_in_doubt = batch.doubtful
            if batch.identity is not NO_ID:
                half.number(batch.identity, sequence)
                sequence = (sequence + len(half)) & SEQUENCE_MAX
            self.sent.insert(index, half)
