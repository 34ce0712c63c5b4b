"""confluent-kafka-javascript: a topic is copied in transactions that commit the group's offsets; killed on the way."""

from __future__ import annotations

from pathlib import Path

from tests.ecosystem import needs
from tests.ecosystem.ring import Program, Ring, same

TITLE = "confluent-kafka-javascript"
PACKAGE = "@confluentinc/kafka-javascript"
RECORDS = 10_000
PARTITIONS = 3


def prepare() -> str:
    return needs.module_version(_modules(), PACKAGE)


def _modules() -> Path:
    """A build for this Node.js is downloaded; where that fails it is compiled, with the libraries that are there."""
    return needs.node_modules("confluent-javascript", PACKAGE, env={"CKJS_LINKING": "dynamic"})


def run(ring: Ring) -> str:
    source, target = ring.topic("javascript-in", PARTITIONS), ring.topic("javascript-out", PARTITIONS)
    records = [(f"k{n % 100}", f"v{n}") for n in range(RECORDS)]
    ring.produce(source, records, partition=lambda n: n % PARTITIONS)
    for share in (0.25, 0.6):
        job = _start(ring, source, target)
        ring.until(lambda share=share: ring.end(target) > RECORDS * share, f"{share:.0%} of the records")
        job.kill()
        ring.say(f"killed it at {ring.end(target)} records, markers included")
    _start(ring, source, target)
    got = ring.settled(target, RECORDS, group="javascript-copy", sources=[source])
    for partition in range(PARTITIONS):
        same(
            f"{target}-{partition}",
            [(each.key, each.value) for each in got if each.partition == partition],
            records[partition::PARTITIONS],
        )
    return f"{RECORDS:,} records copied in transactions; killed twice"


def _start(ring: Ring, source: str, target: str) -> Program:
    return ring.node("confluent-javascript", "node", _modules(), "confluent_job.js", source, target)
