"""The topic that remembers offsets: compacted, and no commit forgotten by it."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from tests.harness.brokers import WatchedBroker
from tests.harness.compacted import EAGER, segments, wait_until_cleaned

OFFSETS = "__consumer_offsets"
PARTITIONS = 50
COMMITS = 900
SETTINGS = ("--set", "offsets.topic.num.partitions=1", "--set", "offsets.topic.segment.bytes=1048576")


def partitions_at(offset: int) -> list[TopicPartition]:
    return [TopicPartition("t", index, offset) for index in range(PARTITIONS)]


def member(broker: WatchedBroker) -> Consumer:
    return Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False})


def committed(broker: WatchedBroker) -> set[int]:
    consumer = member(broker)
    try:
        return {partition.offset for partition in consumer.committed(partitions_at(0), 20)}
    finally:
        consumer.close()


def test_offsets_live_in_a_compacted_topic_and_outlive_its_compaction(start_broker):
    broker = start_broker(*EAGER, *SETTINGS)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(20)
    consumer = member(broker)
    for offset in range(1, COMMITS + 1):
        consumer.commit(offsets=partitions_at(offset), asynchronous=False)
    consumer.close()
    resource = ConfigResource(ConfigResource.Type.TOPIC, OFFSETS)
    assert admin.describe_configs([resource])[resource].result(20)["cleanup.policy"].value == "compact"
    wait_until_cleaned(broker, OFFSETS, PARTITIONS * COMMITS // 3)
    assert sum(segments(broker, OFFSETS).values()) < 2 * 1048576  # of about 2.5 MB that were written
    assert committed(broker) == {COMMITS}
    broker.kill()
    broker.start()
    assert committed(broker) == {COMMITS}
