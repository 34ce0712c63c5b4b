"""Planted defects: the product with one piece of its source changed, in a copy of the tree, run by the simulator.

The text that a defect changes must be found exactly once in `ottla/`, in whichever module it is. The copy has no
compiled modules: the changed source is what runs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

import ottla
from ottla.local.history import Kind

PACKAGE: Final = Path(ottla.__file__).parent
SECONDS_MAX: Final = 240
WRONG_RECORDS: Final = {Kind.LOST, Kind.INCONSISTENT, Kind.BACKWARD, Kind.SHRUNK, Kind.MOVED, Kind.DIVERGED}
WRONG_TRANSACTIONS: Final = {Kind.DUPLICATED, Kind.WRONG_SUM, Kind.INVENTED, Kind.LOST}

_RUN: Final = """
import json, sys
from ottla.sim.simulation import simulate
seeds, minutes, faults = json.loads(sys.argv[1])
for seed in seeds:
    outcome = simulate(seed, minutes, only=faults)
    if not outcome.good:
        kinds = [violation.kind.name for violation in outcome.violations]
        print(json.dumps([seed, kinds, outcome.failures]))
        break
"""


class Defect(NamedTuple):
    before: str
    """A piece of the source, and what it is changed into."""
    after: str
    faults: tuple[str, ...]
    seeds: tuple[int, ...]
    """The first that finds it ends the search: which one does may change with the timing of the product."""
    kinds: set[Kind]
    """What the simulator may call it."""
    minutes: float = 0.5


def plant(defect: Defect, directory: Path) -> Path:
    """A copy of the tree with the defect. What PYTHONPATH has to say."""
    copy = directory / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("*.so"))
    found = [path for path in copy.rglob("*.py") if defect.before in path.read_text()]
    assert len(found) == 1, f"found in {len(found)} modules, not in one: {defect.before!r}"
    text = found[0].read_text()
    assert text.count(defect.before) == 1, f"found {text.count(defect.before)} times: {defect.before!r}"
    found[0].write_text(text.replace(defect.before, defect.after))
    return directory


def first_bad(defect: Defect, directory: Path) -> tuple[int, set[Kind], list[str]]:
    """The first seed that finds the defect, what it found, and failures that no code caught."""
    job = json.dumps([defect.seeds, defect.minutes, defect.faults])
    environment = {**os.environ, "PYTHONPATH": str(plant(defect, directory)), "PYTHONHASHSEED": "0"}
    run = subprocess.run(
        [sys.executable, "-c", _RUN, job],
        cwd=directory, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout, f"no seed of {defect.seeds} found it"
    seed, kinds, failures = json.loads(run.stdout)
    return seed, {Kind[kind] for kind in kinds}, failures


EVEN: Final = (18, 2, 24, 16, *range(4, 41, 2))
"""Without transactions. The first ones found most of these defects when they were chosen."""
ODD: Final = (1, 3, 5, 7, 9, 11)
"""With transactions."""

DEFECTS: Final = {
    "acknowledged before all in-sync replicas have it": Defect(
        "        committed = own_end\n        for follower in self._union:",
        "        committed = own_end\n        for follower in ():",
        ("kill", "isolation"), EVEN, {*WRONG_RECORDS, Kind.FORGOTTEN},
    ),
    "consumers read above the high watermark": Defect(
        "if isolation_level == READ_COMMITTED else self.high_watermark",
        "if isolation_level == READ_COMMITTED else self.log.log_end",
        ("kill", "isolation", "cut"), EVEN, WRONG_RECORDS,
    ),
    "a follower whose log diverges does not truncate it": Defect(
        "    return (epoch, end) if epoch < last_epoch or end < offset else None",
        "    return None",
        ("kill", "isolation", "cut"), EVEN, WRONG_RECORDS,
    ),
    "a retry is appended again": Defect(
        "            return self._explain(producer, header)",
        "            return None",
        ("kill", "cut"), EVEN, {Kind.DUPLICATED},
    ),
    "a new leader forgets producer state": Defect(
        "            self.log.assign_epoch(state.leader_epoch)\n",
        "            self.log.assign_epoch(state.leader_epoch)\n            self.log.producers._producers.clear()\n",
        ("kill", "cut", "isolation"), EVEN, {Kind.DUPLICATED, *WRONG_RECORDS},
    ),
    "the scrub ignores a wrong checksum": Defect(
        "if crc != header.crc else self._misplaced",
        "if False else self._misplaced",
        ("bit rot",), EVEN[1:], {Kind.DIVERGED, Kind.STUCK, Kind.LOST},
    ),
    "missing segments are not noticed": Defect(
        "found = evidences.missing_segments(log, segments, evidence, began, clean=clean, notes=notes)",
        "found = []",
        ("damaged file",), EVEN[1:], {*WRONG_RECORDS, Kind.STUCK},
    ),
    "aborted records are exposed": Defect(
        "        return log.transactions.aborted(behind_gap(log, piece.offset), piece.end_offset())",
        "        return []",
        ("kill",), ODD, WRONG_TRANSACTIONS,
    ),
    "the last stable offset ignores open transactions": Defect(
        "        limit = high_watermark\n        for first_offset in self._open.values():\n",
        "        limit = high_watermark\n        for first_offset in ():\n",
        ("kill",), ODD, WRONG_TRANSACTIONS,
    ),
    "compaction forgets which transactions were aborted": Defect(
        "        aborted=log.transactions.aborted_before(sources[-1].next_base),",
        "        aborted=[],",
        ("kill",), ODD[1:], WRONG_TRANSACTIONS,
    ),
}  # fmt: skip

LONG: Final = {
    "transactions do not time out": Defect(
        "        while (due := self._timeouts.take_first(now)) is not None:\n            (transactional_id,) = due\n",
        "        while (due := self._timeouts.take_first(now)) is not None:\n"
        "            (transactional_id,) = due\n            continue\n",
        ("slow link",), ODD, {Kind.STUCK},
    ),
}  # fmt: skip
