"""Group coordinator failover on a cluster: offsets, memberships and assignments survive."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from ottla.local.waiting import wait_for
from tests.harness.cluster import Brokers, produce

NOT_YET = {
    confluent_kafka.KafkaError.NOT_COORDINATOR,
    confluent_kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
    confluent_kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    confluent_kafka.KafkaError._TIMED_OUT,
}


@pytest.fixture(scope="module")
def shared_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    settings = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "3"}
    made = Brokers(tmp_path_factory.mktemp("brokers"), **settings)
    yield made
    made.close()


def coordinator_of(brokers: Brokers, group: str) -> int:

    def ask() -> int | None:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})  # a client without metadata
        try:
            return int(admin.describe_consumer_groups([group])[group].result(20).coordinator.id)
        except confluent_kafka.KafkaException:
            return None

    return wait_for(ask, "the coordinator", 40)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_continues_after_its_coordinator_dies(brokers, protocol):
    topic = brokers.topic(min_insync_replicas="2")
    values = [str(n) for n in range(300)]
    produce(brokers.bootstrap, topic, *values[:100])
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": brokers.bootstrap,
            "group.id": protocol,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **({"session.timeout.ms": 6000} if protocol == "classic" else {}),
        }
    )
    consumer.subscribe([topic])
    got: list[str] = []

    def read_until(count: int) -> None:
        def more() -> bool:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                got.append(message.value().decode())
            return len(got) >= count

        wait_for(more, f"{count} records", 60)

    try:
        read_until(100)
        consumer.commit(asynchronous=False)
        dead = coordinator_of(brokers, protocol)
        brokers[dead].kill()
        produce(brokers.bootstrap, topic, *values[100:200])
        read_until(200)
        wait_for(lambda: committed(consumer, topic), "a commit at the new coordinator", 60)
        assert coordinator_of(brokers, protocol) != dead
        brokers[dead].start()
        brokers.in_sync(topic, 3)
        produce(brokers.bootstrap, topic, *values[200:])
        read_until(300)
        assert got == values
    finally:
        consumer.close()


def committed(consumer: confluent_kafka.Consumer, topic: str) -> bool:
    try:
        consumer.commit(asynchronous=False)
    except confluent_kafka.KafkaException:
        return False
    (at,) = consumer.committed([TopicPartition(topic, 0)], timeout=10)
    return bool(at.offset == 200)


def commits(writer: confluent_kafka.Consumer, topic: str, offset: int) -> bool:
    try:
        writer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    except confluent_kafka.KafkaException:
        return False
    return True


def position(reader: confluent_kafka.Consumer, topic: str) -> int | None:
    """What the group has committed; None while those who know are finding out that they do."""
    try:
        (at,) = reader.committed([TopicPartition(topic, 0)], timeout=20)
    except confluent_kafka.KafkaException as failure:
        if failure.args[0].code() not in NOT_YET:
            raise
        return None
    return int(at.offset)


def test_no_acknowledged_offset_commit_is_lost_when_brokers_are_killed(brokers):
    topic = brokers.topic(min_insync_replicas="2")
    produce(brokers.bootstrap, topic, *(str(n) for n in range(100)))

    def client() -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(
            {"bootstrap.servers": brokers.bootstrap, "group.id": "c", "enable.auto.commit": False}
        )

    last = 0
    for round_ in range(3):
        writer = client()
        for offset in range(last + 1, last + 11):
            wait_for(partial(commits, writer, topic, offset), "a commit", 40)
            last = offset
        dead = coordinator_of(brokers, "c")
        brokers[dead].kill()
        writer.close()
        reader = client()
        assert wait_for(partial(position, reader, topic), "an answer", 40) == last, f"round {round_}"
        reader.close()
        brokers[dead].start()
        brokers.in_sync("__consumer_offsets", 3)
