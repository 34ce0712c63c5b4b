"""Spring Kafka: listeners in transactions, with retries and a dead-letter topic; its process is killed on the way.

A listener sends first and fails then, so that what it sent has to be rolled back. Some records fail once and come
through; some fail always and have to be in the dead-letter topic, once, and nowhere else.
"""

from __future__ import annotations

from pathlib import Path

from tests.ecosystem import needs
from tests.ecosystem.ring import Program, Ring, same

TITLE = "Spring Kafka"
VERSION = "4.1.1"
RECORDS = 1_500
PARTITIONS = 4


def prepare() -> str:
    _classpath()
    return VERSION


def _classpath() -> list[Path]:
    jars = needs.jars("spring", f"org.springframework.kafka:spring-kafka:{VERSION}", "org.slf4j:slf4j-simple:2.0.17")
    return [needs.compiled("SpringJob.java", jars), jars]


def dead(number: int) -> bool:
    return number % 300 == 7


def run(ring: Ring) -> str:
    for topic in ("spring-in", "spring-out", "spring-in-dead"):
        ring.topic(topic, PARTITIONS)
    ring.produce("spring-in", ((f"k{n % 50}", str(n)) for n in range(RECORDS)), partition=lambda n: n % PARTITIONS)
    application = _start(ring)
    ring.until(lambda: ring.end("spring-out") > RECORDS // 3, "a third of the records")
    application.kill()
    ring.say(f"killed it at {ring.end('spring-out')} records, markers included")
    _start(ring)
    dying = sum(map(dead, range(RECORDS)))
    outputs = (("spring-out", RECORDS - dying, False), ("spring-in-dead", dying, True))
    for topic, count, _ in outputs:
        ring.reached(topic, count)
    ring.caught_up("spring", "spring-in")
    ring.stop_all()
    for topic, count, dies in outputs:
        got = ring.exactly(topic, count)
        for partition in range(PARTITIONS):
            wanted = [str(n) for n in range(partition, RECORDS, PARTITIONS) if dead(n) is dies]
            same(f"{topic}-{partition}", [each.value for each in got if each.partition == partition], wanted)
    return f"{RECORDS - dying:,} records in transactions, {dying} in the dead-letter topic; killed once"


def _start(ring: Ring) -> Program:
    return ring.java("spring", "SpringJob", _classpath(), ring.bootstrap)
