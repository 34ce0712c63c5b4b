"""`ottla simulate`: clusters on a virtual clock, with faults from a seed, and checkers of what clients saw."""

from __future__ import annotations

import gc
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from ottla.cli.failure import Failure
from ottla.cli.output import print_json

if TYPE_CHECKING:
    from ottla.sim.simulation import Outcome

SHOWN_MAX: Final = 8
"""Violations and failures of one run."""
HASH_SEED: Final = "0"


@click.command("simulate")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides everything random.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Number of seeds, from --seed on.")
@click.option(
    "--minutes", type=click.FloatRange(0.1), default=3.0, show_default=True, help="Virtual time with faults of a seed."
)
@click.option("--brokers", type=click.IntRange(1, 5), default=3, show_default=True, help="How many brokers.")
@click.option("--fault", "only", metavar="NAME", multiple=True, help="Only faults of this kind; may be repeated.")
@click.option("--trace", is_flag=True, help="Print events, line by line.")
@click.option("--detail", is_flag=True, help="With --trace: log lines of brokers below WARNING, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, once all seeds have run.")
def command(
    seed: int, seeds: int, minutes: float, brokers: int, only: tuple[str, ...], trace: bool, detail: bool, as_json: bool
) -> None:
    """Run real brokers and clients in one process, on a virtual clock.

    Faults come and go while clients write and read. Then everything is healed and the answers that clients got are
    checked: no acknowledged record is lost, duplicated or out of order. Odd seeds also run transactions: a copy must
    equal its original, and the sum of a bank must stay the same. The same seed gives the same run, byte by byte.

    \b
    Example:
      ottla simulate --seed 1 --seeds 10
    """
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        # Otherwise the order of sets of strings would differ between runs.
        environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED}
        os.execve(sys.executable, [sys.executable, "-m", "ottla", *sys.argv[1:]], environment)
    _check_faults(only)
    began = time.monotonic()
    outcomes: list[Outcome] = []
    for each in range(seed, seed + seeds):
        outcome = _run(each, minutes, brokers, only, trace, detail, verbose=not as_json)
        outcomes.append(outcome)
        if not outcome.good and not as_json:
            _report(outcome, minutes, brokers, only)
    if as_json:
        print_json([_as_json(outcome) for outcome in outcomes])
    else:
        _sum_up(outcomes, time.monotonic() - began)
    failed = [outcome.seed for outcome in outcomes if not outcome.good]
    if failed:
        raise Failure(f"{len(failed)} of {seeds} seeds failed: {', '.join(map(str, failed))}")


def _check_faults(only: tuple[str, ...]) -> None:
    from ottla.sim.faults import KINDS

    unknown = [name for name in only if name not in KINDS]
    if unknown:
        raise click.UsageError(f"unknown fault {unknown[0]!r}; known are: {', '.join(KINDS)}")


def _run(
    seed: int, minutes: float, brokers: int, only: tuple[str, ...], trace: bool, detail: bool, *, verbose: bool
) -> Outcome:
    from ottla.sim.simulation import simulate

    began = time.monotonic()
    show = partial(click.echo, err=not verbose) if trace else None
    outcome = simulate(seed, minutes, brokers=brokers, only=only or None, show=show, detail=detail)
    gc.unfreeze()  # objects that the brokers of this run have frozen
    gc.collect()
    if not verbose:
        return outcome
    counts = outcome.counts
    click.echo(
        f"seed {seed}: {'good' if outcome.good else 'BAD'} · {outcome.virtual_s:.0f} virtual s "
        f"in {time.monotonic() - began:.1f} s · {sum(outcome.faults.values())} faults · "
        f"acknowledged {counts.get('acknowledged', 0)} · read {counts.get('read', 0)} · "
        + (f"transactions {_transactions(counts)} · " if _transactions(counts) else "")
        + f"trace {outcome.digest}"
    )
    return outcome


def _transactions(counts: Mapping[str, int]) -> int:
    return counts.get("transactions committed", 0) + counts.get("transactions aborted", 0)


def _report(outcome: Outcome, minutes: float, brokers: int, only: tuple[str, ...]) -> None:
    for violation in outcome.violations[:SHOWN_MAX]:
        click.echo(f"  {violation.kind.value}: {violation.text}")
    for failure in outcome.failures[:SHOWN_MAX]:
        click.echo(f"  failure: {failure}")
    again = f"--seed {outcome.seed} --minutes {minutes:g} --brokers {brokers}"
    again += "".join(f" --fault {shlex.quote(name)}" for name in only)
    click.echo(f"  run it again: ottla simulate {again} --trace --detail")


def _as_json(outcome: Outcome) -> dict[str, object]:
    return {
        "seed": outcome.seed,
        "good": outcome.good,
        "virtual_s": round(outcome.virtual_s, 3),
        "counts": outcome.counts,
        "faults": outcome.faults,
        "violations": [{"kind": each.kind.value, "text": each.text} for each in outcome.violations],
        "failures": outcome.failures,
        "trace": outcome.digest,
    }


def _sum_up(outcomes: list[Outcome], real_s: float) -> None:
    totals: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for outcome in outcomes:
        totals.update({**outcome.counts, "virtual": int(outcome.virtual_s)})
        faults.update(outcome.faults)
    kinds = ", ".join(f"{name} {count}" for name, count in faults.most_common())
    click.echo(
        f"{len(outcomes)} seeds · {totals['virtual'] / 60:.0f} virtual minutes in {real_s:.0f} s · acknowledged "
        f"{totals['acknowledged']} · lost {totals['lost']} · duplicated {totals['duplicated']} · "
        f"reordered {totals['reordered']}\ntransactions committed {totals['transactions committed']} · aborted "
        f"{totals['transactions aborted']} · records copied {totals['copied']} · transfers {totals['transfers']} · "
        f"wrong sums {totals['wrong sum']}\n{faults.total()} faults: {kinds or 'none'}"
    )
