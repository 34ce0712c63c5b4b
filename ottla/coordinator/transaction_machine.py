"""The state machine of one shard of `__transaction_state`: its transactional ids.

Requests come from producers (init, add, end), from partition leaders (verify), and from the transaction coordinator,
which writes the markers and reports when all are written (complete). Durable is one value for each transactional id,
changed by `replay` only; the transitions are in `transaction_steps`.

A transaction is decided when its prepared value is committed. `settle` finds it prepared, right after that or after
loading under another coordinator, and passes its markers to the coordinator as a reply to `Prepared`, which like every
reply is sent when all records before it are committed. If that takes too long, the coordinator asks again (`resume`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import count
from typing import NamedTuple

from ottla.coordinator import transaction_steps as steps
from ottla.coordinator.deadlines import Deadlines
from ottla.coordinator.decision import NOTHING, Decision, LogRecord, ProducerIdAndEpoch, ReplyTo, answer
from ottla.coordinator.transaction_records import TransactionKey, TransactionState, TransactionValue
from ottla.coordinator.transaction_steps import PREPARED, ProducerIdNeeded
from ottla.errors import ErrorCode, Refused
from ottla.wire.topic_partition import TopicPartition

ABORT_RETRY_S = 1.0
"""If the abort of a timed out transaction could not be appended, it is retried after this time."""


class TransactionLimits(NamedTuple):
    timeout_ms_max: int
    id_expiration_ms: int


class Prepared(NamedTuple):
    """A reply address: a transaction that is decided, and waits for its markers."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    number: int = 0
    """Unique within this machine: under version 1 the next transaction has the same producer id and epoch, and a late
    `complete` of this one must not complete the next."""


class Markers(NamedTuple):
    """The markers of a prepared transaction."""

    committed: bool
    partitions: tuple[TopicPartition, ...]
    version: int


class NeedsProducerId:
    """Reply: ask again with a new producer id."""


NEEDS_PRODUCER_ID = NeedsProducerId()

Codes = dict[TopicPartition, ErrorCode]


class TransactionMachine:
    def __init__(self, limits: Callable[[], TransactionLimits]) -> None:
        self._limits = limits
        self._values: dict[str, TransactionValue] = {}
        self._unsettled: dict[str, None] = {}
        self._tickets: dict[str, Prepared] = {}  # of prepared transactions
        self._numbers = count()
        self._timeouts: Deadlines[tuple[str]] = Deadlines()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, transactional_id: str) -> TransactionValue | None:
        return self._values.get(transactional_id)

    def items(self) -> Iterator[tuple[str, TransactionValue]]:
        yield from self._values.items()

    # Requests of producers and leaders.

    def init(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        reply_to: ReplyTo,
        now_ms: int,
        *,
        spare_id: int | None = None,
    ) -> Decision:
        """Reply: ProducerIdAndEpoch."""
        if not 0 < timeout_ms <= self._limits().timeout_ms_max:
            raise Refused(ErrorCode.invalid_transaction_timeout)
        try:
            value = steps.init(self._values.get(transactional_id), expected, timeout_ms, spare_id, now_ms)
        except ProducerIdNeeded:
            return answer(reply_to, NEEDS_PRODUCER_ID)
        if value.state in PREPARED:
            return _write(transactional_id, value, reply_to, Refused(ErrorCode.concurrent_transactions))
        return _write(transactional_id, value, reply_to, ProducerIdAndEpoch(value.producer_id, value.producer_epoch))

    def add(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        reply_to: ReplyTo,
        now_ms: int,
        *,
        version: int = 0,
    ) -> Decision:
        """Reply: Codes."""
        value = steps.check_producer(self._values.get(transactional_id), producer)
        changed = steps.add(value, partitions, version, now_ms)
        reply = dict.fromkeys(partitions, ErrorCode.none)
        return answer(reply_to, reply) if changed is None else _write(transactional_id, changed, reply_to, reply)

    def verify(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        reply_to: ReplyTo,
    ) -> Decision:
        """Whether these partitions are part of the open transaction. Reply: Codes."""
        value = steps.check_producer(self._values.get(transactional_id), producer)
        if value.state in PREPARED:
            raise Refused(ErrorCode.concurrent_transactions)
        return answer(
            reply_to,
            {
                each: ErrorCode.none if each in value.partitions else ErrorCode.transaction_abortable
                for each in partitions
            },
        )

    def end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        reply_to: ReplyTo,
        now_ms: int,
        *,
        committed: bool,
        bumps: bool,
        spare_id: int | None = None,
    ) -> Decision:
        """Reply: the ProducerIdAndEpoch of the next transaction, once the end is committed; `bumps`: under version
        2."""
        before = self._values.get(transactional_id)
        try:
            if bumps:
                value = steps.end_and_bump(before, producer, spare_id, now_ms, committed=committed)
            else:
                value = steps.end(before, producer, now_ms, committed=committed)
        except ProducerIdNeeded:
            return answer(reply_to, NEEDS_PRODUCER_ID)
        if value is None:
            assert before is not None
            return answer(reply_to, steps.after(before))
        return _write(transactional_id, value, reply_to, steps.after(value))

    # Requests of the transaction coordinator.

    def complete(self, ticket: Prepared, reply_to: ReplyTo, now_ms: int) -> Decision:
        """All markers of the transaction are written. Reply: whether it was prepared."""
        value = self._prepared(ticket)
        if value is None:
            return answer(reply_to, False)
        return _write(ticket.transactional_id, steps.complete(value, now_ms), reply_to, True)

    def resume(self, ticket: Prepared) -> Decision:
        """Its markers again, if it is still prepared."""
        value = self._prepared(ticket)
        return NOTHING if value is None else answer(ticket, _markers(value))

    def _prepared(self, ticket: Prepared) -> TransactionValue | None:
        value = self._values.get(ticket.transactional_id)
        same = self._tickets.get(ticket.transactional_id) == ticket
        return value if same and value is not None and value.state in PREPARED else None

    def expire_ids(self, now_ms: int) -> Iterator[Decision]:
        """Expire transactional ids that were not used for `transactional.id.expiration.ms`."""
        expiration_ms = self._limits().id_expiration_ms
        for transactional_id in list(self._values):
            value = self._values.get(transactional_id)
            if value is None:
                continue
            idle = value.state is not TransactionState.ONGOING and value.state not in PREPARED
            if idle and now_ms - value.updated_ms >= expiration_ms:
                yield Decision((LogRecord(TransactionKey(transactional_id), None),))
            else:
                yield NOTHING

    # The log.

    def replay(self, key: object, value: object | None, producer: ProducerIdAndEpoch | None = None) -> None:
        assert isinstance(key, TransactionKey)
        transactional_id = key.transactional_id
        if value is None:
            self._values.pop(transactional_id, None)
        else:
            assert isinstance(value, TransactionValue)
            self._values[transactional_id] = value
        self._unsettled[transactional_id] = None

    def replay_end(self, producer_id: int, *, committed: bool) -> None:
        """The transaction topic itself is never written in a transaction."""

    # Time.

    @property
    def deadline(self) -> float | None:
        return self._timeouts.first

    def settle(self, now: float, now_ms: int) -> Iterator[Decision]:
        """After replay: start the timeout of open transactions, send the markers of prepared ones."""
        while self._unsettled:
            transactional_id = next(iter(self._unsettled))
            del self._unsettled[transactional_id]
            self._tickets.pop(transactional_id, None)
            value = self._values.get(transactional_id)
            if value is not None and value.state is TransactionState.ONGOING:
                # It began by the wall clock, perhaps another broker's; the timer uses our monotonic clock.
                left_ms = min(max(value.started_ms + value.timeout_ms - now_ms, 0), value.timeout_ms)
                self._timeouts.set((transactional_id,), now + left_ms / 1000)
                continue
            self._timeouts.drop((transactional_id,))
            if value is not None and value.state in PREPARED:
                ticket = Prepared(transactional_id, value.producer_id, value.producer_epoch, next(self._numbers))
                self._tickets[transactional_id] = ticket
                yield answer(ticket, _markers(value))

    def expire(self, now: float, now_ms: int) -> Iterator[Decision]:
        """Abort transactions that have timed out, one by one: if one fails, the others are still due."""
        while (due := self._timeouts.take_first(now)) is not None:
            (transactional_id,) = due
            value = self._values.get(transactional_id)
            if value is None or value.state is not TransactionState.ONGOING:
                continue
            self._timeouts.set(due, now + ABORT_RETRY_S)
            yield Decision((LogRecord(TransactionKey(transactional_id), steps.fence(value, now_ms)),))

    def pending_replies(self) -> Iterator[ReplyTo]:
        """Requests of this machine wait for the log only."""
        yield from ()


def _write(transactional_id: str, value: TransactionValue, reply_to: ReplyTo, reply: object) -> Decision:
    return Decision((LogRecord(TransactionKey(transactional_id), value),), ((reply_to, reply),))


def _markers(value: TransactionValue) -> Markers:
    return Markers(value.state is TransactionState.PREPARE_COMMIT, value.partitions, value.version)
