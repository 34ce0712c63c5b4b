"""What one system is given: a cluster of three brokers, of either kind, a directory, and the programs it runs.

    topic = ring.topic("lines", partitions=4)
    program = ring.java("worker", "StreamsJob", jars, classes, ring.bootstrap, topic)
    ring.until(lambda: ring.end(topic) >= 1000, "a thousand records")
    program.kill()

Every program is a process group of its own, which ends with the system. What it says is in a file of its directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers import ApacheKafka, Ottla
from bench.trio import Trio
from tests.ecosystem.needs import PROGRAMS

T = TypeVar("T")

PATIENCE_S: Final = 300.0
POLL_S: Final = 0.1
LEAN: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
SETTINGS: Final = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.num.partitions": "8",
    "group.initial.rebalance.delay.ms": "0",
}
"""Of both kinds of brokers; the internal topics have fewer partitions, since all share a few cores."""
KAFKA_HEAP: Final = "384m"
QUIET: Final = {"log_level": 0}
"""Brokers are killed here, and librdkafka would tell of every connection that is lost."""


class Failed(AssertionError):
    """The system did not do what it does on a Kafka that works; the message says what came out instead."""


class Record(NamedTuple):
    partition: int
    offset: int
    key: str
    value: str


def cluster(kind: str) -> Trio:
    if kind == "kafka":
        return Trio(ApacheKafka(heap=KAFKA_HEAP, settings=SETTINGS))
    return Trio(Ottla(settings=SETTINGS))


class Program:
    """One process with its children."""

    def __init__(self, name: str, command: Sequence[str | Path], log: Path, **options: Any) -> None:
        self.name = name
        self.log = log
        self._stopping = False
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                **options,
            )  # fmt: skip

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def broke(self) -> bool:
        """Whether it failed without having been stopped."""
        return not self._stopping and (self._process.poll() or 0) != 0

    def kill(self) -> None:
        """kill -9, of all that it started as well."""
        self._stopping = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self, seconds: float = 30) -> None:
        """SIGTERM, and kill -9 for what is left after that."""
        self._stopping = True
        if self.running:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        self.kill()

    def finish(self, seconds: float = PATIENCE_S) -> str:
        """Wait for its end, which has to be a good one; what it said."""
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failed(f"{self.name} did not end within {seconds:g} s:\n{self.tail()}") from None
        if status != 0:
            raise Failed(f"{self.name} ended with {status}:\n{self.tail()}")
        return self.text()

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def tail(self, lines: int = 25) -> str:
        return "\n".join(self.text().splitlines()[-lines:])


class Ring:
    """What a system may use, for as long as it runs."""

    def __init__(self, kind: str, brokers: Trio, directory: Path, say: Callable[[str], None]) -> None:
        self.kind = kind
        self.brokers = brokers
        self.directory = directory
        self.say = say
        self._programs: list[Program] = []
        self._admin: AdminClient | None = None

    @property
    def bootstrap(self) -> str:
        return ",".join(member.bootstrap for member in self.brokers.members.values())

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
        return self._admin

    # Programs.

    def spawn(self, name: str, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Program:
        program = Program(
            name, command, self.directory / f"{name}.log", cwd=self.directory, env={**os.environ, **(env or {})}
        )
        self._programs.append(program)
        return program

    def java(
        self, name: str, main: str, classpath: Iterable[Path], *arguments: str, flags: Sequence[str] = ()
    ) -> Program:
        entries = [f"{path}/*" if path.name == "jars" else str(path) for path in classpath]
        return self.spawn(name, ["java", *LEAN, *flags, "-cp", os.pathsep.join(entries), main, *arguments])

    def python(self, name: str, interpreter: Path, program: str, *arguments: str) -> Program:
        """Its directory is kept off the path (-P): modules there have the names of what it imports."""
        command: list[str | Path] = [interpreter, "-P", "-u", PROGRAMS / program, self.bootstrap, *arguments]
        return self.spawn(name, command, {"PYTHONWARNINGS": "ignore", "PYTHONPATH": ""})

    def node(self, name: str, node: str, modules: Path, program: str, *arguments: str) -> Program:
        command: list[str | Path] = [node, PROGRAMS / program, self.bootstrap, *arguments]
        return self.spawn(name, command, {"NODE_PATH": str(modules / "node_modules"), "NODE_NO_WARNINGS": "1"})

    def close(self) -> None:
        for program in self._programs:
            program.kill()

    def until(
        self, condition: Callable[..., T | None], what: str | Callable[[], str], seconds: float = PATIENCE_S
    ) -> T:
        """Look until it holds, or until a program that is to bring it about has ended badly."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            broken = next((program for program in self._programs if program.broke), None)
            if broken is not None:
                raise Failed(f"{broken.name} ended, while {_described(what)} was awaited:\n{broken.tail()}")
            if time.monotonic() > deadline:
                last = "\n".join(f"--- {program.name}\n{program.tail(12)}" for program in self._programs[-2:])
                raise Failed(f"waited {seconds:g} s in vain for {_described(what)}\n{last}")
            time.sleep(POLL_S)
        return value

    # Brokers.

    def kill_leader(self, topic: str, partition: int = 0) -> int:
        """kill -9 of the broker that leads the partition; its number."""
        number = self.brokers.leaders(topic)[partition].broker
        self.brokers.members[number].kill()
        self.say(f"killed broker {number}, which led {topic}-{partition}")
        return number

    def restart(self, number: int) -> None:
        self.brokers.members[number].start()
        self.say(f"broker {number} is back")

    # Topics.

    def topic(self, name: str, partitions: int = 1, **config: str) -> str:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self.admin.create_topics([NewTopic(name, partitions, 3, config=settings)])[name].result(60)
        self.brokers.await_led(name, in_sync=3, by=self.brokers.alive)
        return name

    def produce(
        self, topic: str, records: Iterable[tuple[str, str]], *, timestamps: Callable[..., int] | None = None,
        partition: Callable[[int], int] | None = None, bootstrap: str = "",
    ) -> int:  # fmt: skip
        """Write them, idempotently and in order; how many they were."""
        failures: list[KafkaError] = []
        producer = Producer(
            {"bootstrap.servers": bootstrap or self.bootstrap, "enable.idempotence": True, "linger.ms": 5,
             "partitioner": "murmur2_random", **QUIET}
        )  # fmt: skip
        count = 0
        for key, value in records:
            options: dict[str, Any] = {} if timestamps is None else {"timestamp": timestamps(count)}
            if partition is not None:
                options["partition"] = partition(count)
            while True:
                try:
                    producer.produce(
                        topic, value.encode(), key.encode(), **options,
                        on_delivery=lambda error, _: failures.append(error) if error else None,
                    )  # fmt: skip
                    break
                except BufferError:
                    producer.poll(0.1)
            count += 1
            producer.poll(0)
        if producer.flush(60) or failures:
            raise Failed(f"{len(failures) or 'some'} records could not be written to {topic}: {failures[:1]}")
        return count

    def end(self, topic: str, bootstrap: str = "") -> int:
        """How far all partitions of a topic have come, markers of transactions included; 0 while there is none."""
        consumer = self._reader(bootstrap)
        try:
            partitions = self._partitions(consumer, topic)
            return sum(consumer.get_watermark_offsets(each, timeout=10)[1] for each in partitions)
        except KafkaException:
            return 0  # a leader is being elected, or the topic made
        finally:
            consumer.close()

    def read(self, topic: str, bootstrap: str = "") -> list[Record]:
        """Everything that is committed, one partition after the other, each in the order in which it came."""
        consumer = self._reader(bootstrap)
        got: list[Record] = []
        try:
            assigned = self._partitions(consumer, topic)
            consumer.assign([TopicPartition(topic, each.partition, 0) for each in assigned])
            open_partitions = {each.partition for each in assigned}
            deadline = time.monotonic() + PATIENCE_S
            while open_partitions:
                if time.monotonic() > deadline:
                    raise Failed(f"{topic} could not be read to its end: {len(got)} records, open {open_partitions}")
                for message in consumer.consume(1000, timeout=1):
                    error = message.error()
                    if error is not None and error.code() == KafkaError._PARTITION_EOF:
                        open_partitions.discard(message.partition())
                    elif error is None:
                        key, value = (message.key() or b"").decode(), (message.value() or b"").decode()
                        got.append(Record(message.partition(), message.offset(), key, value))
        finally:
            consumer.close()
        return sorted(got, key=lambda record: record.partition)

    def settled(
        self, topic: str, count: int, bootstrap: str = "", seconds: float = PATIENCE_S,
        group: str = "", sources: Sequence[str] = (),
    ) -> list[Record]:  # fmt: skip
        """Everything that is committed, once it is this much and the programs have ended: one record more is one too
        many. With a group, they end when it has committed all that its sources have."""
        self.reached(topic, count, bootstrap, seconds)
        for source in sources:
            self.caught_up(group, source)
        self.stop_all()
        return self.exactly(topic, count, bootstrap)

    def reached(self, topic: str, count: int, bootstrap: str = "", seconds: float = PATIENCE_S) -> None:
        """Wait for so many committed records; more may come."""
        found = 0

        def enough() -> bool:
            nonlocal found
            if self.end(topic, bootstrap) >= count:
                found = len(self.read(topic, bootstrap))
            return found >= count

        self.until(enough, lambda: f"{count} committed records in {topic}, of which there are {found}", seconds)

    def caught_up(self, group: str, source: str) -> None:
        """Wait until the group has committed everything that a source without transactions has."""

        def whole() -> bool:
            end = self.end(source)
            return end > 0 and self.committed(group, source) >= end

        self.until(whole, lambda: f"{group} to commit {self.end(source)} records of {source}")

    def stop_all(self) -> None:
        """End all programs that run, so that nothing more is written; one that has ended badly is found."""
        broken = next((program for program in self._programs if program.broke), None)
        if broken is not None:
            raise Failed(f"{broken.name} ended:\n{broken.tail()}")
        for program in self._programs:
            program.stop()

    def exactly(self, topic: str, count: int, bootstrap: str = "") -> list[Record]:
        """Everything that is committed, which is so many records."""
        found = self.read(topic, bootstrap)
        if len(found) != count:
            raise Failed(f"{topic} has {len(found)} committed records instead of {count}")
        return found

    def committed(self, group: str, topic: str) -> int:
        """The committed offsets of the group, summed up over the partitions; 0 while unknown."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, **QUIET})
        try:
            found = consumer.committed(self._partitions(consumer, topic), timeout=30)
            return sum(max(each.offset, 0) for each in found)
        except KafkaException:
            return 0  # a coordinator is being found, or moves
        finally:
            consumer.close()

    def _partitions(self, consumer: Consumer, topic: str) -> list[TopicPartition]:
        found = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        return [TopicPartition(topic, partition) for partition in sorted(found)]

    def _reader(self, bootstrap: str) -> Consumer:
        return Consumer(
            {"bootstrap.servers": bootstrap or self.bootstrap, "group.id": "ring-reader", "enable.auto.commit": False,
             "isolation.level": "read_committed", "enable.partition.eof": True, "auto.offset.reset": "earliest",
             "allow.auto.create.topics": False, **QUIET}
        )  # fmt: skip


def _described(what: str | Callable[[], str]) -> str:
    return what if isinstance(what, str) else what()


def by_key(records: Iterable[Record]) -> dict[str, list[str]]:
    """The values of each key, in the order of its partition."""
    found: dict[str, list[str]] = defaultdict(list)
    for record in records:
        found[record.key].append(record.value)
    return found


def same(what: str, got: Sequence[object], wanted: Sequence[object]) -> None:
    """The exact check: the same things, as often, in the same order."""
    if list(got) == list(wanted):
        return
    if len(got) != len(wanted):
        raise Failed(f"{what}: {len(got)} instead of {len(wanted)}; {_first_difference(got, wanted)}")
    raise Failed(f"{what}: {_first_difference(got, wanted)}")


def _first_difference(got: Sequence[object], wanted: Sequence[object]) -> str:
    for position, (left, right) in enumerate(zip(got, wanted, strict=False)):
        if left != right:
            return f"number {position} is {left!r} instead of {right!r}"
    return "the beginning is right"


def http(method: str, url: str, body: object = None) -> Any:
    """One call of a REST interface; None while it cannot answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as refusal:
        if refusal.code in (404, 409, 500, 503):
            return None
        raise Failed(f"{method} {url}: {refusal.code} {refusal.read().decode(errors='replace')}") from None
    except OSError:
        return None
