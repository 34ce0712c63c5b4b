"""Three real brokers on one store: what real clients see of replication."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.serving import BrokerProcess, wait_for

SETTINGS = {
    "replica.lag.time.max.ms": "1500",
    "offsets.topic.replication.factor": "3",
    "replica.fetch.backoff.ms": "200",
}


class Brokers:
    """Brokers 1, 2, 3 of one cluster."""

    def __init__(self, directory: Path, racks: str = "", **settings: str) -> None:
        self.all: dict[int, BrokerProcess] = {}
        try:
            for number in (1, 2, 3):
                self._start(number, directory, racks, {**SETTINGS, **settings})
        except BaseException:
            self.close()
            raise
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})

    def _start(self, number: int, directory: Path, racks: str, settings: dict[str, str]) -> None:
        sets = [f"{name}={value}" for name, value in settings.items()]
        sets += [f"broker.rack={racks[number - 1]}"] if racks else []  # one letter each
        broker = self.all[number] = BrokerProcess(
            directory / f"broker-{number}", "--id", str(number), "--store", f"embedded:{directory}/store.db",
            *(word for each in sets for word in ("--set", each)),
        )  # fmt: skip
        broker.start()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.all.values())

    def topic(self, name: str = "t", partitions: int = 1, **configs: str) -> str:
        config = {key.replace("_", "."): value for key, value in configs.items()}
        self.admin.create_topics([NewTopic(name, partitions, 3, config=config)])[name].result(10)
        wait_for(lambda: len(self.partition(name).isrs) == 3, "three in sync")
        return name

    def partition(self, topic: str, index: int = 0) -> Any:
        return self.admin.list_topics(topic, timeout=10).topics[topic].partitions[index]

    def in_sync(self, topic: str, count: int) -> None:
        wait_for(lambda: len(self.partition(topic).isrs) == count, f"{count} in sync", 20)

    def leader(self, topic: str) -> int:
        return wait_for(lambda: max(self.partition(topic).leader, 0), "a leader", 20)

    def followers(self, topic: str) -> list[int]:
        return [number for number in (1, 2, 3) if number != self.leader(topic)]

    def close(self) -> None:
        for broker in self.all.values():
            if broker.process is not None:
                broker.kill()


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    made = Brokers(tmp_path)
    yield made
    made.close()


def produce(bootstrap: str, topic: str, *values: str, timeout_s: float = 30, **config: Any) -> list[Any]:
    """What became of each: an offset or an error."""
    outcome: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": "all", **config})
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda e, m: outcome.append(e or m.offset()))
    assert producer.flush(timeout_s) == 0
    return outcome


def read(bootstrap: str, topic: str, count: int, **config: Any) -> list[str]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False,
         "auto.offset.reset": "error", **config}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    got: list[str] = []

    def more() -> bool:
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            got.append(message.value().decode())
        return len(got) >= count

    try:
        wait_for(more, f"{count} records", 30)
    finally:
        consumer.close()
    return got


def test_a_record_acknowledged_by_all_is_in_every_log(brokers):
    topic = brokers.topic()
    assert produce(brokers.bootstrap, topic, "a", "b", "c") == [0, 1, 2]
    logs = [broker.data / f"{topic}-0" / "00000000000000000000.log" for broker in brokers.all.values()]
    wait_for(lambda: len({log.read_bytes() for log in logs}) == 1, "the same bytes everywhere")
    assert logs[0].stat().st_size > 0


def test_the_leader_dies_and_another_takes_over_with_everything(brokers):
    topic = brokers.topic(min_insync_replicas="2")
    values = [str(n) for n in range(500)]
    produce(brokers.bootstrap, topic, *values[:250])
    dead = brokers.leader(topic)
    brokers.all[dead].kill()
    assert [type(each) for each in produce(brokers.bootstrap, topic, *values[250:])] == [int] * 250
    assert brokers.leader(topic) != dead
    assert read(brokers.bootstrap, topic, 500) == values
    brokers.all[dead].start()
    brokers.in_sync(topic, 3)


def test_below_the_minimum_in_sync_acks_all_is_refused_and_acks_one_is_not(brokers):
    topic = brokers.topic(min_insync_replicas="2")
    for follower in brokers.followers(topic):
        brokers.all[follower].kill()
    brokers.in_sync(topic, 1)
    (refused,) = produce(brokers.bootstrap, topic, "a", retries=0)
    assert refused.code() == confluent_kafka.KafkaError.NOT_ENOUGH_REPLICAS
    assert produce(brokers.bootstrap, topic, "b", acks=1) == [0]


def test_a_follower_that_stands_still_leaves_the_in_sync_set_and_comes_back(brokers):
    topic = brokers.topic(min_insync_replicas="2")
    slow = brokers.followers(topic)[0]
    brokers.all[slow].pause()
    assert produce(brokers.bootstrap, topic, "a", "b") == [0, 1]  # when it has been left out
    brokers.in_sync(topic, 2)
    brokers.all[slow].resume()
    brokers.in_sync(topic, 3)


def test_a_clean_stop_hands_over_first_and_no_error_reaches_a_producer(brokers):
    topic = brokers.topic(min_insync_replicas="2")
    for number in (1, 2, 3):
        producer = confluent_kafka.Producer({"bootstrap.servers": brokers.bootstrap, "acks": "all", "linger.ms": 1})
        outcome: list[Any] = []
        told = partial(note, outcome)
        for n in range(200):
            producer.produce(topic, str(n), partition=0, on_delivery=told)
            producer.poll(0.001)
        assert brokers.all[number].stop() == 0
        for n in range(200):
            producer.produce(topic, str(n), partition=0, on_delivery=told)
        assert producer.flush(30) == 0
        assert outcome == [None] * 400
        assert brokers.leader(topic) != number
        brokers.all[number].start()
        brokers.in_sync(topic, 3)


def note(outcome: list[Any], error: Any, message: Any) -> None:
    outcome.append(error)


def test_records_that_must_be_synced_are_acknowledged_when_they_are(brokers):
    topic = brokers.topic(min_insync_replicas="2", flush_messages="1")
    values = [str(n) for n in range(100)]
    assert produce(brokers.bootstrap, topic, *values) == list(range(100))
    assert read(brokers.bootstrap, topic, 100) == values


def test_a_consumer_reads_from_the_replica_in_its_rack(tmp_path):
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    brokers = Brokers(tmp_path, racks="abc", **{"replica.selector.class": selector})
    try:
        topic = brokers.topic()
        values = [str(n) for n in range(100)]
        produce(brokers.bootstrap, topic, *values)
        near = brokers.followers(topic)[0]
        seen: list[str] = []
        got = read(
            brokers.bootstrap, topic, 100, **{"client.rack": "abc"[near - 1], "debug": "fetch", "log_level": 7,
            "logger": Logger(seen)},
        )  # fmt: skip
        assert got == values
        assert any("preferred" in line.lower() and str(near) in line for line in seen)
    finally:
        brokers.close()


class Logger:
    """What librdkafka says."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def log(self, level: int, message: str, *args: object) -> None:
        self._lines.append(message % args if args else message)
