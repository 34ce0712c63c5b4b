"""`python -m bench`: run the benchmark, and write the page.

A partial run writes to the cache directory only, unless it is merged: then its cells replace those of the last complete
results, and the page is written from both.
"""

from __future__ import annotations

import argparse
import datetime
import signal
import sys
from pathlib import Path

from bench import machine, report
from bench.cell import Settings
from bench.cells import CELLS
from bench.maven import CACHE
from bench.protocol import PEERS, Progress, Results, available, run

DOCS = Path(__file__).resolve().parent.parent / "docs"
LAST = CACHE / "results" / "last.json"
OPTIONAL = frozenset({"spark"})
"""A run without these is a whole one: they take long, and are measured alone and merged."""
QUICK = Settings(runs=1, seconds=1.0, warm_seconds=3.0, round_trips=2_000, history=100_000)


def arguments() -> argparse.Namespace:
    full = Settings()
    parser = argparse.ArgumentParser(prog="python -m bench", description="Ottla beside Apache Kafka.")
    parser.add_argument("--quick", action="store_true", help="one short run per cell: it works, nothing more")
    parser.add_argument(
        "--only", type=_cells, metavar="CELL,CELL", help="measure these: " + ", ".join(cell.name for cell in CELLS)
    )
    parser.add_argument("--skip", type=_cells, metavar="CELL,CELL", help="measure all but these")
    parser.add_argument(
        "--merge",
        nargs="?",
        type=Path,
        const=LAST,
        metavar="RESULTS",
        help="put what is measured into stored results (the last whole ones) and write the page from both",
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
    if given.merge is not None and not given.merge.exists():
        parser.error(f"there are no results to merge into: {given.merge}")
    return given


def _cells(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - {cell.name for cell in CELLS}:
        raise argparse.ArgumentTypeError(f"no such cell: {', '.join(sorted(unknown))}")
    return names


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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that no broker is left running
    progress = Progress()
    cores = machine.keep_to_two_cores()
    now = datetime.datetime.now(datetime.UTC)
    settings = settings_of(given)
    results = Results(settings, machine.describe(CACHE), {}, f"{now:%Y-%m-%d}")
    if cores < machine.CORES:
        results.notes.append(f"This machine has {cores} core, not {machine.CORES}.")
    chosen = set(given.only or (cell.name for cell in CELLS)) - set(given.skip or ())
    cells = [cell for cell in CELLS if cell.name in chosen]
    earlier = None if given.merge is None else Results.load(given.merge)
    if earlier is not None and earlier.settings != settings:
        print("bench: the stored results were measured with other settings", file=sys.stderr)
        return 1
    peers = available(given.peers, results, progress)
    run(cells, peers, results, LAST.with_name(f"{now:%Y%m%d-%H%M%S}.json"), progress)
    if earlier is not None:
        earlier.replace(results)
        earlier.save(LAST)
        show([LAST, *report.write(earlier, DOCS)])
        return 0
    whole = settings == Settings() and {cell.name for cell in CELLS} - chosen <= OPTIONAL
    if whole and given.peers == list(PEERS):
        results.save(LAST)
        show([LAST, *report.write(results, DOCS)])
    else:
        progress.say("a partial run: not for docs/, and nothing to claim")
        show(report.write(results, CACHE / "partial"))
    return 0


def show(written: list[Path]) -> None:
    for path in written:
        print(path)


if __name__ == "__main__":
    raise SystemExit(main())
