"""Bytewax: a dataflow of two workers from topic to topic, which ends with the last record."""

from __future__ import annotations

from pathlib import Path

from tests.ecosystem import needs, numbering
from tests.ecosystem.ring import Ring

TITLE = "Bytewax"
RECORDS = 60_000


def prepare() -> str:
    return needs.package_version(_python(), "bytewax")


def _python() -> Path:
    return needs.environment("bytewax", "bytewax[kafka]")


def run(ring: Ring) -> str:
    source, target = ring.topic("bytewax-in", 3), ring.topic("bytewax-out", 3)
    numbering.write(ring, source, RECORDS)
    ring.python("bytewax", _python(), "bytewax_job.py", source, target).finish()
    numbering.check(ring.settled(target, RECORDS), RECORDS)
    return f"{RECORDS:,} records of {numbering.KEYS} keys, numbered by two workers"
