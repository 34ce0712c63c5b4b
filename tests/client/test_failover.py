"""Our clients on three real brokers while leaders and coordinators die."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client.admin import Admin, NewTopic
from ottla.client.consuming.consumer import Consumer
from ottla.client.producing.producer import Producer
from ottla.client.values import TopicPartition
from ottla.local.waiting import until
from tests.client.clients import run
from tests.conftest import EXTERNAL
from tests.harness import topics
from tests.harness.cluster import Brokers

pytestmark = pytest.mark.skipif(bool(EXTERNAL), reason="needs broker processes of its own")

RECORDS = 4000
PARTITIONS = 3


shared_brokers = topics.shared_brokers
brokers = topics.brokers


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_leader_that_dies_costs_no_record_and_no_order(brokers: Brokers, protocol, fresh_name):
    topic = fresh_name()

    async def scenario() -> None:
        async with Admin(brokers.bootstrap) as admin:
            await admin.create_topics([NewTopic(topic, PARTITIONS, 3, {"min.insync.replicas": "2"})])
        seen: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}

        async def read(consumer: Consumer) -> None:
            async for record in consumer:
                if int(record.value) not in seen[record.partition][-500:]:  # read again after a coordinator was lost
                    seen[record.partition].append(int(record.value))

        consumer = Consumer(
            topic,
            bootstrap_servers=brokers.bootstrap,
            group_id=topic,
            group_protocol=protocol,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=200,
        )
        async with consumer, Producer(brokers.bootstrap, linger_ms=2, request_timeout_ms=5000) as producer:
            reading = asyncio.create_task(read(consumer))
            sent = []
            for number in range(RECORDS):
                sent.append(await producer.send(topic, b"%d" % number, partition=number % PARTITIONS))
                if number == RECORDS // 2:
                    await asyncio.gather(*sent)
                    await asyncio.to_thread(brokers[brokers.leader(topic)].kill)
                if number % 10 == 0:
                    await asyncio.sleep(0.001)
            written = [metadata.offset for metadata in await asyncio.gather(*sent)]
            for partition in range(PARTITIONS):
                offsets = [at for at in written[partition::PARTITIONS] if at >= 0]
                assert offsets == sorted(offsets)
            await until(lambda: sum(map(len, seen.values())) >= RECORDS, "everything read", 45)
            ends = await consumer.end_offsets([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
            assert sum(ends.values()) == RECORDS, "nothing is in the log twice"
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        assert seen == {partition: list(range(partition, RECORDS, PARTITIONS)) for partition in range(PARTITIONS)}

    run(scenario())


def test_partitions_move_and_preferred_replicas_lead(brokers: Brokers, fresh_name):
    topic = fresh_name()

    async def scenario() -> None:
        topic_partition = TopicPartition(topic, 0)
        async with Admin(brokers.bootstrap) as admin, Producer(brokers.bootstrap) as producer:
            await admin.create_topics([NewTopic(topic, assignment={0: [1, 2]})])
            await producer.send_and_wait(topic, b"before")
            await admin.reassign({topic_partition: [3, 2]})

            async def moved() -> bool:
                partition = (await admin.describe_topics([topic]))[topic].partitions[0]
                return partition.replicas == (3, 2) and set(partition.in_sync) == {2, 3}

            await until(moved, "the move")
            assert await admin.list_reassignments() == {}
            await admin.elect_leaders([topic_partition])

            async def led() -> bool:
                return (await admin.describe_topics([topic]))[topic].partitions[0].leader == 3

            await until(led, "the preferred leader")
            assert (await producer.send_and_wait(topic, b"after")).offset == 1

    run(scenario())
