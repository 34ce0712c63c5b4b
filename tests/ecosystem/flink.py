"""Apache Flink: a job with checkpoints and an EXACTLY_ONCE sink, which fails once and has a broker killed under it.

It numbers the records of each key in its state (see numbering.py).
"""

from __future__ import annotations

from pathlib import Path

from tests.ecosystem import needs, numbering
from tests.ecosystem.ring import Ring

TITLE = "Apache Flink"
FLINK = "2.2.1"
CONNECTOR = "5.0.0-2.2"
RECORDS = 60_000
PARTITIONS = 4
FAIL_AT = RECORDS // 4
PAUSE_EVERY = 50
"""Records of a subtask before it pauses for 10 ms: the job takes long enough to be broken on the way."""
OPENED = ("java.util", "java.lang", "java.time", "java.nio", "java.net")


def prepare() -> str:
    _classpath()
    return f"{FLINK}, connector {CONNECTOR}"


def _classpath() -> list[Path]:
    parts = ("flink-clients", "flink-streaming-java", "flink-connector-base")
    flink = [f"org.apache.flink:{part}:{FLINK}" for part in parts]
    connector = f"org.apache.flink:flink-connector-kafka:{CONNECTOR}"
    jars = needs.jars("flink", *flink, connector, "org.slf4j:slf4j-simple:1.7.36")
    return [needs.compiled("FlinkJob.java", jars), jars]


def run(ring: Ring) -> str:
    source, target = ring.topic("flink-in", PARTITIONS), ring.topic("flink-out", PARTITIONS)
    numbering.write(ring, source, RECORDS)
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    job = ring.java(
        "flink", "FlinkJob", _classpath(), ring.bootstrap, source, target, str(FAIL_AT), str(PAUSE_EVERY),
        flags=["-Xmx512m", *opened],
    )  # fmt: skip
    ring.until(lambda: "failing on purpose" in job.text() or not job.running, "the failure")
    ring.say(f"a task failed on purpose at {ring.end(target)} records")
    ring.until(lambda: ring.end(target) > RECORDS // 2 or not job.running, "half of the records")
    number = ring.kill_leader(target)
    ring.until(lambda: ring.end(target) > RECORDS * 3 // 4 or not job.running, "three quarters of the records")
    ring.restart(number)
    job.finish(300)
    numbering.check(ring.settled(target, RECORDS), RECORDS)
    return f"{RECORDS:,} records of {numbering.KEYS} keys, numbered; a task failed, and a broker killed in mid-job"
