"""The producer with a real broker."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client.admin import Admin
from ottla.client.consuming.consumer import Consumer
from ottla.client.errors import ClientError, TimedOut, UnknownTopic
from ottla.client.producing.partitioners import partition_of_key
from ottla.client.producing.producer import Producer
from ottla.errors import ErrorCode
from ottla.local.waiting import until
from tests.client.clients import create, read, run, write
from tests.conftest import Served, StartBroker


def test_a_record_is_acknowledged_with_its_partition_and_offset(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic)
        async with Producer(broker.bootstrap) as producer:
            first = await producer.send_and_wait(topic, b"a", timestamp_ms=1234)
            assert first == (topic, 0, 0, 1234)
            sent = [await producer.send(topic, b"%d" % number) for number in range(3)]
            await producer.flush()
            assert [each.result().offset for each in sent] == [1, 2, 3]
            assert await producer.partitions_for(topic) == {0}

    run(scenario())


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_records_arrive_in_order_with_keys_headers_and_timestamps(broker: Served, fresh_name, acks, codec):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic)
        async with Producer(broker.bootstrap, acks=acks, compression_type=codec, batch_size=1000) as producer:
            for number in range(300):
                await producer.send(topic, f"v{number}", key=b"k", headers={"n": b"%d" % number}, timestamp_ms=number)
        async with Consumer(topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
            records = await read(consumer, 300)
        assert [record.value for record in records] == [b"v%d" % number for number in range(300)]
        assert [record.timestamp for record in records] == list(range(300))
        assert records[7].key == b"k"
        assert records[7].headers == (("n", b"7"),)

    run(scenario())


def test_keys_choose_the_partition_and_serializers_the_bytes(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic, 4)
        async with Producer(
            broker.bootstrap, key_serializer=str.encode, value_serializer=lambda n: b"%d" % n
        ) as producer:
            for name in ("anna", "bert", "carla"):
                metadata = await producer.send_and_wait(topic, 17, key=name)
                assert metadata.partition == partition_of_key(name.encode(), 4)
        async with Consumer(
            topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", value_deserializer=int
        ) as consumer:
            assert {record.value for record in await read(consumer, 3)} == {17}

    run(scenario())


def test_a_partitioner_may_be_a_function(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic, 3)
        async with Producer(broker.bootstrap, partitioner=lambda topic, record, partitions: partitions[-1]) as producer:
            assert (await producer.send_and_wait(topic, b"v")).partition == 2
            assert (await producer.send_and_wait(topic, b"v", partition=1)).partition == 1

    run(scenario())


def test_full_memory_holds_up_the_sender_and_loses_nothing(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic)
        values = [b"%06d" % number + bytes(1000) for number in range(2000)]
        await write(broker.bootstrap, topic, values, buffer_memory=50_000)
        async with Consumer(topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
            assert [record.value for record in await read(consumer, len(values))] == values

    run(scenario())


def test_one_record_leaves_when_its_time_is_up_without_a_flush(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic)
        async with Producer(broker.bootstrap, linger_ms=30) as producer:
            sent = await producer.send(topic, b"v")
            assert (await asyncio.wait_for(sent, 10)).offset == 0

    run(scenario())


def test_a_record_that_can_never_be_sent_is_refused_at_once(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic)
        async with Producer(broker.bootstrap, max_block_ms=200) as producer:
            with pytest.raises(ClientError, match="max_request_size") as large:
                await producer.send(topic, bytes(2_000_000))
            assert large.value.code is ErrorCode.message_too_large
            with pytest.raises(TypeError, match="value_serializer"):
                await producer.send(topic, {"a": 1})
            with pytest.raises(ClientError, match="no partition 7"):
                await producer.send(topic, b"v", partition=7)
            with pytest.raises(ClientError, match="topic a/b"):
                await producer.send("a/b", b"v")
        with pytest.raises(ClientError, match="closed"):
            await producer.send(topic, b"v")
        with pytest.raises(ClientError, match=r"start\(\) comes first"):
            await Producer(broker.bootstrap).send(topic, b"v")

    run(scenario())


@pytest.mark.parametrize(
    "bad",
    [
        {"headers": [("a", "text")]},
        {"headers": {b"a": b"v"}},
        {"headers": [("\ud800", b"v")]},
        {"timestamp_ms": 1.5},
        {"timestamp_ms": 2**70},
        {"partition": 0.0},
        {"topic": b"t"},
    ],
    ids=str,
)
def test_a_record_that_cannot_be_encoded_is_refused_by_send_and_delays_no_other(broker: Served, fresh_name, bad: dict):
    async def scenario() -> None:
        topic = fresh_name()
        await create(broker.bootstrap, topic)
        async with Producer(broker.bootstrap) as producer:
            assert (await producer.send_and_wait(topic, b"first")).offset == 0
            with pytest.raises((TypeError, ValueError)):
                await producer.send(**{"topic": topic, "value": b"bad", **bad})
            assert (await producer.send_and_wait(topic, b"second", headers=[("a", b"v")])).offset == 1

    run(scenario())


def test_a_missing_topic_is_named_in_the_timeout(broker: Served, fresh_name):
    async def scenario() -> None:
        async with Producer(broker.bootstrap, max_block_ms=300, allow_auto_create_topics=False) as producer:
            with pytest.raises(UnknownTopic, match="no such topic"):
                await producer.send(fresh_name(), b"v")

    run(scenario())


def test_a_topic_that_was_written_to_and_deleted_comes_back_only_with_the_next_record(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        async with Producer(broker.bootstrap, metadata_max_age_ms=20) as producer, Admin(broker.bootstrap) as admin:
            await producer.send_and_wait(topic, b"v")
            await admin.delete_topics([topic])
            metadata = producer._driver.metadata
            await until(lambda: metadata.error(topic) is ErrorCode.unknown_topic_or_partition, "that it is gone")
            asked_before = metadata.revision
            await until(lambda: metadata.revision > asked_before + 5, "some more questions")
            assert topic not in {each.name for each in await admin.list_topics()}
            assert (await producer.send_and_wait(topic, b"w")).offset == 0

    run(scenario())


def test_sequence_numbers_continue_after_the_metadata_of_a_topic_was_dropped(broker: Served, fresh_name):
    async def scenario() -> None:
        topic = fresh_name()
        async with Producer(broker.bootstrap, metadata_max_age_ms=20, metadata_max_idle_ms=1) as producer:
            for number in range(3):
                assert (await producer.send_and_wait(topic, b"v")).offset == number
                await until(lambda: producer._driver.metadata.topic(topic) is None, "that it is idle")

    run(scenario())


def test_records_fail_in_time_when_the_broker_is_gone(start_broker: StartBroker, fresh_name):
    process = start_broker()

    async def scenario() -> None:
        topic = fresh_name()
        await create(process.bootstrap, topic)
        async with Producer(
            process.bootstrap, delivery_timeout_ms=600, request_timeout_ms=500, linger_ms=0
        ) as producer:
            await producer.send_and_wait(topic, b"there")
            process.kill()
            sent = await producer.send(topic, b"gone")
            said = "not delivered within 600 ms; last: its leader, broker 1, does not answer"
            with pytest.raises(TimedOut, match=said) as late:
                await sent
            assert late.value.retriable

    run(scenario())
    process.start()


def test_a_broker_killed_and_started_again_costs_no_record_and_no_order(start_broker: StartBroker, fresh_name):
    process = start_broker()

    async def scenario() -> None:
        topic = fresh_name()
        await create(process.bootstrap, topic)
        async with Producer(process.bootstrap, linger_ms=1, batch_size=2000) as producer:
            sent = []
            for number in range(3000):
                if number == 1500:
                    process.kill()
                    process.start()
                sent.append(await producer.send(topic, b"%d" % number))
            await asyncio.gather(*sent)
        async with Consumer(topic, bootstrap_servers=process.bootstrap, auto_offset_reset="earliest") as consumer:
            records = await read(consumer, 3000)
        assert [int(record.value) for record in records] == list(range(3000))

    run(scenario())
