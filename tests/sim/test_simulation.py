"""Whole runs: good seeds are good, and the same seed is the same run."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from ottla.sim.simulation import simulate


@pytest.mark.parametrize(
    "seed", [*range(1, 31), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(31, 51))]
)
def test_no_seed_violates_the_guarantees(seed):
    outcome = simulate(seed, 0.5)
    assert (outcome.violations, outcome.failures) == ([], [])
    assert outcome.counts["acknowledged"] > 0
    assert outcome.counts["read"] > 0


def test_five_brokers():
    outcome = simulate(20, 0.5, brokers=5)
    assert (outcome.violations, outcome.failures) == ([], [])


def test_a_seed_has_the_same_trace_in_every_process():
    runs = [
        subprocess.run(
            [sys.executable, "-m", "ottla", "simulate", "--seed", "3", "--minutes", "0.5"],
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        for _ in range(2)
    ]
    digests = [re.search(r"trace ([0-9a-f]{16})", run.stdout) for run in runs]
    assert digests[0] is not None
    assert digests[1] is not None
    assert digests[0][1] == digests[1][1]


@pytest.mark.parametrize("seed", [2, 6])
def test_damaged_files_of_one_replica_lose_nothing(seed):
    outcome = simulate(seed, 0.5, only=("damaged file", "bit rot"))
    assert (outcome.violations, outcome.failures) == ([], [])
    assert outcome.counts["acknowledged"] > 0
    assert sum(outcome.faults.values()) > 0
