"""Our client beside others: each reads the records of the other, and they share groups."""

from __future__ import annotations

import asyncio

import confluent_kafka
import pytest

from ottla.client.consuming.consumer import Consumer
from ottla.client.producing.producer import Producer
from ottla.client.values import TopicPartition
from ottla.local.waiting import until
from tests.client.clients import read, run
from tests.interop.clients import CODECS, Client, Confluent, Record
from tests.interop.test_produce_consume import RECORDS


async def write(bootstrap: str, topic: str, codec: str) -> list[int]:
    async with Producer(config={"bootstrap.servers": bootstrap, "compression.type": codec}) as producer:
        sent = [
            await producer.send(topic, each.value, key=each.key, headers=each.headers, timestamp_ms=each.timestamp_ms)
            for each in RECORDS
        ]
        return [metadata.offset for metadata in await asyncio.gather(*sent)]


async def read_back(bootstrap: str, topic: str) -> list[Record]:
    async with Consumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        return [
            Record(each.value, each.key, tuple(each.headers), each.timestamp)
            for each in await read(consumer, len(RECORDS))
        ]


@pytest.mark.parametrize("codec", CODECS)
def test_own_client_and_other_clients_read_each_others_records(broker, make_topic, client: Client, codec):
    ours, theirs = make_topic(), make_topic()
    assert run(write(broker.bootstrap, ours, codec)) == list(range(len(RECORDS)))
    assert client.consume(broker.bootstrap, ours, len(RECORDS)) == RECORDS
    client.produce(broker.bootstrap, theirs, RECORDS, codec=codec)
    assert run(read_back(broker.bootstrap, theirs)) == RECORDS


def test_a_key_goes_where_the_java_client_sends_it(broker, make_topic):
    topic = make_topic(8)
    keys = [f"key-{number}".encode() for number in range(40)]
    theirs: dict[bytes, int] = {}
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(topic, b"v", key, on_delivery=lambda _, m: theirs.update({m.key(): m.partition()}))
    assert producer.flush(30) == 0

    async def ours() -> dict[bytes, int]:
        async with Producer(broker.bootstrap) as own:
            return {key: (await own.send_and_wait(topic, b"v", key=key)).partition for key in keys}

    assert run(ours()) == theirs


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_own_client_shares_a_group_with_librdkafka(broker, make_topic, protocol):
    topic = make_topic(4)
    settings = {"group.id": topic, "group.protocol": protocol, "auto.offset.reset": "earliest"}
    if protocol == "classic":
        settings["partition.assignment.strategy"] = "range"

    async def scenario() -> None:
        other = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, **settings})
        other.subscribe([topic])
        taken: list[bytes] = []

        async def poll_other() -> None:
            while True:
                message = await asyncio.to_thread(other.poll, 0.1)
                if message is not None and message.error() is None:
                    taken.append(message.value())

        polling = asyncio.create_task(poll_other())
        own = Consumer(topic, bootstrap_servers=broker.bootstrap, config=settings)
        async with own:

            def shared() -> bool:
                return len(own.assignment()) == len(other.assignment()) == 2

            reading = asyncio.create_task(own.getone())
            await until(shared, "two partitions each", 40)
            await asyncio.to_thread(
                Confluent().produce, broker.bootstrap, topic, [Record(b"%d" % n, partition=n) for n in range(4)]
            )
            await until(lambda: len(taken) == 2, "the other's two records")
            values = [(await reading).value, (await own.getone()).value, *taken]
            assert sorted(values) == [b"0", b"1", b"2", b"3"]
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        await asyncio.to_thread(other.close)

    run(scenario())


def test_offsets_committed_by_one_client_are_the_others(broker, topic):
    Confluent().produce(broker.bootstrap, topic, [Record(b"%d" % number) for number in range(10)])
    partition = TopicPartition(topic, 0)

    async def commit() -> None:
        async with Consumer(bootstrap_servers=broker.bootstrap, group_id=topic, enable_auto_commit=False) as consumer:
            consumer.assign([partition])
            await consumer.commit({partition: 4})

    run(commit())
    other = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    (reported,) = other.committed([confluent_kafka.TopicPartition(topic, 0)], timeout=30)
    assert reported.offset == 4
    other.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 7)], asynchronous=False)
    other.close()

    async def go_on() -> int:
        async with Consumer(bootstrap_servers=broker.bootstrap, group_id=topic) as consumer:
            consumer.assign([partition])
            return (await consumer.getone()).offset

    assert run(go_on()) == 7
