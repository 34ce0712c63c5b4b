"""The transaction coordinator, by text scenarios."""

from __future__ import annotations

import pytest

from tests.coordinator.transaction_scenarios import TransactionScenario, scenarios


@pytest.mark.parametrize("lines", scenarios("transactions.txt"))
def test_a_transaction(lines: list[str]):
    TransactionScenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("transaction_fencing.txt"))
def test_who_may_speak(lines: list[str]):
    TransactionScenario().run(lines)


@pytest.mark.parametrize("lines", scenarios("transaction_refusals.txt"))
def test_what_a_coordinator_refuses(lines: list[str]):
    TransactionScenario().run(lines)
