"""Transactions in simulated clusters under fire: the copy is its original, the sum stays; planted defects are found."""

from __future__ import annotations

import pytest

from ottla.local.history import Kind
from ottla.log import compaction
from ottla.log.transaction_index import AbortedTransaction
from ottla.sim.planted import Planted
from ottla.sim.simulation import simulate

COMPACTED_BANK = (173, *range(101, 301, 2))
"""Seeds of which some have aborts behind a transaction that is open when compaction comes. Which ones changes whenever
brokers do something at another time than before, so no single seed would do for long. The one that did last comes
first."""
LEFT_OPEN = Planted(transaction_timeout_ms=900_000)


@pytest.mark.parametrize("seed", [31, 401, 563])
def test_a_transactional_copy_is_the_original_and_no_money_is_lost(seed):
    outcome = simulate(seed, 1)
    assert (outcome.violations, outcome.failures) == ([], [])
    assert outcome.counts["transactions committed"] > 0
    assert outcome.counts["transactions aborted"] > 0
    assert outcome.counts["copied"] > 0
    assert outcome.counts["transfers"] > 0


def first_bad(*faults, planted):
    runs = (simulate(seed, 0.5, only=faults, planted=planted) for seed in range(1, 12, 2))
    return {violation.kind for violation in next(outcome for outcome in runs if not outcome.good).violations}


def test_an_aborted_record_that_is_seen_is_found_out():
    found = first_bad("kill", planted=Planted(isolation="read_uncommitted"))
    assert found & {Kind.DUPLICATED, Kind.WRONG_SUM, Kind.INVENTED}


def test_a_coordinator_that_never_ends_what_was_left_open_is_found_out():
    assert first_bad("slow link", planted=LEFT_OPEN) == {Kind.STUCK}


def test_compaction_that_forgets_what_was_aborted_behind_its_end_is_found_out(monkeypatch):
    plan = compaction.plan
    forgotten: list[AbortedTransaction] = []

    def forgetful(log, found, **options):
        job = plan(log, found, **options)
        if job is None:
            return None
        known = log.transactions.aborted_before(job.end)
        written_anew = [entry for entry in job.aborted if entry.last_offset < job.sources[-1].next_base]
        forgotten.extend(entry for entry in written_anew if entry not in known)
        return job._replace(aborted=known)

    monkeypatch.setattr(compaction, "plan", forgetful)
    runs = (simulate(seed, 1) for seed in COMPACTED_BANK)
    bad = next((outcome for outcome in runs if not outcome.good), None)
    assert forgotten, "no pass had anything to forget: these seeds do not try the defect, others may"
    assert bad is not None, f"{len(forgotten)} aborted transactions were forgotten, and nobody noticed"
    assert Kind.WRONG_SUM in {violation.kind for violation in bad.violations}


def test_a_bit_that_flips_in_a_log_is_noticed_and_made_good():
    outcome = simulate(1, 1, only=["bit flip"])
    assert (outcome.violations, outcome.failures) == ([], [])
    assert outcome.faults["bit flip"] > 0
