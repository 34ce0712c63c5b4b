"""Delayed operations (Kafka's purgatory): requests that wait on this broker for an event.

    Produce with acks=all    until the high watermark has passed its records   until `timeout_ms` of the request
    Fetch                    until enough bytes are readable                   until `max_wait_ms`
    coordinator replies      until the high watermark has passed the records   until `offsets.commit.timeout.ms`
                             of the decision
    JoinGroup and the like   until the state machine of the group decides      the machine has the deadline
    WriteTxnMarkers          until all its markers are committed               until its timeout
    one marker               until it is committed                             none: it is written again
    DeleteRecords            until all in-sync replicas have the new log       until `timeout_ms`
                             start

All of them also end when this broker leads the partition no more, and a Fetch when its client has disconnected.

A partition notifies its listeners (`DelayedByCommit`, `HighWatermarkListener`, `AppendListener`,
`LowWatermarkListener`). A listener only changes its state, and marks its operation if that is complete; it sends no
response. So no response is written inside the request of another connection. `take_due` returns the marked operations.
The event loop sends their responses (`net.replies.answer_due`) when the requests of one read have been served. If the
event came from elsewhere, it does so in its next iteration. A Fetch always waits for the next iteration, since more
records may be appended in this one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ottla.runtime import Handle, Runtime

if TYPE_CHECKING:
    from ottla.replication.partition import Partition

log = logging.getLogger("ottla.broker")

FINISHED_MAX: Final = 100
NEVER: Final = float("inf")


class LogAppendInfo(NamedTuple):
    base_offset: int
    log_append_time_ms: int
    next_offset: int
    log_start: int


class HighWatermarkListener(Protocol):
    def on_high_watermark(self, size: int) -> None:
        """`size` more bytes became readable, or (0) something else changed that the listener should look at."""


class AppendListener(Protocol):
    """A follower, or the flusher."""

    def on_append(self, size: int) -> None: ...


class LowWatermarkListener(Protocol):
    def on_low_watermark(self) -> None:
        """An in-sync follower has fetched: its log start may have changed."""


class DelayedByCommit(Protocol):
    """Waits for one record to be committed."""

    def on_committed(self, partition: Partition) -> None: ...

    def on_leadership_lost(self, partition: Partition) -> None:
        """This broker leads no more, and cannot know whether the record is committed."""


class DelayedOperation(Protocol):
    def complete(self) -> None:
        """Send the response."""


class Expiring(Protocol):
    """A wait with a deadline. `finished` is set by `finish`: it is complete, or its client has disconnected."""

    finished: bool

    def expire(self) -> None:
        """The deadline has passed: mark the operation, with its present result."""


class DelayedOperations:
    def __init__(self, runtime: Runtime, answer_due: Callable[[DelayedOperations, bool], None]) -> None:
        """`answer_due` completes what `take_due` returns."""
        self.due: list[DelayedOperation] = []
        """Complete operations; checked after every read of a connection."""
        self._due_next: list[DelayedOperation] = []
        """Operations that are due in the next iteration of the event loop."""
        self._runtime = runtime
        self._answer_due = answer_due
        self._deadlines: list[tuple[float, int, Expiring]] = []
        self._added = 0
        self._finished = 0  # of those that still stand among the deadlines, at most
        self._timer: Handle | None = None
        self._timer_at = NEVER

    def add(self, operation: Expiring, deadline: float) -> None:
        """Add an operation. It expires at the deadline, unless it is finished before."""
        self._added += 1
        heappush(self._deadlines, (deadline, self._added, operation))
        if deadline < self._timer_at:
            self._arm(deadline)

    def mark(self, operation: DelayedOperation, *, next_iteration: bool = False) -> None:
        """The operation is complete: respond after the present requests have been served, or in the next iteration of
        the event loop, if more may come for it in this one."""
        due = self._due_next if next_iteration else self.due
        if not due:
            self._runtime.call_soon(self._answer_due, self, next_iteration)
        due.append(operation)

    def finish(self, operation: Expiring) -> None:
        """The operation does not wait any more. It stays in the heap until its deadline, unless there are too many
        finished ones."""
        operation.finished = True
        self._finished += 1
        if self._finished > FINISHED_MAX and self._finished * 2 > len(self._deadlines):
            self._deadlines = [entry for entry in self._deadlines if not entry[2].finished]
            heapify(self._deadlines)
            self._finished = 0

    def take_due(self, next_iteration: bool = False) -> list[DelayedOperation]:
        """The operations that are complete; the caller completes them. `next_iteration`: an iteration of the event loop
        has begun."""
        due, self.due = self.due, []
        if next_iteration:
            due += self._due_next
            self._due_next = []
        return due

    # Deadlines.

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._runtime.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer, self._timer_at = None, NEVER
        deadlines, now = self._deadlines, self._runtime.now()
        while deadlines and (deadlines[0][2].finished or deadlines[0][0] <= now):
            operation = heappop(deadlines)[2]
            if operation.finished:
                self._finished = max(self._finished - 1, 0)
                continue
            operation.finished = True
            try:
                operation.expire()
            except Exception as failure:  # a mistake with one must not leave all others waiting
                log.error("%s cannot be expired", type(operation).__name__, exc_info=failure)
        if deadlines:
            self._arm(deadlines[0][0])
        if self.due:
            self._answer_due(self, False)
