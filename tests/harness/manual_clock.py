"""A runtime of which only the time, the timers and the iterations of the loop matter; the test moves all three."""

from __future__ import annotations

from typing import Any

from ottla.net.replies import answer_due
from ottla.replication.waits import DelayedOperations


class ManualClock:
    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.soon: list[Any] = []
        self.timers: list[tuple[float, Any]] = []

    def now(self) -> float:
        return self.seconds

    def call_soon(self, act: Any, *args: object) -> Any:
        self.soon.append((act, args))
        return self

    def call_at(self, when: float, act: Any, *args: object) -> Any:
        self.timers.append((when, act))
        return Timer(self.timers, (when, act))

    def iterate(self) -> None:
        soon, self.soon = self.soon, []
        for act, args in soon:
            act(*args)

    def reach(self, seconds: float) -> None:
        self.seconds = seconds
        for timer in sorted(timer for timer in self.timers if timer[0] <= seconds):
            self.timers.remove(timer)
            timer[1]()


class Timer:
    def __init__(self, timers: list[tuple[float, Any]], timer: tuple[float, Any]) -> None:
        self._timers = timers
        self._timer = timer

    def cancel(self) -> None:
        if self._timer in self._timers:
            self._timers.remove(self._timer)


def delayed_operations(seconds: float = 0.0) -> tuple[Any, DelayedOperations]:
    """And the clock on which they wait."""
    clock: Any = ManualClock(seconds)
    return clock, DelayedOperations(clock, answer_due)
