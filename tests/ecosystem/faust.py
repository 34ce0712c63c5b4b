"""Faust: an agent with a table, which is kept in a changelog topic.

There is one worker, from the first record to the last. Faust promises at-least-once, and on Apache Kafka a worker that
was started again kept less than that: after a kill it left records out, after a stop it never committed the last ones.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.ecosystem import needs, numbering
from tests.ecosystem.ring import Ring, by_key, same

TITLE = "Faust"
RECORDS = 20_000


def prepare() -> str:
    return needs.package_version(_python(), "faust-streaming")


def _python() -> Path:
    return needs.environment("faust", "faust-streaming")


def run(ring: Ring) -> str:
    source, target = ring.topic("faust-in", 3), ring.topic("faust-out", 3)
    numbering.write(ring, source, RECORDS)
    data = str(ring.directory / "faust-data")
    ring.python("faust", _python(), "faust_job.py", source, target, data)
    ring.reached(target, RECORDS)
    ring.until(lambda: ring.committed("faust", source) == RECORDS, "its commit of all that it has done")
    numbering.check(ring.settled(target, RECORDS), RECORDS)
    last = {json.loads(key): int(values[-1]) for key, values in by_key(ring.read("faust-counts-changelog")).items()}
    same("the table, as its changelog has it", sorted(last.items()), sorted(_table().items()))
    return f"{RECORDS:,} records of {numbering.KEYS} keys, numbered in a table; its changelog, its offsets"


def _table() -> dict[str, int]:
    return {numbering.key(number): RECORDS // numbering.KEYS for number in range(numbering.KEYS)}
