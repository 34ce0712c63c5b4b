"""The consumer with a real broker: alone, by assignment, in groups."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from ottla.client.consuming.consumer import Consumer
from ottla.client.consuming.consumer_coordinator import RebalanceListener
from ottla.client.consuming.consumer_records import NotDeserialized
from ottla.client.consuming.subscription_state import OffsetOutOfRange
from ottla.client.errors import BadSetting, ClientError, CommitFailed
from ottla.client.producing.producer import Producer
from ottla.client.values import TopicPartition
from ottla.local.waiting import until
from tests.client.clients import create, read, run, write
from tests.conftest import Served, StartBroker

PROTOCOLS = ["classic", "consumer"]


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


async def filled(broker: Served, topic: str, count: int = 100, partitions: int = 1) -> TopicPartition:
    await create(broker.bootstrap, topic, partitions)
    await write(broker.bootstrap, topic, numbers(count), partitioner="round_robin")
    return TopicPartition(topic, 0)


def test_without_a_group_all_partitions_are_read_also_those_that_come_later(broker: Served, fresh_name):
    from ottla.client.admin import Admin

    async def scenario() -> None:
        topic = fresh_name()
        await filled(broker, topic, 100, partitions=2)
        async with Consumer(
            topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", metadata_max_age_ms=200
        ) as consumer:
            assert {record.value for record in await read(consumer, 100)} == set(numbers(100))
            async with Admin(broker.bootstrap) as admin:
                await admin.create_partitions(topic, 3)
            async with Producer(broker.bootstrap) as producer:
                await until(lambda: consumer.assignment() == {TopicPartition(topic, n) for n in range(3)}, "the third")
                await producer.send_and_wait(topic, b"new", partition=2)
            assert (await consumer.getone()).value == b"new"

    run(scenario())


def test_an_assignment_begins_where_the_user_says(broker: Served, fresh_name):
    async def scenario() -> None:
        partition = await filled(broker, fresh_name())
        async with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
            consumer.assign([partition])
            assert await consumer.position(partition) == 100
            await consumer.seek_to_beginning(partition)
            assert (await consumer.getone()).offset == 0
            consumer.seek(partition, 40)
            assert (await consumer.getone()).offset == 40
            assert await consumer.position(partition) == 41
            assert consumer.highwater(partition) == 100
            assert consumer.lag() == {partition: 59}
            assert [r.offset for r in (await consumer.getmany(timeout_ms=5000, max_records=3))[partition]] == [
                41,
                42,
                43,
            ]
            await consumer.seek_to_end()
            assert await consumer.position(partition) == 100
            assert await consumer.getmany(timeout_ms=50) == {}
            with pytest.raises(ClientError, match="not assigned"):
                consumer.seek(TopicPartition("other", 0), 0)

    run(scenario())


def test_a_paused_partition_is_not_shown_until_it_is_resumed(broker: Served, fresh_name):
    async def scenario() -> None:
        partition = await filled(broker, fresh_name(), 100, partitions=2)
        other = TopicPartition(partition.topic, 1)
        async with Consumer(
            partition.topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            first = await consumer.getone()
            held = TopicPartition(first.topic, first.partition)
            consumer.pause(held)
            assert consumer.paused() == {held}
            free = other if held == partition else partition
            assert {record.partition for record in await read(consumer, 50)} == {free.partition}
            assert await consumer.getmany(timeout_ms=50) == {}
            consumer.resume(held)
            assert [record.offset for record in await read(consumer, 49)] == list(range(1, 50))

    run(scenario())


def test_only_the_partitions_asked_for_are_given(broker: Served, fresh_name):
    async def scenario() -> None:
        partition = await filled(broker, fresh_name(), 40, partitions=2)
        async with Consumer(
            partition.topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            assert list(await consumer.getmany(partition, timeout_ms=5000)) == [partition]
            other = TopicPartition(partition.topic, 1)
            assert (await consumer.getone(other)).partition == 1

    run(scenario())


def test_offsets_are_found_by_end_and_by_time(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic, 2)
        now = time.time_ns() // 1_000_000
        async with Producer(broker.bootstrap) as producer:
            for age in (3000, 2000, 1000):
                await producer.send_and_wait(topic, b"v", partition=0, timestamp_ms=now - age)
        full, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
        async with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
            assert await consumer.beginning_offsets([full, empty]) == {full: 0, empty: 0}
            assert await consumer.end_offsets([full, empty]) == {full: 3, empty: 0}
            found = await consumer.offsets_for_times({full: now - 2000, empty: 0})
            at = found[full]
            assert at is not None
            assert (at.offset, at.timestamp) == (1, now - 2000)
            assert found[empty] is None
            consumer.assign([full])
            await consumer.seek_to_time(now - 1500)
            assert (await consumer.getone()).offset == 2
        async with Consumer(bootstrap_servers=broker.bootstrap, default_api_timeout_ms=500) as consumer:
            with pytest.raises(ClientError, match="no partition 9"):
                await consumer.end_offsets([TopicPartition(topic, 9)])

    run(scenario())


def test_offset_out_of_range_resets_the_position_or_is_raised(broker: Served, fresh_name):
    async def scenario() -> None:
        partition = await filled(broker, fresh_name(), 10)
        async with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([partition])
            consumer.seek(partition, 5000)
            assert (await consumer.getone()).offset == 0
        async with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="none") as consumer:
            consumer.assign([partition])
            with pytest.raises(OffsetOutOfRange, match="no position"):
                await consumer.getone()
            consumer.seek(partition, 5000)
            with pytest.raises(OffsetOutOfRange, match="no offset 5000") as error:
                await consumer.getone()
            assert error.value.partition == partition
            consumer.seek(partition, 3)
            assert (await consumer.getone()).offset == 3

    run(scenario())


def test_a_value_that_cannot_be_read_stops_there_and_can_be_skipped(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic)
        await write(broker.bootstrap, topic, [b"1", b"2", b"no number", b"4"])
        partition = TopicPartition(topic, 0)
        for one_by_one in (True, False):
            async with Consumer(
                topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", value_deserializer=json.loads
            ) as consumer:
                if one_by_one:
                    values = [(await consumer.getone()).value for _ in range(2)]
                else:
                    values = [record.value for record in (await consumer.getmany(timeout_ms=5000))[partition]]
                assert values == [1, 2]
                with pytest.raises(NotDeserialized, match="at offset 2") as failed:
                    await (consumer.getone() if one_by_one else consumer.getmany(timeout_ms=5000))
                assert await consumer.position(partition) == 2
                consumer.seek(partition, failed.value.offset + 1)
                assert (await consumer.getone()).value == 4

    run(scenario())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_group_continues_at_its_committed_offset(broker: Served, fresh_name, protocol):
    async def scenario() -> None:
        topic = fresh_name()
        partition = await filled(broker, topic)
        settings = {"bootstrap_servers": broker.bootstrap, "group_id": topic, "group_protocol": protocol}
        async with Consumer(topic, auto_offset_reset="earliest", **settings) as consumer:
            async for record in consumer:
                if record.offset == 29:
                    break
            assert consumer.group_metadata().group_id == topic
            assert consumer.group_metadata().generation_id > 0
        async with Consumer(topic, **settings) as consumer:
            assert (await consumer.getone()).offset == 30
            assert await consumer.committed(partition) == 30

    run(scenario())


def test_records_that_the_user_failed_to_process_are_read_again(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        await filled(broker, topic)
        settings = {"bootstrap_servers": broker.bootstrap, "group_id": topic, "group_protocol": "consumer"}

        async def divide() -> None:
            async with Consumer(topic, auto_offset_reset="earliest", **settings) as consumer:
                async for record in consumer:
                    1 // (5 - int(record.value))

        with pytest.raises(ZeroDivisionError):
            await divide()
        async with Consumer(topic, **settings) as consumer:
            assert (await consumer.getone()).value == b"5"

    run(scenario())


def test_without_automatic_commits_only_what_is_committed_counts(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        partition = await filled(broker, topic)
        settings = {
            "bootstrap_servers": broker.bootstrap,
            "group_id": topic,
            "group_protocol": "consumer",
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
        }
        async with Consumer(topic, **settings) as consumer:
            await read(consumer, 10)
        async with Consumer(topic, **settings) as consumer:
            for _ in range(10):
                last = await consumer.getone()
            assert last.offset == 9
            assert await consumer.committed(partition) is None
            await consumer.commit()
            await consumer.getone()
        async with Consumer(topic, **settings) as consumer:
            assert (await consumer.getone()).offset == 10
            await consumer.commit({partition: (50, "half way")})
            await consumer.seek_to_committed()
            assert (await consumer.getone()).offset == 50

    run(scenario())


def test_the_auto_commit_interval_commits_while_the_consumer_reads(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        partition = await filled(broker, topic, 10)
        async with Consumer(
            bootstrap_servers=broker.bootstrap,
            group_id=topic,
            auto_commit_interval_ms=100,
            auto_offset_reset="earliest",
        ) as consumer:
            consumer.assign([partition])
            await read(consumer, 10)

            async def committed() -> bool:
                await consumer.getmany(timeout_ms=20)
                return await consumer.committed(partition) == 10

            await until(committed, "a commit")

    run(scenario())


def test_commits_need_a_group(broker: Served, fresh_name):
    async def scenario() -> None:
        partition = await filled(broker, fresh_name(), 1)
        async with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
            consumer.assign([partition])
            with pytest.raises(BadSetting, match="group_id"):
                await consumer.commit()
            with pytest.raises(BadSetting, match="group_id"):
                consumer.group_metadata()

    run(scenario())


class Diary(RebalanceListener):
    def __init__(self) -> None:
        self.reported: list[tuple[str, set[int]]] = []

    def on_partitions_assigned(self, assigned):
        self.reported.append(("assigned", {partition.partition for partition in assigned}))

    async def on_partitions_revoked(self, revoked):
        await asyncio.sleep(0)
        self.reported.append(("revoked", {partition.partition for partition in revoked}))


@pytest.mark.parametrize(
    ("protocol", "strategy"), [("classic", "range"), ("classic", "cooperative-sticky"), ("consumer", "range")]
)
def test_members_share_and_take_over_without_gap_or_repeat(broker: Served, fresh_name, protocol, strategy):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic, 4)
        settings = {
            "bootstrap_servers": broker.bootstrap,
            "group_id": topic,
            "group_protocol": protocol,
            "partition_assignment_strategy": strategy,
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": 100,
        }
        seen: list[bytes] = []

        async def eat(consumer: Consumer) -> None:
            while True:
                seen.append((await consumer.getone()).value)

        diary = Diary()
        async with Consumer(**settings) as stays:
            stays.subscribe([topic], listener=diary)
            eating = asyncio.create_task(eat(stays))
            await until(lambda: len(stays.assignment()) == 4, "all partitions")
            async with Consumer(topic, **settings) as goes:
                more = asyncio.create_task(eat(goes))
                await until(lambda: len(stays.assignment()) == len(goes.assignment()) == 2, "half each")
                await write(broker.bootstrap, topic, numbers(100), partitioner="round_robin")
                await until(lambda: len(seen) >= 100, "the first hundred")
                more.cancel()
                await asyncio.gather(more, return_exceptions=True)
            await until(lambda: len(stays.assignment()) == 4, "all partitions again")
            await write(broker.bootstrap, topic, numbers(100, 100), partitioner="round_robin")
            await until(lambda: len(seen) >= 200, "the second hundred")
            eating.cancel()
            await asyncio.gather(eating, return_exceptions=True)
        assert sorted(seen) == sorted(numbers(200))
        # Apache Kafka may let a member know of its empty hands before it deals anything out.
        reported = [(what, partitions) for what, partitions in diary.reported if partitions]
        assert reported[0] == ("assigned", {0, 1, 2, 3})
        assert reported[-1] == ("revoked", {0, 1, 2, 3})

    run(scenario())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_static_member_restarts_without_a_rebalance(broker: Served, fresh_name, protocol):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic, 4)
        settings = {
            "bootstrap_servers": broker.bootstrap,
            "group_id": topic,
            "group_protocol": protocol,
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": 100,
        }
        diary = Diary()
        async with Consumer(group_instance_id="stays", **settings) as stays:
            stays.subscribe([topic], listener=diary)
            polling = asyncio.create_task(read(stays, 1000))  # continues to the end: max.poll.interval.ms
            async with Consumer(topic, group_instance_id="restarts", **settings) as restarts:
                await until(lambda: len(stays.assignment()) == len(restarts.assignment()) == 2, "half each")
                await write(broker.bootstrap, topic, numbers(40), partitioner="round_robin")
                await read(restarts, 20)
                theirs, mine = restarts.assignment(), stays.assignment()
                generation = restarts.group_metadata().generation_id
            reported = len(diary.reported)
            async with Consumer(topic, group_instance_id="restarts", **settings) as again:
                await until(lambda: again.assignment() == theirs, "what it had before")
                await write(broker.bootstrap, topic, numbers(40, 40), partitioner="round_robin")
                assert min(int(record.value) for record in await read(again, 20)) >= 40, "on where it had committed"
                assert again.group_metadata().generation_id == generation
            assert stays.assignment() == mine
            assert diary.reported[reported:] == [], "nobody else noticed"
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)

    run(scenario())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_pattern_finds_topics_that_appear_later(broker: Served, fresh_name, protocol):
    async def scenario() -> None:
        stem = fresh_name()
        await create(broker.bootstrap, f"{stem}-a")
        async with Consumer(
            bootstrap_servers=broker.bootstrap,
            group_id=stem,
            group_protocol=protocol,
            auto_offset_reset="earliest",
            metadata_max_age_ms=200,
            heartbeat_interval_ms=100,
        ) as consumer:
            consumer.subscribe(pattern=f"{stem}-.")
            await until(lambda: {partition.topic for partition in consumer.assignment()} == {f"{stem}-a"}, "the first")
            await create(broker.bootstrap, f"{stem}-b")
            await create(broker.bootstrap, f"{stem}-long")
            await until(
                lambda: {partition.topic[-1] for partition in consumer.assignment()} == {"a", "b"}, "the second", 50
            )
            consumer.unsubscribe()
            await until(lambda: not consumer.assignment(), "nothing")

    run(scenario())


def test_a_member_that_exceeds_max_poll_interval_leaves_and_cannot_commit(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        await filled(broker, topic)
        async with Consumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id=topic,
            max_poll_interval_ms=300,
            session_timeout_ms=6000,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        ) as consumer:
            await consumer.getone()
            await until(lambda: not consumer.assignment(), "the end of patience")
            with pytest.raises(CommitFailed) as failed:
                await consumer.commit({TopicPartition(topic, 0): 1})
            assert failed.value.hint
            assert (await consumer.getone()).offset == 0

    run(scenario())


def test_an_error_in_a_callback_comes_with_the_next_call(broker: Served, fresh_name):
    class Clumsy(RebalanceListener):
        def on_partitions_assigned(self, assigned):
            raise KeyError("oops")

    async def scenario() -> None:
        topic = fresh_name()
        await filled(broker, topic)
        async with Consumer(
            bootstrap_servers=broker.bootstrap, group_id=topic, group_protocol="consumer", auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe([topic], listener=Clumsy())
            with pytest.raises(KeyError, match="oops"):
                await consumer.getone()
            assert (await consumer.getone()).offset == 0

    run(scenario())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_consumer_continues_when_the_broker_is_back(start_broker: StartBroker, fresh_name, protocol):
    process = start_broker("--set", "group.initial.rebalance.delay.ms=0")

    async def scenario() -> None:
        topic = fresh_name()
        await filled(process, topic, 100)
        async with Consumer(
            topic,
            bootstrap_servers=process.bootstrap,
            group_id=topic,
            group_protocol=protocol,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=100,
        ) as consumer:
            records = await read(consumer, 100)
            process.kill()
            process.start()
            await write(process.bootstrap, topic, numbers(100, 100))
            while len({record.offset for record in records}) < 200:
                records += await read(consumer, 1)
        assert sorted({int(record.value) for record in records}) == list(range(200))

    run(scenario())


def test_a_group_leader_assigns_a_topic_although_one_broker_did_not_know_it_yet():
    """The broker that is asked for the number of partitions may know less than the one that was asked before."""
    from ottla.testing import Broker

    async def scenario(broker: Broker) -> None:
        async with Producer(broker.bootstrap_servers) as producer:
            await producer.send_and_wait("t", b"x")
        servers = broker.bootstrap_servers
        async with Consumer(bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest") as consumer:
            assert await consumer.beginning_offsets([TopicPartition("t", 0)])  # so it knows the topic
            broker.inject("Metadata", error="UNKNOWN_TOPIC_OR_PARTITION", times=1)
            consumer.subscribe(["t"])
            assert (await asyncio.wait_for(consumer.getone(), 20)).value == b"x"

    with Broker() as broker:
        broker.create_topic("t")
        run(scenario(broker))
