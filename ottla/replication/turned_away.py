"""Batches that were refused for the moment, so that those behind them hear the same.

A producer sends its batches one behind the other, without waiting. When the first is refused for the moment (nobody
leads yet, too few are in sync, the disk is full) and the second a moment later is not, the second lacks the first: it
is out of order. That is true, but librdkafka takes it for a reason to number everything anew, on all partitions, also
what it has sent and was not told of; whatever of that is in the log is then written twice. So the second is told what
the first was told, and both come again in their order.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.errors import RETRIABLE, ErrorCode, Refused
from ottla.wire import batch

PRODUCERS_MAX: Final = 1000


class _First(NamedTuple):
    """The first of its producer that was turned away."""

    epoch: int
    sequence: int
    code: ErrorCode


class TurnedAway:
    """Of one partition."""

    __slots__ = ("_firsts",)

    def __init__(self) -> None:
        self._firsts: dict[int, _First] = {}

    def note(self, view: memoryview, refused: Refused) -> None:
        if refused.code not in RETRIABLE or len(self._firsts) >= PRODUCERS_MAX:
            return
        try:
            header = batch.check_produced(view)
        except Refused:
            return  # of no producer that we would know again
        if header.producer_id < 0:
            return
        first = self._firsts.get(header.producer_id)
        if first is None or first.epoch != header.producer_epoch:
            self._firsts[header.producer_id] = _First(header.producer_epoch, header.base_sequence, refused.code)

    def check(self, header: batch.BatchHeader, expected: int | None) -> None:
        """Refuse a batch if the one that is expected of its producer (None: of a new one any is) was turned away."""
        first = self._firsts.get(header.producer_id)
        if first is None or first.epoch != header.producer_epoch or header.base_sequence <= first.sequence:
            return
        if expected is None or expected == first.sequence:
            raise Refused(first.code, "the batch before this one was refused, and has to come first")

    def forget(self, producer_id: int) -> None:
        """One of its batches was taken."""
        self._firsts.pop(producer_id, None)
