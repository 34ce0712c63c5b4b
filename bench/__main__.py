"""`python -m bench`: measure, and write the page. A partial run writes to the cache directory only."""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path

from bench import machine, report
from bench.cell import Settings
from bench.cells import CELLS
from bench.maven import CACHE
from bench.protocol import PEERS, Progress, Results, available, run

DOCS = Path(__file__).resolve().parent.parent / "docs"
QUICK = Settings(runs=1, seconds=1.0, warm_seconds=3.0, round_trips=2_000, history=100_000)


def arguments() -> argparse.Namespace:
    full = Settings()
    parser = argparse.ArgumentParser(prog="python -m bench", description="Ottla beside Apache Kafka.")
    parser.add_argument("--quick", action="store_true", help="one short run per cell: it works, nothing more")
    parser.add_argument(
        "--only",
        action="append",
        choices=[cell.name for cell in CELLS],
        metavar="CELL",
        help="measure this cell (may be repeated): " + ", ".join(cell.name for cell in CELLS),
    )
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated, of: %(default)s")
    parser.add_argument("--runs", type=int, help=f"measured runs per cell ({full.runs})")
    parser.add_argument("--seconds", type=float, help=f"length of a saturated part ({full.seconds:g})")
    parser.add_argument("--warm", type=float, help=f"seconds to warm each broker ({full.warm_seconds:g})")
    parser.add_argument("--report", type=Path, metavar="RESULTS", help="write the page from stored results")
    given = parser.parse_args()
    given.peers = given.peers.split(",")
    if unknown := set(given.peers) - set(PEERS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    return given


def settings_of(given: argparse.Namespace) -> Settings:
    base = QUICK if given.quick else Settings()
    return Settings(
        runs=base.runs if given.runs is None else given.runs,
        seconds=base.seconds if given.seconds is None else given.seconds,
        warm_seconds=base.warm_seconds if given.warm is None else given.warm,
        round_trips=base.round_trips,
        history=base.history,
    )


def main() -> int:
    given = arguments()
    if given.report:
        show(report.write(Results.load(given.report), DOCS))
        return 0
    if not sys.platform.startswith("linux"):
        print("bench: reads /proc and uses epoll, so it runs on Linux only", file=sys.stderr)
        return 1
    progress = Progress()
    cores = machine.keep_to_two_cores()
    now = datetime.datetime.now(datetime.UTC)
    settings = settings_of(given)
    results = Results(settings, machine.describe(CACHE), {}, f"{now:%Y-%m-%d}")
    if cores < machine.CORES:
        results.notes.append(f"This machine has {cores} core, not {machine.CORES}.")
    cells = [cell for cell in CELLS if not given.only or cell.name in given.only]
    peers = available(given.peers, results, progress)
    run(cells, peers, results, CACHE / "results" / f"{now:%Y%m%d-%H%M%S}.json", progress)
    whole = settings == Settings() and cells == list(CELLS) and given.peers == list(PEERS)
    if not whole:
        progress.say("a partial run: not for docs/, and nothing to claim")
    show(report.write(results, DOCS if whole else CACHE / "partial"))
    return 0


def show(written: list[Path]) -> None:
    for path in written:
        print(path)


if __name__ == "__main__":
    raise SystemExit(main())
