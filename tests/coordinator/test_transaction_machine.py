"""The transaction coordinator, by text scenarios."""

from __future__ import annotations

from contextlib import suppress

import pytest

from ottla.coordinator.decision import Decision, ProducerIdAndEpoch
from ottla.coordinator.transaction_machine import TransactionLimits, TransactionMachine
from ottla.wire.topic_partition import TopicPartition
from tests.coordinator.transaction_scenarios import TransactionScenario, scenarios


@pytest.mark.parametrize("lines", scenarios("transactions.txt"))
def test_a_transaction(lines: list[str]):
    TransactionScenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("transaction_fencing.txt"))
def test_producer_fencing(lines: list[str]):
    TransactionScenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("transaction_refusals.txt"))
def test_a_transaction_coordinator_refuses(lines: list[str]):
    TransactionScenario().run(lines)


def test_a_bug_with_one_transaction_does_not_stop_the_timeouts_of_others():
    machine = TransactionMachine(lambda: TransactionLimits(900_000, 10**9))

    def apply(decision: Decision) -> None:
        for key, value in decision.records:
            machine.replay(key, value)
        assert not list(machine.settle(0.0, 0))

    for number, name in enumerate("abc"):
        apply(machine.init(name, 1000, None, object(), 0, spare_id=number))
        apply(machine.add(name, ProducerIdAndEpoch(number, 0), [TopicPartition("t", 0)], object(), 0))
    aborted = []
    for _ in range(2):
        due = machine.deadline
        assert due is not None
        assert due <= 1.0
        with suppress(ZeroDivisionError):
            for decision in machine.expire(1.0, 1000):
                aborted += [key for (key,), _ in decision.records]
                if aborted == ["a"]:
                    raise ZeroDivisionError
    assert aborted == ["a", "b", "c"]
    assert machine.deadline == 2.0, "none of them was applied: each is tried again"
