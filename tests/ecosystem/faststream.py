"""FastStream: two subscribers that publish, the first on librdkafka, the second on aiokafka."""

from __future__ import annotations

from pathlib import Path

from tests.ecosystem import needs, numbering
from tests.ecosystem.ring import Ring

TITLE = "FastStream"
RECORDS = 3_000


def prepare() -> str:
    return needs.package_version(_python(), "faststream")


def _python() -> Path:
    return needs.environment("faststream", "faststream[confluent,kafka]")


def run(ring: Ring) -> str:
    source, between, target = (ring.topic(f"faststream-{name}", 3) for name in ("in", "between", "out"))
    numbering.write(ring, source, RECORDS)
    ring.python("faststream", _python(), "faststream_job.py", source, between, target)
    numbering.check(ring.settled(target, RECORDS), RECORDS)
    return f"{RECORDS:,} records through two subscribers, on librdkafka and on aiokafka"
