"""Three real brokers on one store, with an admin client."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.local.cluster import LocalCluster
from ottla.local.waiting import wait_for

SETTINGS = {
    "replica.lag.time.max.ms": "1500",
    "offsets.topic.replication.factor": "3",
    "replica.fetch.backoff.ms": "200",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
}


class Brokers(LocalCluster):
    """Brokers 1, 2, 3 of one cluster, of which the first is the controller, and what an admin client sees of them."""

    def __init__(self, directory: Path, racks: str = "", **settings: str) -> None:
        """`racks`: one letter for each broker."""
        super().__init__(directory, 3, settings={**SETTINGS, **settings})
        for broker, rack in zip(self.brokers.values(), racks, strict=False):
            broker.settings["broker.rack"] = rack
        self.start_controller()
        self.start()
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap_all})

    def start_controller(self) -> None:
        try:
            self[1].start()
        except BaseException:
            self.kill()
            raise

    @property
    def bootstrap(self) -> str:
        return self.bootstrap_all

    def close(self) -> None:
        """Its data is not needed any more."""
        self.kill()

    def restore(self) -> None:
        """Three that run, with every replica in sync: as they were before a test killed or paused some."""
        for broker in self.brokers.values():
            broker.resume()
        self.start()
        wait_for(self._whole, "three brokers, and every replica in sync", 60)

    def _whole(self) -> bool:
        seen = self._metadata()
        partitions = [each for topic in seen.topics.values() for each in topic.partitions.values()] if seen else []
        return (
            seen is not None
            and len(seen.brokers) == 3
            and all(each.leader > 0 and len(each.isrs) == len(each.replicas) for each in partitions)
        )

    def topic(self, name: str = "", partitions: int = 1, **configs: str) -> str:
        """A new topic; without a name, one that no other test uses."""
        name = name or f"t-{uuid.uuid4().hex[:8]}"
        config = {key.replace("_", "."): value for key, value in configs.items()}
        self.admin.create_topics([NewTopic(name, partitions, 3, config=config)])[name].result(10)
        wait_for(lambda: len(self.partition(name).isrs) == 3, "three in sync")
        return name

    def partition(self, topic: str, index: int = 0) -> Any:
        """A broker may answer that has not yet seen the topic's creation."""
        seen = wait_for(lambda: (seen := self._metadata(topic)) and seen.topics[topic].partitions, "the topic", 30)
        return seen[index]

    def _metadata(self, topic: str | None = None) -> Any:
        """librdkafka waits for a killed or paused broker while it has no other connection: a new client has others."""
        try:
            return self.admin.list_topics(topic, timeout=2)
        except confluent_kafka.KafkaException as failure:
            if failure.args[0].code() not in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT):
                raise
            self.admin = AdminClient({"bootstrap.servers": self.bootstrap_all})
            return None

    def in_sync(self, topic: str, count: int) -> None:
        wait_for(lambda: len(self.partition(topic).isrs) == count, f"{count} in sync", 20)

    def leader(self, topic: str) -> int:
        return wait_for(lambda: max(self.partition(topic).leader, 0), "a leader", 20)

    def followers(self, topic: str) -> list[int]:
        return [number for number in (1, 2, 3) if number != self.leader(topic)]


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
