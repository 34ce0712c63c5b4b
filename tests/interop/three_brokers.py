"""Three real brokers on one store, and what a client says to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, TopicPartition
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
        return wait_for(lambda: self._metadata(topic), "an answer", 30).topics[topic].partitions[index]

    def _metadata(self, topic: str) -> Any:
        """librdkafka goes on asking one that was killed, if it has not heard of that when it begins."""
        try:
            return self.admin.list_topics(topic, timeout=2)
        except confluent_kafka.KafkaException as failure:
            if failure.args[0].code() not in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
                raise
            return None

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
