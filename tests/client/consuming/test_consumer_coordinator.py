"""Where a consumer reads on: after a seek, past records that cannot be read, in a topic that was made again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from ottla.client.admin import Admin
from ottla.client.consuming.consumer import Consumer
from ottla.client.consuming.consumer_coordinator import RebalanceListener
from ottla.client.consuming.consumer_records import NotDeserialized
from ottla.client.errors import ClientError, CommitFailed, UnknownTopic
from ottla.client.producing.producer import Producer
from ottla.client.values import TopicPartition
from ottla.errors import ErrorCode
from ottla.local.waiting import until
from ottla.testing import Broker
from ottla.wire.schema.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from tests.client.clients import create, run, write
from tests.conftest import Served


async def filled(broker: Served, topic: str, values: list[bytes]) -> TopicPartition:
    await create(broker.bootstrap, topic)
    await write(broker.bootstrap, topic, values)
    return TopicPartition(topic, 0)


def test_a_seek_right_after_an_assignment_outweighs_what_was_committed(broker: Served, fresh_name):
    async def scenario() -> None:
        partition = await filled(broker, fresh_name(), [b"v"] * 10)
        settings: dict[str, Any] = {"bootstrap_servers": broker.bootstrap, "group_id": partition.topic}
        async with Consumer(enable_auto_commit=False, **settings) as consumer:
            consumer.assign([partition])
            await consumer.commit({partition: 8})
            consumer.assign([])
            consumer.assign([partition])
            assert (await consumer.getone()).offset == 8
        async with Consumer(enable_auto_commit=False, **settings) as consumer:
            consumer.assign([partition])
            consumer.seek(partition, 2)
            assert (await consumer.getone()).offset == 2
        async with Consumer(enable_auto_commit=False, **settings) as consumer:
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            assert (await consumer.getone()).offset == 0

    run(scenario())


def test_consumer_topic_id_is_that_of_the_topic_it_reads(broker: Served, fresh_name):
    async def scenario() -> None:
        partition = await filled(broker, fresh_name(), [b"v"])
        async with Admin(bootstrap_servers=broker.bootstrap) as admin:
            described = (await admin.describe_topics([partition.topic]))[partition.topic]
        async with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([partition])
            assert consumer.topic_id(partition) == bytes(16)
            await consumer.getone()
            assert consumer.topic_id(partition) == described.topic_id

    run(scenario())


def test_commit_failed_is_raised_to_a_fenced_member_for_any_number_of_partitions(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic, 2)
        async with Consumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id=topic,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=20_000,  # nothing but the commit tells
        ) as consumer:
            await until(lambda: len(consumer.assignment()) == 2, "its partitions")
            offsets = dict.fromkeys(consumer.assignment(), 0)
            async with Admin(broker.bootstrap) as admin:
                member = MemberIdentity(member_id=consumer.group_metadata().member_id)
                leave = LeaveGroupRequest(group_id=topic, members=[member])
                await admin._driver.call(leave, LeaveGroupResponse, timeout_s=10)
            with pytest.raises(CommitFailed) as failed:
                await consumer.commit(offsets)
            assert failed.value.code is ErrorCode.unknown_member_id
            assert set(failed.value.errors) == set(offsets)

    run(scenario())


def test_damaged_records_are_reported_although_other_partitions_have_records(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic, 3)
        async with Producer(broker.bootstrap) as producer:
            for partition, values in enumerate(([b"bad", b"1"], [b"bad", b"2"], [b"3"])):
                for value in values:
                    await producer.send_and_wait(topic, value, partition=partition)
        async with Consumer(
            topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", value_deserializer=int
        ) as consumer:
            read: list[int] = []
            skipped: list[TopicPartition] = []
            for _ in range(20):
                try:
                    for records in (await consumer.getmany(timeout_ms=1000)).values():
                        read += [record.value for record in records]
                except NotDeserialized as error:
                    skipped.append(error.partition)
                    consumer.seek(error.partition, error.offset + 1)
                if len(read) == 3:
                    break
            assert sorted(read) == [1, 2, 3]
            assert sorted(skipped) == [TopicPartition(topic, 0), TopicPartition(topic, 1)]
            assert await consumer.getmany(timeout_ms=50) == {}

    run(scenario())


def test_a_damaged_record_is_reported_by_the_next_poll(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic, 2)
        bad, good = TopicPartition(topic, 0), TopicPartition(topic, 1)
        async with Producer(broker.bootstrap) as producer:
            for partition in [bad, *[good] * 10]:
                await producer.send_and_wait(topic, b"bad" if partition is bad else b"1", partition=partition.partition)
        async with Consumer(bootstrap_servers=broker.bootstrap, value_deserializer=int) as consumer:
            consumer.assign([bad, good])
            await consumer.seek_to_beginning()
            await until(lambda: consumer.highwater(bad) == 1 and consumer.highwater(good) == 10, "both")
            assert list(await consumer.getmany(max_records=5)) == [good]
            assert list(await consumer.getmany(good, max_records=1)) == [good], "who does not ask is not told"
            with pytest.raises(NotDeserialized):
                await consumer.getmany()
            assert list(await consumer.getmany(max_records=5)) == [good]
            consumer.seek(bad, 1)
            assert await consumer.getmany(timeout_ms=50) == {}

    run(scenario())


def test_a_damaged_record_is_reported_before_other_partitions_are_fetched(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic, 3)
        partitions = [TopicPartition(topic, number) for number in range(3)]
        async with Producer(broker.bootstrap) as producer:
            for partition, value in zip(partitions, (b"bad", b"worse", b"1"), strict=True):
                await producer.send_and_wait(topic, value, partition=partition.partition)
        async with Consumer(bootstrap_servers=broker.bootstrap, value_deserializer=int) as consumer:
            consumer.assign(partitions)
            await consumer.seek_to_beginning()
            await until(lambda: all(consumer.highwater(partition) == 1 for partition in partitions), "all")
            assert list(await consumer.getmany(partitions[0], partitions[2])) == [partitions[2]]
            with pytest.raises(NotDeserialized, match="worse"):
                await consumer.getmany(partitions[1], timeout_ms=1000)
            with pytest.raises(NotDeserialized, match="bad"):
                await consumer.getmany(partitions[0], timeout_ms=1000)

    run(scenario())


def test_the_partitions_of_a_topic_that_was_deleted_and_made_again_are_found_out(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic)
        async with (
            Consumer(bootstrap_servers=broker.bootstrap, default_api_timeout_ms=1000) as consumer,
            Admin(broker.bootstrap) as admin,
        ):
            assert await consumer.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 0}
            await admin.delete_topics([topic])
            with pytest.raises(UnknownTopic):
                await consumer.end_offsets([TopicPartition(topic, 0)])
            metadata = consumer._driver.metadata
            await until(lambda: metadata.error(topic) is ErrorCode.unknown_topic_or_partition, "that it is gone")
            await create(broker.bootstrap, topic, 3)

            async def partitions() -> bool:
                return await consumer.partitions_for(topic) == {0, 1, 2}

            await until(partitions, "those of the new one")

    run(scenario())


SLOW_TO_RETRY: dict[str, Any] = {
    "group_id": "g", "auto_offset_reset": "earliest", "auto_commit_interval_ms": 10, "retry_backoff_ms": 1000,
    "heartbeat_interval_ms": 100,
}  # fmt: skip


async def refused_automatically(broker: Broker, consumer: Consumer) -> asyncio.Task[None]:
    """An automatic commit that waits to be tried again."""
    await consumer.getone()
    refused = broker.inject("OffsetCommit", error="COORDINATOR_LOAD_IN_PROGRESS", times=1)
    while not refused.hits:
        await consumer.getmany(timeout_ms=20, max_records=1)
    committing = consumer._coordinator._committing
    assert committing is not None
    return committing


async def refused_by_hand(broker: Broker, consumer: Consumer) -> asyncio.Task[None]:
    """The same for one that the user makes."""
    await consumer.getone()
    refused = broker.inject("OffsetCommit", error="COORDINATOR_LOAD_IN_PROGRESS", times=1)
    committing = asyncio.create_task(consumer.commit())
    await until(lambda: refused.hits, "a refusal")
    return committing


def test_a_commit_that_is_tried_again_does_not_undo_a_later_one():
    async def scenario(broker: Broker) -> None:
        partition = TopicPartition("t", 0)
        await write(broker.bootstrap_servers, "t", [b"v"] * 1000)
        async with Consumer(bootstrap_servers=broker.bootstrap_servers, **SLOW_TO_RETRY) as consumer:
            consumer.assign([partition])
            committing = await refused_automatically(broker, consumer)
            await consumer.commit({partition: 700})
            await committing
            assert await consumer.committed(partition) == 700

    with Broker() as broker:
        broker.create_topic("t")
        run(scenario(broker))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("refused", [refused_automatically, refused_by_hand], ids=["automatic", "by hand"])
def test_a_retried_commit_does_not_overwrite_a_commit_of_the_new_owner(protocol, refused):
    async def scenario(broker: Broker) -> None:
        settings = {
            "bootstrap_servers": broker.bootstrap_servers,
            "group_protocol": protocol,
            "enable_auto_commit": refused is refused_automatically,
            **SLOW_TO_RETRY,
        }
        partition, elsewhere = TopicPartition("t", 0), TopicPartition("u", 0)
        await write(broker.bootstrap_servers, "t", [b"v"] * 1000)
        async with Consumer("t", **settings) as one, Consumer(**settings) as other:
            committing = await refused(broker, one)
            one.subscribe(["u"])
            other.subscribe(["t"])
            await until(lambda: one.assignment() == {elsewhere} and other.assignment() == {partition}, "the other one")
            await other.getmany(timeout_ms=10_000)
            await other.commit()
            with suppress(CommitFailed):
                await committing
            assert await other.committed(partition) == await other.position(partition)

    with Broker() as broker:
        broker.create_topic("t")
        broker.create_topic("u")
        run(scenario(broker))


def test_a_listener_that_awaits_a_task_which_it_cancelled_does_not_stop_its_group():
    class Canceller(RebalanceListener):
        async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
            task = asyncio.create_task(asyncio.Event().wait())
            task.cancel()
            await task

    async def scenario(broker: Broker) -> None:
        settings: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers, **SLOW_TO_RETRY}
        partition = TopicPartition("t", 0)
        async with Consumer(**settings) as one, Consumer(**settings) as other:
            one.subscribe(["t"], listener=Canceller())
            await until(lambda: one.assignment() == {partition}, "the partition")
            one.subscribe(["u"], listener=Canceller())
            other.subscribe(["t"])
            await until(lambda: other.assignment() == {partition}, "the partition")
            with pytest.raises(ClientError, match="cancelled"):
                await one.getmany(timeout_ms=10)

    with Broker() as broker:
        broker.create_topic("t")
        broker.create_topic("u")
        run(scenario(broker))
