"""Delayed operations: when they are answered, and that finished ones are not kept."""

from __future__ import annotations

from typing import Any

from ottla.replication.waits import FINISHED_MAX, DelayedOperations


class Clock:
    """A runtime of which only the time, the timers and the iterations of the loop matter."""

    def __init__(self) -> None:
        self.seconds = 0.0
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


class Operation:
    def __init__(self, happened: list[str], name: str) -> None:
        self._happened = happened
        self._name = name
        self.finished = False

    def complete(self) -> None:
        self._happened.append(f"{self._name} answered")

    def expire(self) -> None:
        self._happened.append(f"{self._name} expired")


def made() -> tuple[Any, DelayedOperations, list[str]]:
    clock: Any = Clock()
    return clock, DelayedOperations(clock), []


def test_a_marked_operation_is_answered_after_the_read_and_not_where_it_is_marked():
    clock, delayed, happened = made()
    delayed.mark(Operation(happened, "produce"))
    assert happened == []
    delayed.complete_due()  # as a connection does at the end of a read
    assert happened == ["produce answered"]
    clock.iterate()
    assert happened == ["produce answered"]


def test_where_no_request_is_the_cause_the_next_iteration_of_the_loop_answers():
    clock, delayed, happened = made()
    delayed.mark(Operation(happened, "produce"))
    clock.iterate()
    assert happened == ["produce answered"]


def test_an_operation_may_wait_for_the_next_iteration_of_the_loop():
    clock, delayed, happened = made()
    delayed.mark(Operation(happened, "fetch"), next_iteration=True)
    delayed.complete_due()
    assert happened == []
    clock.iterate()
    assert happened == ["fetch answered"]


def test_an_operation_that_marks_another_has_it_answered_too():
    _, delayed, happened = made()

    class Chained(Operation):
        def complete(self) -> None:
            super().complete()
            delayed.mark(Operation(happened, "second"))

    delayed.mark(Chained(happened, "first"))
    delayed.complete_due()
    assert happened == ["first answered", "second answered"]


def test_an_error_in_one_operation_does_not_stop_the_others(caplog):
    clock, delayed, happened = made()

    class Mistaken(Operation):
        def complete(self) -> None:
            raise ValueError("a mistake")

        expire = complete

    delayed.mark(Mistaken(happened, "first"))
    delayed.mark(Operation(happened, "second"))
    delayed.complete_due()
    delayed.add(Mistaken(happened, "third"), 1.0)
    delayed.add(Operation(happened, "fourth"), 1.0)
    clock.reach(1.0)
    assert happened == ["second answered", "fourth expired"]
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


def test_operations_expire_in_the_order_of_their_deadlines_unless_they_are_finished():
    clock, delayed, happened = made()
    late, early, done = (Operation(happened, name) for name in ("late", "early", "done"))
    delayed.add(late, 3.0)
    delayed.add(early, 1.0)
    delayed.add(done, 2.0)
    delayed.finish(done)
    clock.reach(1.0)
    assert happened == ["early expired"]
    clock.reach(5.0)
    assert happened == ["early expired", "late expired"]
    assert clock.timers == []


def test_finished_operations_do_not_pile_up_until_their_deadlines():
    clock, delayed, happened = made()
    stays = Operation(happened, "stays")
    delayed.add(stays, 10.0)
    for _ in range(10 * FINISHED_MAX):
        operation = Operation(happened, "finished")
        delayed.add(operation, 30.0)
        delayed.finish(operation)
    assert len(delayed._deadlines) <= 2 * FINISHED_MAX
    clock.reach(10.0)
    assert happened == ["stays expired"]
