"""Delayed operations: when they are answered, and that finished ones are not kept."""

from __future__ import annotations

from typing import Any

from ottla.net.replies import answer_due
from ottla.replication.waits import FINISHED_MAX, DelayedOperations
from tests.harness.manual_clock import delayed_operations


class Operation:
    def __init__(self, delayed: DelayedOperations, happened: list[str], name: str) -> None:
        self._delayed = delayed
        self._happened = happened
        self._name = name
        self.finished = False

    def complete(self) -> None:
        self._happened.append(f"{self._name} answered")

    def expire(self) -> None:
        self._happened.append(f"{self._name} expired")
        self._delayed.mark(self)


def made() -> tuple[Any, DelayedOperations, list[str]]:
    return *delayed_operations(), []


def test_a_marked_operation_is_answered_after_the_read_and_not_where_it_is_marked():
    clock, delayed, happened = made()
    delayed.mark(Operation(delayed, happened, "produce"))
    assert happened == []
    answer_due(delayed)  # as a connection does at the end of a read
    assert happened == ["produce answered"]
    clock.iterate()
    assert happened == ["produce answered"]


def test_operations_due_without_a_request_are_answered_in_the_next_loop_iteration():
    clock, delayed, happened = made()
    delayed.mark(Operation(delayed, happened, "produce"))
    clock.iterate()
    assert happened == ["produce answered"]


def test_an_operation_may_wait_for_the_next_iteration_of_the_loop():
    clock, delayed, happened = made()
    delayed.mark(Operation(delayed, happened, "fetch"), next_iteration=True)
    answer_due(delayed)
    assert happened == []
    clock.iterate()
    assert happened == ["fetch answered"]


def test_an_operation_that_marks_another_has_it_answered_too():
    _, delayed, happened = made()

    class Chained(Operation):
        def complete(self) -> None:
            super().complete()
            delayed.mark(Operation(delayed, happened, "second"))

    delayed.mark(Chained(delayed, happened, "first"))
    answer_due(delayed)
    assert happened == ["first answered", "second answered"]


def test_an_error_in_one_operation_does_not_stop_the_others(caplog):
    clock, delayed, happened = made()

    class Mistaken(Operation):
        def complete(self) -> None:
            raise ValueError("a mistake")

        def expire(self) -> None:
            raise ValueError("another mistake")

    delayed.mark(Mistaken(delayed, happened, "first"))
    delayed.mark(Operation(delayed, happened, "second"))
    answer_due(delayed)
    delayed.add(Mistaken(delayed, happened, "third"), 1.0)
    delayed.add(Operation(delayed, happened, "fourth"), 1.0)
    clock.reach(1.0)
    assert happened == ["second answered", "fourth expired", "fourth answered"]
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


def test_operations_expire_in_the_order_of_their_deadlines_unless_they_are_finished():
    clock, delayed, happened = made()
    late, early, done = (Operation(delayed, happened, name) for name in ("late", "early", "done"))
    delayed.add(late, 3.0)
    delayed.add(early, 1.0)
    delayed.add(done, 2.0)
    delayed.finish(done)
    clock.reach(1.0)
    assert happened == ["early expired", "early answered"]
    clock.reach(5.0)
    assert happened == ["early expired", "early answered", "late expired", "late answered"]
    assert clock.timers == []


def test_finished_operations_do_not_pile_up_until_their_deadlines():
    clock, delayed, happened = made()
    stays = Operation(delayed, happened, "stays")
    delayed.add(stays, 10.0)
    for _ in range(10 * FINISHED_MAX):
        operation = Operation(delayed, happened, "finished")
        delayed.add(operation, 30.0)
        delayed.finish(operation)
    assert len(delayed._deadlines) <= 2 * FINISHED_MAX
    clock.reach(10.0)
    assert happened == ["stays expired", "stays answered"]
