"""Readers who find a backlog in many partitions: every record comes, whatever the limits of a Fetch are.

`test_java.py` has the same for the Java client, on a larger scale.
"""

from __future__ import annotations

import asyncio

import confluent_kafka
import pytest

from ottla.client.consuming.consumer import Consumer
from ottla.client.values import TopicPartition
from tests.client.clients import run
from tests.harness.raw import Connection, batch, produce

PARTITIONS = 24
BATCHES = 6
TIMEOUT_S = 45.0

LIMITS = {
    "the defaults": {},
    "batches larger than an answer": {"fetch.max.bytes": 40_000},
    "batches larger than a partition's share": {"max.partition.fetch.bytes": 10_000},
    "batches larger than both": {"fetch.max.bytes": 40_000, "max.partition.fetch.bytes": 10_000},
    "an answer holds a few batches": {"fetch.max.bytes": 300_000},
}


def values_of(partition: int, number: int) -> list[bytes]:
    """Those of one batch: from 1 kB to 160 kB in all, different from partition to partition."""
    count = 1 << (partition + number) % 6
    return [b"%d/%d/%d" % (partition, number, each) + b"x" * 5_000 for each in range(count)]


EXPECTED = {
    partition: [value for number in range(BATCHES) for value in values_of(partition, number)]
    for partition in range(PARTITIONS)
}
COUNT = sum(map(len, EXPECTED.values()))


@pytest.fixture
def backlog(broker, make_topic) -> str:
    topic: str = make_topic(PARTITIONS)
    with Connection(broker) as connection:
        for partition in range(PARTITIONS):
            for number in range(BATCHES):
                answer = produce(connection, topic, batch(values_of(partition, number)), partition=partition)
                assert answer["error_code"] == 0
    return topic


def by_librdkafka(bootstrap: str, topic: str, limits: dict[str, int]) -> dict[int, list[bytes]]:
    # It does not take a limit on answers below the one on messages.
    smallest = {"message.max.bytes": limits["fetch.max.bytes"]} if "fetch.max.bytes" in limits else {}
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False, **smallest, **limits}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    got: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    left = COUNT
    while left:
        messages = consumer.consume(left, timeout=TIMEOUT_S)
        assert messages, f"{left} of {COUNT} did not come"
        for message in messages:
            assert message.error() is None, message.error()
            got[message.partition()].append(message.value())
        left -= len(messages)
    consumer.close()
    return got


def by_our_client(bootstrap: str, topic: str, limits: dict[str, int]) -> dict[int, list[bytes]]:
    async def read() -> dict[int, list[bytes]]:
        got: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
        config = {"bootstrap.servers": bootstrap, **limits}
        async with asyncio.timeout(TIMEOUT_S), Consumer(config=config) as consumer:
            consumer.assign([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
            await consumer.seek_to_beginning()
            while sum(map(len, got.values())) < COUNT:
                for where, records in (await consumer.getmany(timeout_ms=1_000)).items():
                    got[where.partition] += [record.value for record in records]
        return got

    return run(read())


@pytest.mark.parametrize("read", [by_librdkafka, by_our_client])
@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS.keys())
def test_every_record_of_a_backlog_in_many_partitions_is_read(broker, backlog, read, limits):
    assert read(broker.bootstrap, backlog, limits) == EXPECTED
