"""Kafka Connect, distributed: a file goes into a topic through an exactly-once source while its workers are killed.

The source is the file connector that comes with Kafka; it can say where it was, so each of its transactions holds lines
and their position. A sink writes the topic into a second file, which has to be the first one again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench.peers import free_port
from tests.ecosystem import needs
from tests.ecosystem.ring import Failed, Program, Ring, http, same

TITLE = "Kafka Connect"
LINES = 40_000
TOPIC = "connect-lines"


def prepare() -> str:
    classpath()
    return needs.kafka()


def classpath() -> list[Path]:
    """Of Connect's workers and of MirrorMaker."""
    parts = ("connect-runtime", "connect-file", "connect-json", "connect-mirror")
    kafka = [f"org.apache.kafka:{part}:{needs.kafka()}" for part in parts]
    return [needs.jars("connect", *kafka, "org.slf4j:slf4j-simple:1.7.36")]


class Worker:
    """One of a group of workers, with its REST interface on loopback."""

    def __init__(self, ring: Ring, group: str, number: int, settings: Mapping[str, str] | None = None) -> None:
        self.name = f"{group}-{number}"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._ring = ring
        self._file = ring.directory / f"{self.name}.properties"
        lines = {
            "bootstrap.servers": ring.bootstrap,
            "group.id": group,
            "exactly.once.source.support": "enabled",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "listeners": self.url,
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
            "scheduled.rebalance.max.delay.ms": "0",
            "offset.flush.interval.ms": "1000",
            "plugin.discovery": "service_load",
        }
        for topic in ("config", "offset", "status"):
            lines[f"{topic}.storage.topic"] = f"{group}-{topic}"
            lines[f"{topic}.storage.replication.factor"] = "3"
        lines |= {"offset.storage.partitions": "3", "status.storage.partitions": "2", **(settings or {})}
        self._file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        self.program = self.start()

    def start(self) -> Program:
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        self.program = self._ring.java(self.name, main, classpath(), str(self._file))
        return self.program

    def put(self, connector: str, settings: Mapping[str, str]) -> None:
        """Create the connector, as soon as there is a leader to do it."""
        put = lambda: http("PUT", f"{self.url}/connectors/{connector}/config", dict(settings))  # noqa: E731
        self._ring.until(put, f"{self.name} to take {connector}")

    def task_of(self, connector: str) -> str:
        """The address of the worker that runs the connector's only task, or nothing while none does."""
        status = http("GET", f"{self.url}/connectors/{connector}/status") or {}
        tasks = status.get("tasks", [])
        failed = [task.get("trace", "") for task in tasks if task["state"] == "FAILED"]
        if failed:
            raise Failed(f"the task of {connector} failed: {failed[0]}")
        return tasks[0]["worker_id"] if tasks and tasks[0]["state"] == "RUNNING" else ""


def run(ring: Ring) -> str:
    source, target = ring.directory / "source.txt", ring.directory / "target.txt"
    source.write_text("".join(f"line {number}\n" for number in range(LINES)))
    ring.topic(TOPIC, 1)
    workers = [Worker(ring, "connect", number) for number in (1, 2)]
    workers[0].put(
        "file-source",
        {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "tasks.max": "1",
            "file": str(source),
            "topic": TOPIC,
            "batch.size": "100",
            "exactly.once.support": "required",
            "transaction.boundary": "poll",
        },
    )
    for share in (0.25, 0.6):
        ring.until(lambda share=share: ring.end(TOPIC) > LINES * share, f"{share:.0%} of the lines")
        _kill_the_one_at_work(ring, workers)
    ring.reached(TOPIC, LINES)
    records = ring.exactly(TOPIC, LINES)
    same("lines in the topic", [record.value for record in records], source.read_text().splitlines())
    workers[0].put(
        "file-sink",
        {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
            "tasks.max": "1",
            "file": str(target),
            "topics": TOPIC,
            "consumer.override.isolation.level": "read_committed",
        },
    )
    size = source.stat().st_size
    ring.until(lambda: target.exists() and target.stat().st_size >= size, "the sink's file")
    behind = records[-1].offset + 1  # a marker may follow, which a sink does not count
    ring.until(lambda: ring.committed("connect-file-sink", TOPIC) >= behind, "the sink's commit of all lines")
    ring.stop_all()
    same("records in the topic at the end", ring.exactly(TOPIC, LINES), records)
    same("lines in the sink's file", target.read_text().splitlines(), source.read_text().splitlines())
    return f"{LINES:,} lines from a file through a topic into a file; the worker at work killed twice"


def _kill_the_one_at_work(ring: Ring, workers: list[Worker]) -> None:
    def found() -> Worker | None:
        for worker in workers:
            at = worker.task_of("file-source")
            if at:
                return next((each for each in workers if at.endswith(f":{each.port}")), None)
        return None

    worker = ring.until(found, "a worker that runs the task")
    worker.program.kill()
    ring.say(f"killed {worker.name} at {ring.end(TOPIC)} records")
    worker.start()
