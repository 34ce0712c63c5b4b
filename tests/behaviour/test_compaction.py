"""Compacted topics as clients see them: the last record of every key, at its own offset, also after kills."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from typing import Any

import confluent_kafka
import pytest

from bench.maven import CACHE, kafka_version
from ottla.local.waiting import wait_for
from tests.behaviour.test_idempotence import new_producer_id
from tests.harness.brokers import WatchedBroker
from tests.harness.compacted import (
    EAGER,
    SEGMENT_BYTES,
    children,
    compacted_topic,
    put,
    read_all,
    seal,
    segments,
    wait_until_cleaned,
)
from tests.harness.raw import Connection, batch, produce, record
from tests.interop.clients import CLIENTS, CODECS, Confluent, Record

CONFLUENT = Confluent()
NOW_MS = 1_750_000_000_000
KAFKA_JARS = CACHE / "kafka" / "jars"


@pytest.fixture
def compacting(start_broker):
    return start_broker(*EAGER)


@pytest.mark.parametrize("writer", CLIENTS, ids=lambda client: client.name)
def test_every_client_reads_a_compacted_log_in_every_codec(compacting, writer):
    topic = compacted_topic(compacting)
    expected: dict[bytes | None, tuple[int, bytes | None]] = {}
    for number in range(2):
        for codec in CODECS:
            records = [Record(b"%s %d" % (codec.encode(), number) * 10, b"%d" % (at % 30)) for at in range(90)]
            offsets = writer.produce(compacting.bootstrap, topic, records, codec=codec)
            expected.update(
                (record.key, (offset, record.value)) for record, offset in zip(records, offsets, strict=True)
            )
    seal(compacting, topic)
    wait_until_cleaned(compacting, topic, 900)
    wanted = sorted(expected.values())
    for reader in CLIENTS:
        found = reader.consume(compacting.bootstrap, topic, 30, start=0)
        assert [(kept.offset, kept.value) for kept in found] == wanted
    middle = wanted[10][0]
    for reader in CLIENTS:
        assert [kept.offset for kept in reader.consume(compacting.bootstrap, topic, 20, start=middle)] == [
            offset for offset, _ in wanted[10:]
        ]


def test_compaction_keeps_headers_and_timestamps(compacting):
    topic = compacted_topic(compacting)
    records = [
        Record(b"value", b"key %d" % (at % 3), (("h", b"%d" % at), ("none", None)), NOW_MS + at * 1000)
        for at in range(9)
    ]
    CONFLUENT.produce(compacting.bootstrap, topic, records)
    seal(compacting, topic)
    wait_until_cleaned(compacting, topic, 9)
    for reader in CLIENTS:
        found = reader.consume(compacting.bootstrap, topic, 3, start=0)
        assert found == records[6:]
        assert reader.offset_at(compacting.bootstrap, topic, NOW_MS) == 6
        assert reader.offset_at(compacting.bootstrap, topic, NOW_MS + 7000) == 7


def test_a_tombstone_is_readable_until_delete_retention_is_over(compacting):
    topic = compacted_topic(compacting, delete_retention_ms=2000)
    put(compacting, topic, [(b"gone", b"1"), (b"kept", b"1")])
    put(compacting, topic, [(b"gone", None)])
    seal(compacting, topic)
    wait_until_cleaned(compacting, topic, 3)
    seen = [(kept.offset, kept.key, kept.value) for kept in read_all(compacting, topic)[:2]]
    assert seen == [(1, b"kept", b"1"), (2, b"gone", None)]

    def goes() -> bool:
        seal(compacting, topic)  # a log in which nothing changes is left alone
        return all(kept.key != b"gone" for kept in read_all(compacting, topic))

    wait_for(goes, "the tombstone to go", 30)
    assert read_all(compacting, topic)[0].offset == 1


def send(broker: WatchedBroker, topic: str, producer_id: int, sequence: int) -> tuple[int, int]:
    """One record of an idempotent producer; the error and the offset."""
    data = batch(
        [b"v"], records=record(0, b"v", key=b"k"), producer_id=producer_id, producer_epoch=0, base_sequence=sequence
    )
    with Connection(broker) as connection:
        answer = produce(connection, topic, data)
    return answer["error_code"], answer["base_offset"]


def test_an_idempotent_producer_continues_after_its_records_were_compacted(compacting):
    topic = compacted_topic(compacting)
    with Connection(compacting) as connection:
        producer_id = new_producer_id(connection)["producer_id"]
    assert [send(compacting, topic, producer_id, sequence) for sequence in range(4)] == [(0, at) for at in range(4)]
    put(compacting, topic, [(b"k", b"of another")])
    seal(compacting, topic)
    wait_until_cleaned(compacting, topic, 5)
    assert read_all(compacting, topic)[0].offset == 4
    compacting.kill()
    (compacting.data / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    for snapshot in (compacting.data / f"{topic}-0").glob("*.snapshot"):
        snapshot.unlink()  # so that all there is to know stands in the log
    compacting.start()
    assert send(compacting, topic, producer_id, 3) == (0, 3), "a retry of the last batch"
    error, offset = send(compacting, topic, producer_id, 4)
    assert error == 0
    assert offset > 4


# -- kill -9


class Writer:
    """Writes ever newer versions of some keys, and remembers what was acknowledged."""

    def __init__(self, broker: WatchedBroker, topic: str, keys: int) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "batch.num.messages": 50,
                "message.timeout.ms": 120_000,
                "retry.backoff.ms": 50,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self._topic = topic
        self._keys = keys
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.version = 0
        self.at_offset: dict[int, tuple[bytes, int]] = {}
        self.acknowledged: dict[bytes, int] = {}
        self.failures: list[Any] = []
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for number in random.sample(range(self._keys), 20):
                key = b"key %d" % number
                self.version += 1
                value = b"%d " % self.version + os.urandom(60)
                self._producer.produce(self._topic, value, key, on_delivery=self._delivered)
            self._producer.poll(0.005)
        self._producer.flush(60)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures.append(error)
            return
        version = int(message.value().split(b" ")[0])
        self.at_offset[message.offset()] = (message.key(), version)
        self.acknowledged[message.key()] = max(version, self.acknowledged.get(message.key(), 0))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def check(broker: WatchedBroker, topic: str, writer: Writer) -> int:
    """Nothing that was acknowledged is lost or has moved; returns how many records there are."""
    found = read_all(broker, topic)
    newest: dict[bytes | None, int] = {}
    for kept in found:
        assert kept.value is not None
        version = int(kept.value.split(b" ")[0])
        assert writer.at_offset.get(kept.offset, (kept.key, version)) == (kept.key, version)
        newest[kept.key] = version
    lost = {key: version for key, version in writer.acknowledged.items() if newest.get(key, 0) < version}
    assert lost == {}
    return len(found)


@pytest.mark.long
@pytest.mark.broker_may_log("the process of .* was killed .*; it will be tried again")
@pytest.mark.broker_may_log("was cut at")
def test_nothing_is_lost_when_broker_and_cleaner_are_killed_under_load(compacting):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    topic = compacted_topic(compacting)
    writer = Writer(compacting, topic, keys=200)
    try:
        for number in range(6):
            before = compacting.log_text().count("compacted up to")
            deadline = time.monotonic() + 0.5 + chance.random()
            while time.monotonic() < deadline or compacting.log_text().count("compacted up to") == before:
                for child in children(compacting.pid):
                    # After the deadline one may come through, however slow the machine is.
                    if number % 2 and time.monotonic() < deadline and chance.random() < 0.05:
                        os.kill(child, signal.SIGKILL)
                time.sleep(0.01)
            if number % 3:
                wait_for(lambda: children(compacting.pid), "the cleaner to be at work")
            compacting.kill()
            compacting.start()
    finally:
        writer.stop()
    assert writer.failures == []
    assert writer.version > 1000
    check(compacting, topic, writer)
    end = CONFLUENT.bounds(compacting.bootstrap, topic)[1]
    put(compacting, topic, [(b"filler", b"0 " + b"x" * (SEGMENT_BYTES - 500))])
    put(compacting, topic, [(b"filler", b"0 " + b"x" * (SEGMENT_BYTES - 500))])
    wait_until_cleaned(compacting, topic, end)
    assert check(compacting, topic, writer) <= 200 + 2
    assert compacting.stop() == 0
    compacting.start()
    assert check(compacting, topic, writer) <= 200 + 2


# -- Apache Kafka's own tools


@pytest.mark.skipif(
    shutil.which("java") is None or kafka_version(KAFKA_JARS) is None,
    reason="Java and Apache Kafka's jars are not here (make bench fetches them)",
)
def test_apache_kafka_reads_the_segments(compacting):
    topic = compacted_topic(compacting, index_interval_bytes=500)
    for codec in CODECS:
        pairs: list[tuple[bytes, bytes | None]] = [(b"%d" % (at % 40), b"x" * 50) for at in range(120)]
        put(compacting, topic, [*pairs, (b"39", None)], codec=codec, idempotent=True)
    seal(compacting, topic)
    wait_until_cleaned(compacting, topic, 600)
    compacting.stop()
    directory = compacting.data / f"{topic}-0"
    compacted = directory / min(segments(compacting, topic))
    files = [str(compacted.with_suffix(suffix)) for suffix in (".log", ".index", ".timeindex")]
    command = ["java", "-cp", f"{KAFKA_JARS}/*", "org.apache.kafka.tools.DumpLogSegments"]
    dumped = subprocess.run(
        [*command, "--deep-iteration", "--files", ",".join(files)], capture_output=True, text=True, check=True
    )
    assert "isvalid: true" in dumped.stdout
    assert "isvalid: false" not in dumped.stdout
    assert "deleteHorizonMs: OptionalLong[" in dumped.stdout
    assert "offset: " in dumped.stdout
    for complaint in ("Mismatches", "Found timestamp mismatch", "out of order", "non-consecutive", "Exception"):
        assert complaint not in dumped.stdout + dumped.stderr, dumped.stdout[-3000:]
