"""Out-of-order sequence gate of a partition: batches after a refused batch are refused with the same error (KIP-98).

An idempotent producer has several batches in flight. If the first is refused with a retriable error (no leader yet, too
few in-sync replicas, a full disk) and the second is not, the second is out of order. OUT_OF_ORDER_SEQUENCE_NUMBER would
be correct, but librdkafka then resets the sequences of all partitions, also of batches without a response; those that
are in the log are written twice. So the second batch gets the error of the first, and the producer retries both in
order.

The first batch may also have been refused by the previous leader: librdkafka sends the next ones to the new leader
before the old leader has answered. So the same holds for a producer's first batch in a leader epoch.

If the log has no state of a producer, any batch is accepted as its first. If an earlier batch then comes late, because
it was refused where the partition was not known yet or not known any more, it would look like an old duplicate:
acknowledged, and lost. So the first batch of such a producer is refused once if its sequence is not 0.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.errors import RETRIABLE, ErrorCode, Refused
from ottla.log import producers
from ottla.log.producers import Producers
from ottla.wire import batch

PRODUCERS_MAX: Final = 1000
BEHIND_MAX: Final = 4
"""How many batches after the first are refused: as many as are in flight. A producer that sends more has given the
first one up, and must get an error."""


class _First(NamedTuple):
    """The first refused batch of a producer."""

    epoch: int
    sequence: int
    code: ErrorCode
    message: str | None
    refused_behind: int = 0
    """How many later batches were refused because of it."""


class BehindRefused(Refused):
    """The refusal of a batch because of the one before it."""


class SequenceGate:
    """The gate of one partition. `expected` is the next sequence in the log; None: any."""

    __slots__ = ("_firsts", "_producers")

    def __init__(self, known: Producers) -> None:
        self._producers = known
        self._firsts: dict[int, _First] = {}

    def pass_or_refuse(
        self, header: batch.BatchHeader, *, epoch_start: int, alone: bool
    ) -> producers.BatchMetadata | None:
        """The batch in the log of which this is a retry, or None; Refused if it is neither a retry nor the next one.
        `alone`: no other replica can have led before."""
        known = self._producers
        if self._firsts:
            self._check(header, known.expected(header.producer_id, header.producer_epoch))
        if header.base_sequence > 0 and known.get(header.producer_id) is None:
            self._perhaps_behind(header, epoch_start, alone)
        try:
            found = known.check(header)
        except Refused as refused:
            if refused.code is ErrorCode.out_of_order_sequence_number:
                self._perhaps_behind(header, epoch_start, alone)
            raise
        if self._firsts:
            self._firsts.pop(header.producer_id, None)
        return found

    def _perhaps_behind(self, header: batch.BatchHeader, epoch_start: int, alone: bool) -> None:
        """A batch before it is missing, or may be missing. In a producer's first batch of a leader epoch, the previous
        leader may have refused it."""
        producer = self._producers.get(header.producer_id)
        if producer is not None:
            heard = producer.batches and producer.batches[-1].last_offset >= epoch_start
            if heard or alone:
                return
        self._miss(header, self._producers.expected(header.producer_id, header.producer_epoch))

    def refused(self, view: memoryview, refused: Refused, header: batch.BatchHeader | None = None) -> None:
        """A batch was refused. If the error is retriable, later batches must not be appended before it. `header`: as it
        was sent, if it was decoded before; it may have been changed since."""
        try:
            header = header or batch.check_produced(view)
        except Refused:
            return  # of no producer that we would know again
        if header.producer_id < 0 or refused.code not in RETRIABLE:
            return
        expected = self._producers.expected(header.producer_id, header.producer_epoch)
        first = self._firsts.get(header.producer_id)
        if first is not None and first.epoch == header.producer_epoch:
            missing = expected is None or first.sequence >= expected
            if missing and first.sequence < header.base_sequence:
                return  # this one is behind it
        self._note(header, header.base_sequence, refused.code, refused.message)

    def _note(self, header: batch.BatchHeader, sequence: int, code: ErrorCode, message: str | None = None) -> None:
        if len(self._firsts) >= PRODUCERS_MAX:
            del self._firsts[next(iter(self._firsts))]
        self._firsts[header.producer_id] = _First(header.producer_epoch, sequence, code, message)

    def _check(self, header: batch.BatchHeader, expected: int | None) -> None:
        """Refuse a batch if the one that is expected was refused."""
        first = self._firsts.get(header.producer_id)
        if first is None or first.epoch != header.producer_epoch or header.base_sequence <= first.sequence:
            return
        if first.refused_behind < BEHIND_MAX and (expected is None or expected == first.sequence):
            self._firsts[header.producer_id] = first._replace(refused_behind=first.refused_behind + 1)
            why = first.message or "the batch before this one was refused, and has to come first"
            raise BehindRefused(first.code, why)

    def _miss(self, header: batch.BatchHeader, expected: int | None) -> None:
        """The batch before it was not sent to this leader: refuse this one as the previous leader will have refused
        that one, but not for ever. Of an unknown producer any batch could be the first: the first one that is sent
        again is accepted."""
        first = self._firsts.get(header.producer_id)
        if expected is None:
            known = None if first is None or first.epoch != header.producer_epoch else first.sequence
            if known is None or header.base_sequence < known:
                self._note(header, header.base_sequence, ErrorCode.not_leader_or_follower)
                raise BehindRefused(ErrorCode.not_leader_or_follower, "what its producer sent before may be on its way")
        elif first is None or (first.epoch, first.sequence) != (header.producer_epoch, expected):
            self._note(header, expected, ErrorCode.not_leader_or_follower)
            self._check(header, expected)
