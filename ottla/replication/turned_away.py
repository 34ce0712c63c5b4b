"""Batches that were refused for the moment, so that those behind them hear the same.

A producer sends its batches one behind the other, without waiting. When the first is refused for the moment (nobody
leads yet, too few are in sync, the disk is full) and the second a moment later is not, the second lacks the first: it
is out of order. That is true, but librdkafka takes it for a reason to number everything anew, on all partitions, also
what it has sent and was not told of; whatever of that is in the log is then written twice. So the second is told what
the first was told, and both come again in their order.

The first may also have been refused by the leader before this one: librdkafka sends what follows to the new leader
while the old one has not answered yet. So it is the same with a producer's first batch in a reign.

Of a producer that the log does not know any batch would be taken as its first. Another before it that comes later, for
it was refused where nobody knew of the partition yet or not any more, would then count as one that was written long
ago: acknowledged, and lost. So a batch that begins with another number than 0 has to come twice.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.errors import ErrorCode, Refused
from ottla.wire import batch

PRODUCERS_MAX: Final = 1000
BEHIND_MAX: Final = 4
"""As many as are on their way behind the first. Whoever sends more has given the first up, and has to hear of it."""


class _First(NamedTuple):
    """The first of its producer that was turned away."""

    epoch: int
    sequence: int
    code: ErrorCode
    told: int = 0
    """How many behind it were told so."""


class Behind(Refused):
    """It is refused because of the one before it."""


class TurnedAway:
    """Of one partition. `expected` is the sequence that the log expects of the producer, None if any would do."""

    __slots__ = ("_firsts",)

    def __init__(self) -> None:
        self._firsts: dict[int, _First] = {}

    def note(self, header: batch.BatchHeader, expected: int | None, code: ErrorCode) -> None:
        first = self._firsts.get(header.producer_id)
        if first is not None and first.epoch == header.producer_epoch:
            missing = expected is None or first.sequence >= expected
            if missing and first.sequence < header.base_sequence:
                return  # this one is behind it
        self._note(header, header.base_sequence, code)

    def _note(self, header: batch.BatchHeader, sequence: int, code: ErrorCode) -> None:
        if len(self._firsts) >= PRODUCERS_MAX:
            del self._firsts[next(iter(self._firsts))]
        self._firsts[header.producer_id] = _First(header.producer_epoch, sequence, code)

    def check(self, header: batch.BatchHeader, expected: int | None) -> None:
        """Refuse a batch if the one that is expected was turned away."""
        first = self._firsts.get(header.producer_id)
        if first is None or first.epoch != header.producer_epoch or header.base_sequence <= first.sequence:
            return
        if first.told < BEHIND_MAX and (expected is None or expected == first.sequence):
            self._firsts[header.producer_id] = first._replace(told=first.told + 1)
            raise Behind(first.code, "the batch before this one was refused, and has to come first")

    def miss(self, header: batch.BatchHeader, expected: int | None) -> None:
        """The one before it did not come here: refuse it as the predecessor will have refused that one; but not for
        ever. Of a producer that is not known any could be the first: it is the one that comes again before others."""
        first = self._firsts.get(header.producer_id)
        if expected is None:
            known = None if first is None or first.epoch != header.producer_epoch else first.sequence
            if known is None or header.base_sequence < known:
                self._note(header, header.base_sequence, ErrorCode.not_leader_or_follower)
                raise Behind(ErrorCode.not_leader_or_follower, "what its producer sent before may be on its way")
        elif first is None or (first.epoch, first.sequence) != (header.producer_epoch, expected):
            self._note(header, expected, ErrorCode.not_leader_or_follower)
            self.check(header, expected)

    def forget(self, producer_id: int) -> None:
        """One of its batches was taken."""
        self._firsts.pop(producer_id, None)
