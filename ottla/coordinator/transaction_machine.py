"""The machine of one partition of `__transaction_state`: all transactional ids of one shard.

Who speaks: producers (begin, add, end), leaders of partitions (is this one in the transaction?), and the coordinator's
shell, which writes the markers and says when all of them are written. What is durable: one value for each id, changed
only by `replay`; the steps from one value to the next are in `transaction_steps`.

A transaction is decided when its prepared value is committed. From then on nobody but the machine itself drives it:
`settle` finds it prepared, whether it came to that just now or long ago under another coordinator, and hands its
markers to the shell as a reply to `Prepared`, which like every reply leaves only when nothing before it can be lost.
If the shell could not be told in time it asks again (`resume`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import count
from typing import NamedTuple

from ottla.coordinator import transaction_steps as steps
from ottla.coordinator.deadlines import Deadlines
from ottla.coordinator.decision import NOTHING, Decision, LogRecord, Producer, ReplyTo, answer
from ottla.coordinator.transaction_records import TopicPartition, TransactionKey, TransactionState, TransactionValue
from ottla.coordinator.transaction_steps import PREPARED, Identity, ProducerIdNeeded
from ottla.errors import ErrorCode, Refused

ABORT_RETRY_S = 1.0
"""When the log did not take the abort of a transaction past its time, it is tried again after so long."""


class TransactionLimits(NamedTuple):
    timeout_ms_max: int
    id_expiration_ms: int


class Prepared(NamedTuple):
    """Reply to this: a transaction that is decided, and waits for its markers."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    number: int = 0
    """Of those that this machine has handed out: under version 1 the next transaction has the same producer and epoch,
    and what is said late of this one must not be taken for its own."""


class Markers(NamedTuple):
    """What has to be written where."""

    committed: bool
    partitions: tuple[TopicPartition, ...]
    version: int


class NeedsProducerId:
    """The answer to who must ask again, with a new producer id in hand."""


NEEDS_PRODUCER_ID = NeedsProducerId()

Codes = dict[TopicPartition, ErrorCode]


class TransactionMachine:
    def __init__(self, limits: Callable[[], TransactionLimits]) -> None:
        self._limits = limits
        self._values: dict[str, TransactionValue] = {}
        self._unsettled: dict[str, None] = {}
        self._tickets: dict[str, Prepared] = {}  # of what is prepared
        self._numbers = count()
        self._timeouts: Deadlines[tuple[str]] = Deadlines()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, transactional_id: str) -> TransactionValue | None:
        return self._values.get(transactional_id)

    def items(self) -> Iterator[tuple[str, TransactionValue]]:
        yield from self._values.items()

    # What producers ask for.

    def init(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: Identity | None,
        reply_to: ReplyTo,
        now_ms: int,
        *,
        spare_id: int | None = None,
    ) -> Decision:
        """Answered with an Identity."""
        if not 0 < timeout_ms <= self._limits().timeout_ms_max:
            raise Refused(ErrorCode.invalid_transaction_timeout)
        try:
            value = steps.init(self._values.get(transactional_id), expected, timeout_ms, spare_id, now_ms)
        except ProducerIdNeeded:
            return answer(reply_to, NEEDS_PRODUCER_ID)
        if value.state in PREPARED:
            return _write(transactional_id, value, reply_to, Refused(ErrorCode.concurrent_transactions))
        return _write(transactional_id, value, reply_to, Identity(value.producer_id, value.producer_epoch))

    def add(
        self,
        transactional_id: str,
        speaker: Identity,
        partitions: Collection[TopicPartition],
        reply_to: ReplyTo,
        now_ms: int,
        *,
        version: int = 0,
    ) -> Decision:
        """Answered with Codes."""
        value = steps.check_speaker(self._values.get(transactional_id), speaker)
        changed = steps.add(value, partitions, version, now_ms)
        reply = dict.fromkeys(partitions, ErrorCode.none)
        return answer(reply_to, reply) if changed is None else _write(transactional_id, changed, reply_to, reply)

    def verify(
        self, transactional_id: str, speaker: Identity, partitions: Collection[TopicPartition], reply_to: ReplyTo
    ) -> Decision:
        """Whether these are part of the open transaction: Codes say."""
        value = steps.check_speaker(self._values.get(transactional_id), speaker)
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
        speaker: Identity,
        reply_to: ReplyTo,
        now_ms: int,
        *,
        committed: bool,
        bumps: bool,
        spare_id: int | None = None,
    ) -> Decision:
        """Answered with the Identity to go on with, as soon as the end cannot be undone; `bumps`: under version 2."""
        before = self._values.get(transactional_id)
        try:
            if bumps:
                value = steps.end_and_bump(before, speaker, spare_id, now_ms, committed=committed)
            else:
                value = steps.end(before, speaker, now_ms, committed=committed)
        except ProducerIdNeeded:
            return answer(reply_to, NEEDS_PRODUCER_ID)
        if value is None:
            assert before is not None
            return answer(reply_to, steps.after(before))
        return _write(transactional_id, value, reply_to, steps.after(value))

    # What the coordinator's shell says.

    def complete(self, ticket: Prepared, reply_to: ReplyTo, now_ms: int) -> Decision:
        """All markers of the transaction are written. Answered with whether that was awaited."""
        value = self._prepared(ticket)
        if value is None:
            return answer(reply_to, False)
        return _write(ticket.transactional_id, steps.complete(value, now_ms), reply_to, True)

    def resume(self, ticket: Prepared) -> Decision:
        """Its markers, once more, if there are still any to be written."""
        value = self._prepared(ticket)
        return NOTHING if value is None else answer(ticket, _markers(value))

    def _prepared(self, ticket: Prepared) -> TransactionValue | None:
        value = self._values.get(ticket.transactional_id)
        same = self._tickets.get(ticket.transactional_id) == ticket
        return value if same and value is not None and value.state in PREPARED else None

    def expire_ids(self, now_ms: int) -> Iterator[Decision]:
        """Forget transactional ids that nobody has used for `transactional.id.expiration.ms`."""
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

    def replay(self, key: object, value: object | None, producer: Producer | None = None) -> None:
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
        """After replay: start the clock of what is open, have the markers written of what is prepared."""
        while self._unsettled:
            transactional_id = next(iter(self._unsettled))
            del self._unsettled[transactional_id]
            self._tickets.pop(transactional_id, None)
            value = self._values.get(transactional_id)
            if value is not None and value.state is TransactionState.ONGOING:
                # It began by the wall clock, perhaps another broker's; from here on ours counts, which never jumps.
                left_ms = min(max(value.started_ms + value.timeout_ms - now_ms, 0), value.timeout_ms)
                self._timeouts.set((transactional_id,), now + left_ms / 1000)
                continue
            self._timeouts.drop((transactional_id,))
            if value is not None and value.state in PREPARED:
                ticket = Prepared(transactional_id, value.producer_id, value.producer_epoch, next(self._numbers))
                self._tickets[transactional_id] = ticket
                yield answer(ticket, _markers(value))

    def expire(self, now: float, now_ms: int) -> Iterator[Decision]:
        """Abort what has been open for too long, one after the other: after a mistake with one the others are still
        due."""
        while (due := self._timeouts.take_first(now)) is not None:
            (transactional_id,) = due
            value = self._values.get(transactional_id)
            if value is None or value.state is not TransactionState.ONGOING:
                continue
            self._timeouts.set(due, now + ABORT_RETRY_S)
            yield Decision((LogRecord(TransactionKey(transactional_id), steps.fence(value, now_ms)),))

    def parked(self) -> Iterator[ReplyTo]:
        """Nobody waits here for anything but the log."""
        yield from ()


def _write(transactional_id: str, value: TransactionValue, reply_to: ReplyTo, reply: object) -> Decision:
    return Decision((LogRecord(TransactionKey(transactional_id), value),), ((reply_to, reply),))


def _markers(value: TransactionValue) -> Markers:
    return Markers(value.state is TransactionState.PREPARE_COMMIT, value.partitions, value.version)
