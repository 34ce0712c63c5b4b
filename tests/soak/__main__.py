"""`make soak MINUTES=60`: round after round on both stores, and the sums at the end."""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from functools import reduce
from pathlib import Path

import pytest

from ottla.cluster.ensemble import Ensemble
from ottla.local.cluster import LocalCluster
from ottla.local.history import Findings
from tests.harness.zookeeper import zookeeper_jars
from tests.soak import faults
from tests.soak.exactly_once import TransactionStats
from tests.soak.round import SETTINGS, Report, Round

ROUND_SECONDS = 240.0
SECONDS_MIN = 10.0


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def play(store: str, seed: int, seconds: float, chosen: list[faults.Fault], jars: str | None, keep: bool) -> Report:
    directory = Path(tempfile.mkdtemp(prefix="ottla-round-"))
    ensemble = Ensemble(directory / "zookeeper", 3, jars=jars) if store == "zookeeper" else None
    cluster = LocalCluster(directory, 3, settings=SETTINGS, ensemble=ensemble)
    passed = False
    try:
        report = Round(cluster, seed, lambda line: print(line, flush=True)).run(seconds, chosen)
        passed = report.passed
        return report
    finally:
        cluster.kill()
        if passed and not keep:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            print(f"data and logs are in {directory}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--store", choices=("embedded", "zookeeper", "both"), default="both")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=ROUND_SECONDS, help="of faults in one round")
    parser.add_argument("--fault", action="append", default=[], help="only these, by the names of their functions")
    parser.add_argument("--keep", action="store_true", help="data and logs of rounds that passed, too")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupted)
    stores = ["embedded", "zookeeper"] if asked.store == "both" else [asked.store]
    chosen = [getattr(faults, name) for name in asked.fault]
    jars = _jars() if "zookeeper" in stores else None
    if "zookeeper" in stores and jars is None:
        stores.remove("zookeeper")
        if not stores:
            return 1
    seed = asked.seed if asked.seed is not None else random.SystemRandom().getrandbits(32)
    ending = time.monotonic() + 60 * asked.minutes
    reports: list[Report] = []
    while not reports or ending - time.monotonic() > SECONDS_MIN:
        store = stores[len(reports) % len(stores)]
        seconds = min(asked.seconds, max(SECONDS_MIN, ending - time.monotonic()))
        report = play(store, seed + len(reports), seconds, chosen, jars, asked.keep)
        print("\n".join(report.lines()), flush=True)
        reports.append(report)
    return conclude(reports)


def _jars() -> str | None:
    """None where there is no ZooKeeper to be had, and why."""
    try:
        return zookeeper_jars()
    except pytest.skip.Exception as skip:
        print(f"not on ZooKeeper: {skip}")
        return None


def conclude(reports: list[Report]) -> int:
    injected: Counter[str] = Counter()
    for report in reports:
        injected += report.injected
    print(f"\n{len(reports)} rounds, {sum(injected.values())} faults injected")
    for name, times in injected.most_common():
        print(f"  {times:>5} × {name.replace('_', ' ')}")
    found = reduce(Findings.plus, (report.findings for report in reports))
    print(f"acknowledged {sum(report.acknowledged for report in reports):,} · {found}")
    print(TransactionStats.of([report.transactions for report in reports]).line())
    failed = [report for report in reports if not report.passed]
    for report in failed:
        print(f"failed: {report.store}, seed {report.seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
