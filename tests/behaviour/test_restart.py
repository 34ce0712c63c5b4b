"""Data outlives the process: clean stops, kill -9, and kill -9 again under load."""

from __future__ import annotations

import signal
import threading
import time
import uuid
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.behaviour.test_api_versions import topic_id_of
from tests.behaviour.test_idempotence import IdempotentProducer, new_producer_id
from tests.harness.brokers import WatchedBroker
from tests.harness.raw import Connection, batch, fetch, produce
from tests.harness.topics import create_topic
from tests.interop.clients import CODECS, Confluent, Record

CONFLUENT = Confluent()


@pytest.fixture
def broker(own_broker: WatchedBroker) -> WatchedBroker:
    return own_broker


def topic_on(broker: WatchedBroker, partitions: int = 1, **config: Any) -> str:
    name = f"kept-{uuid.uuid4().hex[:8]}"
    return create_topic(AdminClient({"bootstrap.servers": broker.bootstrap}), name, partitions, **config)


def all_bytes(broker: WatchedBroker, topic: str) -> bytes:
    """Everything in partition 0, as it lies in the log."""
    data, offset = b"", 0
    with Connection(broker) as connection:
        while True:
            answer = fetch(connection, topic, offset, partition_max_bytes=64 << 20, max_bytes=64 << 20)
            assert answer["error_code"] == 0
            if not answer["records"]:
                return data
            data += answer["records"]
            offset = answer["high_watermark"]


def kill_and_restart(broker: WatchedBroker) -> None:
    broker.kill()
    broker.start()


def stop_and_restart(broker: WatchedBroker) -> None:
    assert broker.stop() == 0
    broker.start()


RESTARTS = {"kill -9": kill_and_restart, "clean stop": stop_and_restart}


@pytest.fixture(params=RESTARTS.values(), ids=list(RESTARTS))
def restart(request):
    return request.param


def test_every_byte_is_there_after_a_restart(broker, restart):
    topic = topic_on(broker)
    for codec in CODECS:
        records = [Record(f"{codec} {i}".encode() * 50, b"k", (("h", b"v"),)) for i in range(200)]
        CONFLUENT.produce(broker.bootstrap, topic, records, codec=codec)
    before = all_bytes(broker, topic)
    restart(broker)
    assert all_bytes(broker, topic) == before
    assert CONFLUENT.bounds(broker.bootstrap, topic) == (0, 1_000)
    assert CONFLUENT.produce(broker.bootstrap, topic, [Record(b"next")]) == [1_000]


def test_many_small_segments_are_there_after_a_restart(broker, restart):
    topic = topic_on(broker, segment_bytes=1_048_576)
    for _ in range(5):
        CONFLUENT.produce(broker.bootstrap, topic, [Record(b"x" * 100_000) for _ in range(12)])
    before = all_bytes(broker, topic)
    restart(broker)
    assert all_bytes(broker, topic) == before
    segments = [path.name for path in broker.data.rglob("*.log") if path.parent.name == f"{topic}-0"]
    assert len(segments) > 3


def test_topics_ids_and_configurations_are_there_after_a_restart(broker, restart):
    topic = topic_on(broker, partitions=3, retention_ms=123_456)
    with Connection(broker) as connection:
        topic_id = topic_id_of(connection, topic)
        cluster_id = connection.call("metadata", 9, topics=[])["cluster_id"]
    restart(broker)
    with Connection(broker) as connection:
        assert topic_id_of(connection, topic) == topic_id
        assert connection.call("metadata", 9, topics=[])["cluster_id"] == cluster_id
        answer = connection.call("describe_configs", 4, resources=[{"resource_type": 2, "resource_name": topic}])
    configs = {each["name"]: each["value"] for each in answer["results"][0]["configs"]}
    assert configs["retention.ms"] == "123456"


def test_deleted_records_stay_deleted_after_a_restart(broker, restart):
    topic = topic_on(broker)
    CONFLUENT.produce(broker.bootstrap, topic, [Record(b"x")] * 10)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    partition = confluent_kafka.TopicPartition(topic, 0, 4)
    admin.delete_records([partition])[partition].result(30)
    restart(broker)
    assert CONFLUENT.bounds(broker.bootstrap, topic) == (4, 10)


def test_a_deleted_topic_stays_deleted_after_a_restart(broker, restart):
    topic = topic_on(broker)
    CONFLUENT.produce(broker.bootstrap, topic, [Record(b"x")])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    restart(broker)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    assert topic not in admin.list_topics(timeout=10).topics


def test_a_producers_sequence_is_remembered_over_a_restart(broker, restart):
    topic = topic_on(broker)
    with Connection(broker) as connection:
        answer = new_producer_id(connection)
        producer_id = answer["producer_id"]
        producer = IdempotentProducer(connection, topic, producer_id, 0)
        for sequence in range(3):
            assert producer.send(sequence) == (0, sequence)
    restart(broker)
    with Connection(broker) as connection:
        producer = IdempotentProducer(connection, topic, producer_id, 0)
        assert producer.send(2) == (0, 2), "a repeat is recognised"
        assert producer.send(7)[0] == 45, "a gap is refused"
        assert producer.send(3) == (0, 3)
        assert new_producer_id(connection)["producer_id"] > producer_id


@pytest.mark.broker_may_log("the last batch is not whole")
def test_a_torn_tail_is_cut_at_the_last_whole_batch(broker):
    topic = topic_on(broker)
    with Connection(broker) as connection:
        for _ in range(5):
            produce(connection, topic, batch([b"x" * 100]))
    before = all_bytes(broker, topic)
    broker.kill()
    log = next(broker.data.rglob(f"{topic}-0/*.log"))
    with log.open("ab") as file:
        file.write(batch([b"torn" * 100], base_offset=5)[:-50])
    broker.start()
    assert all_bytes(broker, topic) == before
    with Connection(broker) as connection:
        assert produce(connection, topic, batch())["base_offset"] == 5


def test_lost_indexes_are_rebuilt(broker):
    topic = topic_on(broker)
    times = [1_750_000_000_000, 1_750_000_000_100, 1_750_000_000_200]
    for timestamp_ms in times:
        CONFLUENT.produce(broker.bootstrap, topic, [Record(b"x" * 1_000, timestamp_ms=timestamp_ms)] * 100)
    broker.kill()
    for pattern in ("*.index", "*.timeindex"):
        for path in broker.data.rglob(f"{topic}-0/{pattern}"):
            path.unlink()
    broker.start()
    assert CONFLUENT.offset_at(broker.bootstrap, topic, times[1]) == 100
    assert CONFLUENT.consume(broker.bootstrap, topic, 1, start=250)[0].offset == 250


def test_nothing_acknowledged_is_lost_doubled_or_reordered_over_repeated_kills(broker):
    """An idempotent producer writes through three kills of the broker; everything is counted."""
    topic = topic_on(broker)
    acknowledged: list[int] = []
    failures: list[object] = []
    stop = threading.Event()
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "reconnect.backoff.max.ms": 200,
            "message.timeout.ms": 60_000,
            "linger.ms": 1,
        }
    )

    def delivered(error: object, message: Any) -> None:
        if error is None:
            acknowledged.append(int(message.value()))
        else:
            failures.append(error)

    def write() -> None:
        number = 0
        while not stop.is_set():
            producer.produce(topic, value=str(number), partition=0, on_delivery=delivered)
            number += 1
            producer.poll(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            seen = len(acknowledged)
            deadline = time.monotonic() + 30
            while len(acknowledged) < seen + 200:
                assert time.monotonic() < deadline, "no progress after a restart"
                time.sleep(0.01)
            kill_and_restart(broker)
    finally:
        stop.set()
        writer.join()
    assert producer.flush(60) == 0
    assert not failures
    _, end = CONFLUENT.bounds(broker.bootstrap, topic)
    stored = [int(record.value or b"") for record in CONFLUENT.consume(broker.bootstrap, topic, end)]
    assert sorted(set(acknowledged) - set(stored)) == [], "lost"
    assert len(stored) == len(set(stored)), "doubled"
    assert stored == sorted(stored), "reordered"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_broker_cleanly(broker, number):
    topic_on(broker)
    with Connection(broker) as connection:
        connection.call("api_versions", 0)
        broker.send_signal(number)
        assert broker.wait(15) == 0


def test_files_named_like_a_partition_are_left_alone(broker):
    """The embedded store keeps such files beside the logs."""
    assert broker.stop() == 0
    file = broker.data / "store.db-session-1460159442781289"
    file.write_bytes(b"")
    broker.start()
    topic_on(broker)
    assert file.read_bytes() == b""
