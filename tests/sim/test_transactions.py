"""Transactions in simulated clusters under faults: copies are exact, and the sum of a bank stays the same."""

from __future__ import annotations

import pytest

from ottla.sim.simulation import simulate


@pytest.mark.parametrize("seed", [31, 401, 563])
def test_transactional_copies_are_exact_and_the_balance_is_kept(seed):
    outcome = simulate(seed, 1)
    assert (outcome.violations, outcome.failures) == ([], [])
    assert outcome.counts["transactions committed"] > 0
    assert outcome.counts["transactions aborted"] > 0
    assert outcome.counts["copied"] > 0
    assert outcome.counts["transfers"] > 0


def test_a_flipped_bit_in_a_log_is_detected_and_repaired():
    outcome = simulate(1, 1, only=["bit flip"])
    assert (outcome.violations, outcome.failures) == ([], [])
    assert outcome.faults["bit flip"] > 0
