"""Whole runs: good seeds are good, the same seed is the same run, and planted defects are found."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial

import pytest
from click.testing import CliRunner

from ottla.cli.simulate import HASH_SEED, command
from ottla.local.history import Kind
from ottla.log import damage
from ottla.sim import simulation
from ottla.sim.planted import NOTHING, Planted
from ottla.sim.simulation import simulate


@pytest.mark.parametrize(
    "seed", [*range(1, 31), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(31, 51))]
)
def test_no_fault_makes_clients_see_what_cannot_be(seed):
    outcome = simulate(seed, 0.5)
    assert (outcome.violations, outcome.failures) == ([], [])
    assert outcome.counts["acknowledged"] > 0
    assert outcome.counts["read"] > 0


def test_five_brokers():
    outcome = simulate(20, 0.5, brokers=5)
    assert (outcome.violations, outcome.failures) == ([], [])


def test_one_seed_is_one_run_in_every_process():
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


RETRIES_ARE_NEW = Planted(producer={"enable_idempotence": False, "acks": "all"})
ACKNOWLEDGED_BY_THE_LEADER_ALONE = Planted(producer={"enable_idempotence": False, "acks": 1})
DAMAGE_NO_CHECKSUM_SHOWS = Planted(silent_rot=True)


def first_bad(*faults, planted=NOTHING):
    seeds = range(2, 40, 2)  # without transactions, which break first
    runs = (simulate(seed, 1, only=faults, planted=planted) for seed in seeds)
    return {violation.kind for violation in next(outcome for outcome in runs if not outcome.good).violations}


def test_records_that_only_the_leader_had_when_they_were_acknowledged_are_found_lost():
    found = first_bad("kill", "isolation", planted=ACKNOWLEDGED_BY_THE_LEADER_ALONE)
    assert found & {Kind.LOST, Kind.INCONSISTENT, Kind.BACKWARD, Kind.SHRUNK, Kind.MOVED}


def test_retries_that_a_log_takes_for_new_records_are_found_duplicated():
    assert Kind.DUPLICATED in first_bad("kill", "cut", planted=RETRIES_ARE_NEW)


def test_a_seed_that_fails_says_what_to_run(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", HASH_SEED)
    monkeypatch.setattr(simulation, "simulate", partial(simulate, planted=ACKNOWLEDGED_BY_THE_LEADER_ALONE))
    result = CliRunner().invoke(command, ["--seeds", "4", "--minutes", "0.5", "--fault", "kill"])
    assert result.exit_code == 1
    assert re.search(r"run it again: ottla simulate --seed \d --minutes 0.5 --brokers 3 --fault kill", result.output)
    assert re.search(r"error: \d of 4 seeds failed", result.output)


@pytest.mark.parametrize("seed", [2, 6])
def test_files_that_are_damaged_at_rest_cost_nothing_beside_two_good_copies(seed):
    outcome = simulate(seed, 0.5, only=("damaged file", "bit rot"))
    assert (outcome.violations, outcome.failures) == ([], [])
    assert outcome.counts["acknowledged"] > 0
    assert sum(outcome.faults.values()) > 0


def test_damage_that_no_checksum_shows_is_found_diverged():
    assert Kind.DIVERGED in first_bad("bit rot", planted=DAMAGE_NO_CHECKSUM_SHOWS)


def test_a_log_that_is_believed_after_a_clean_stop_is_found_out(monkeypatch):
    monkeypatch.setattr(damage, "missing_segments", lambda log, segments, evidence, began, *, clean, notes: [])
    monkeypatch.setattr(damage, "proven_end", lambda log, evidence, derived, *, clean, notes: log.log_end)
    assert first_bad("damaged file") & {Kind.LOST, Kind.DIVERGED, Kind.STUCK, Kind.INCONSISTENT, Kind.SHRUNK}
