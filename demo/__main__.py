"""`make demo`: one broker, a steady stream of writes, kill -9 in the middle, every record counted after.

The producer is confluent-kafka, unmodified. Each record carries the next number of its partition, so what was
lost, doubled or put out of order can be counted rather than believed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

TOPIC = "orders"
PARTITIONS = 3
RECORDS_PER_SECOND = 10_000
SECONDS_BEFORE_KILL = 2.0
SECONDS_AFTER_RESTART = 2.0
TIMEOUT_S = 60.0
READY = re.compile(r"^ottla: broker \d+ ready on (\S+):(\d+)$", re.MULTILINE)


class Broker:
    """One `ottla serve` on a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> float:
        """Seconds from exec to the ready line."""
        out_path = self.directory / "stdout"
        command = [sys.executable, "-m", "ottla", "serve", "--port", str(self.port)]
        command += ["--data", str(self.directory / "data"), "--log-level", "warning"]
        with out_path.open("wb") as out:
            started = time.monotonic()
            self.process = subprocess.Popen(command, stdout=out, stdin=subprocess.DEVNULL)
        while not (ready := READY.search(out_path.read_text())):
            if self.process.poll() is not None or time.monotonic() - started > TIMEOUT_S:
                raise SystemExit("demo: the broker did not start; its message stands above")
            time.sleep(0.002)
        self.port = int(ready[2])
        return time.monotonic() - started

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(TIMEOUT_S)

    def resident_mb(self) -> str:
        assert self.process is not None
        shown = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(self.process.pid)], capture_output=True, text=True, check=False
        )
        return f"{int(shown.stdout) / 1024:.0f} MB" if shown.stdout.strip() else "unknown"


class Writer(threading.Thread):
    """Writes numbered records at a steady rate, in its own thread, whatever happens to the broker."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="writer")
        self.acknowledged: list[set[int]] = [set() for _ in range(PARTITIONS)]
        self.acknowledged_count = 0
        self.failures: list[Any] = []
        self.ended = threading.Event()
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 100,
                "message.timeout.ms": int(TIMEOUT_S * 1000),
                "log_level": 0,
            }
        )

    def run(self) -> None:
        sent, started = 0, time.monotonic()
        while not self.ended.is_set():
            due = int((time.monotonic() - started) * RECORDS_PER_SECOND)
            for number in range(sent, due):
                partition = number % PARTITIONS
                value = str(number // PARTITIONS)
                self.producer.produce(TOPIC, value, partition=partition, on_delivery=self._delivered)
            sent = max(sent, due)
            self.producer.poll(0.01)
        if self.producer.flush(TIMEOUT_S):
            self.failures.append("records were still waiting at the end")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(error)
            return
        self.acknowledged[message.partition()].add(int(message.value()))
        self.acknowledged_count += 1


def show_while(condition: Callable[[], bool], line: Callable[[], str]) -> None:
    """Repeat one line in place while something goes on; without a terminal, print only its last state."""
    while condition():
        if sys.stdout.isatty():
            print(f"\r  {line()}", end="", flush=True)
        time.sleep(0.05)
    print(f"\r  {line()}", flush=True)


def write_for(writer: Writer, seconds: float) -> None:
    started, before = time.monotonic(), writer.acknowledged_count

    def rate() -> str:
        written = writer.acknowledged_count - before
        passed = time.monotonic() - started
        return f"writing: {written:>7,} records acknowledged, {written / max(passed, 0.001):>7,.0f} a second"

    show_while(lambda: time.monotonic() - started < seconds, rate)


def crash(broker: Broker, writer: Writer) -> None:
    """kill -9, restart, and the clock until the next acknowledgement."""
    broker.kill()
    killed, before = time.monotonic(), writer.acknowledged_count
    ready: list[float] = []
    restart = threading.Thread(target=lambda: ready.append(broker.start()), name="restart")
    restart.start()
    show_while(
        lambda: writer.acknowledged_count == before and time.monotonic() - killed < TIMEOUT_S,
        lambda: f"kill -9 and restart: no acknowledgement for {time.monotonic() - killed:.2f} s",
    )
    restart.join()
    if not ready:
        raise SystemExit("demo: the broker did not come back")
    print(f"  serving again {ready[0]:.2f} s after it was started")


def read_back(bootstrap: str) -> list[list[int]]:
    """Everything in the topic, partition by partition, in the order of the log."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "demo", "enable.auto.commit": False})
    stored: list[list[int]] = [[] for _ in range(PARTITIONS)]
    try:
        places = [TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)]
        ends = [consumer.get_watermark_offsets(place, TIMEOUT_S)[1] for place in places]
        consumer.assign(places)
        deadline = time.monotonic() + TIMEOUT_S
        while [len(numbers) for numbers in stored] != ends:
            if time.monotonic() > deadline:
                raise SystemExit("demo: reading back took too long")
            for message in consumer.consume(10_000, 0.2):
                if message.error() is not None:
                    raise KafkaException(message.error())
                stored[message.partition()].append(int(message.value()))
        return stored
    finally:
        consumer.close()


def count(acknowledged: list[set[int]], stored: list[list[int]]) -> tuple[int, int, int]:
    """(lost, duplicated, reordered)"""
    lost = sum(len(wanted - set(found)) for wanted, found in zip(acknowledged, stored, strict=True))
    duplicated = sum(len(found) - len(set(found)) for found in stored)
    reordered = sum(later < earlier for found in stored for earlier, later in pairwise(found))
    return lost, duplicated, reordered


def play(broker: Broker) -> int:
    print("Starting one broker.")
    seconds = broker.start()
    print(f"  ready in {seconds:.2f} s on {broker.bootstrap}, {broker.resident_mb()} of memory")
    create = ["topics", "create", TOPIC, "--partitions", str(PARTITIONS)]
    create += ["--bootstrap-server", broker.bootstrap]
    print(f"  $ ottla {' '.join(create)}")
    subprocess.run([sys.executable, "-m", "ottla", *create], check=True, stdout=subprocess.DEVNULL)
    print(f"Writing with confluent-kafka, {RECORDS_PER_SECOND:,} records a second, idempotent, acks=all.")
    writer = Writer(broker.bootstrap)
    writer.start()
    try:
        write_for(writer, SECONDS_BEFORE_KILL)
        crash(broker, writer)
        write_for(writer, SECONDS_AFTER_RESTART)
    finally:
        writer.ended.set()
        writer.join()
    print("Reading everything back.")
    started = time.monotonic()
    stored = read_back(broker.bootstrap)
    print(f"  {sum(map(len, stored)):,} records in {time.monotonic() - started:.2f} s")
    lost, duplicated, reordered = count(writer.acknowledged, stored)
    print(
        f"\nacknowledged {writer.acknowledged_count:,} · lost {lost} · duplicated {duplicated} "
        f"· reordered {reordered} · {broker.resident_mb()} of memory at the end"
    )
    if writer.failures:
        print(f"{len(writer.failures)} records were refused, the first with: {writer.failures[0]}")
    return 1 if lost or duplicated or reordered or writer.failures else 0


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ottla-demo-") as directory:
        broker = Broker(Path(directory))
        try:
            return play(broker)
        except KeyboardInterrupt:
            print("\nstopped")
            return 130
        finally:
            broker.stop()


if __name__ == "__main__":
    sys.exit(main())
