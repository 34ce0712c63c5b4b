"""@platformatic/kafka, a client in JavaScript alone: a consumer group's stream and an idempotent producer.

It needs a newer Node.js than many have, which comes from npm with it.
"""

from __future__ import annotations

from pathlib import Path

from tests.ecosystem import needs, numbering
from tests.ecosystem.ring import Ring, same

TITLE = "@platformatic/kafka"
PACKAGE = "@platformatic/kafka"
RECORDS = 20_000
PARTITIONS = 3


def prepare() -> str:
    return needs.module_version(_modules(), PACKAGE)


def _modules() -> Path:
    return needs.node_modules("platformatic", f"{PACKAGE}@2", "node@22")


def run(ring: Ring) -> str:
    source, target = ring.topic("platformatic-in", PARTITIONS), ring.topic("platformatic-out", PARTITIONS)
    numbering.write(ring, source, RECORDS)
    node = str(_modules() / "node_modules" / ".bin" / "node")
    ring.node("platformatic", node, _modules(), "platformatic_job.js", source, target, str(RECORDS)).finish()
    numbering.check(ring.settled(target, RECORDS), RECORDS)
    same("offsets that the group committed, summed up", [ring.committed("platformatic", source)], [RECORDS])
    return f"{RECORDS:,} records of {numbering.KEYS} keys, numbered; the offsets of its group"
