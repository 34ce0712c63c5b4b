"""Quix Streams: state with a changelog topic and exactly-once processing; killed twice on the way.

The second time its local state is removed as well, so that it comes back from the changelog.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.ecosystem import needs, numbering
from tests.ecosystem.ring import Ring

TITLE = "Quix Streams"
RECORDS = 60_000


def prepare() -> str:
    return needs.package_version(_python(), "quixstreams")


def _python() -> Path:
    return needs.environment("quix", "quixstreams")


def run(ring: Ring) -> str:
    source, target = ring.topic("quix-in", 3), ring.topic("quix-out", 3)
    numbering.write(ring, source, RECORDS)
    state = ring.directory / "state"
    for share in (0.25, 0.6):
        job = ring.python("quix", _python(), "quix_job.py", source, target, str(state))
        ring.until(lambda share=share: ring.end(target) > RECORDS * share, f"{share:.0%} of the records")
        job.kill()
        ring.say(f"killed it at {ring.end(target)} records")
    shutil.rmtree(state)
    ring.python("quix", _python(), "quix_job.py", source, target, str(state))
    numbering.check(ring.settled(target, RECORDS, group="quix", sources=[source]), RECORDS)
    return f"{RECORDS:,} records of {numbering.KEYS} keys, numbered; killed twice, its state lost once"
