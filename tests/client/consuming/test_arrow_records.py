"""Arrow columns in and out of real topics, beside records of other clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

pytest.importorskip("numpy", reason="columns need numpy and pyarrow: pip install 'ottla[arrow]'")
pytest.importorskip("pyarrow", reason="columns need numpy and pyarrow: pip install 'ottla[arrow]'")

import pyarrow as pa

from ottla import Admin, Consumer, NewTopic, Producer, TopicPartition, blocking
from ottla.client.errors import BadSetting, ClientError
from ottla.client.producing.partitioners import partition_of_key
from tests.conftest import Served

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def topic(broker: Served, fresh_name) -> Iterator[str]:
    name = fresh_name()

    async def create() -> None:
        async with Admin(broker.bootstrap) as admin:
            await admin.create_topics([NewTopic(name, 3)])

    asyncio.run(create())
    return name


def table_of(count: int) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([None if at % 10 == 0 else f"key-{at % 97}".encode() for at in range(count)], pa.binary()),
            "value": pa.array([None if at % 7 == 0 else f"value {at}".encode() for at in range(count)], pa.binary()),
            "headers": pa.array(
                [[{"key": "n", "value": b"%d" % at}] if at % 3 else None for at in range(count)], HEADERS
            ),
            "time": pa.array(range(1_700_000_000_000, 1_700_000_000_000 + count), pa.timestamp("ms")),
        }
    )


async def read_all(consumer: Consumer, topic: str, count: int, **how) -> list[dict]:
    rows: list[dict] = []
    while len(rows) < count:
        taken = await consumer.getmany_arrow(timeout_ms=15_000, **how)
        assert taken, f"only {len(rows)} of {count} came"
        rows += [row for batches in taken.values() for batch in batches for row in batch.to_pylist()]
    return rows


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_sent_as_columns_are_read_as_columns_and_as_records(broker, topic, codec):
    count = 5000

    async def round_trip() -> None:
        async with Producer(broker.bootstrap, compression_type=codec) as producer:
            sent = await producer.send_arrow(topic, table_of(count), key="key", headers="headers", timestamp="time")
            assert await sent == count
        columns = ["topic", "partition", "offset", "key", "value", "timestamp", "headers"]
        async with Consumer(topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
            rows = await read_all(consumer, topic, count, columns=columns)
            assert consumer.lag() == {TopicPartition(topic, at): 0 for at in range(3)}
        records: list = []
        async with Consumer(topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
            while len(records) < count:
                for some in (await consumer.getmany(timeout_ms=15_000)).values():
                    records += some
        reported = {
            (row["partition"], row["offset"]): (row["key"], row["value"], round(row["timestamp"].timestamp() * 1000),
                                                 [(each["key"], each["value"]) for each in row["headers"] or ()])
            for row in rows
        }  # fmt: skip
        assert reported == {
            (each.partition, each.offset): (each.key, each.value, each.timestamp, list(each.headers))
            for each in records
        }
        assert sorted(each.timestamp for each in records) == list(range(1_700_000_000_000, 1_700_000_000_000 + count))
        assert all(each.partition == partition_of_key(each.key, 3) for each in records if each.key is not None)

    asyncio.run(round_trip())


def test_reading_stops_at_the_offset_that_is_named(broker, topic):
    async def read() -> None:
        partition = TopicPartition(topic, 1)
        table = table_of(300).append_column("partition", pa.array([1] * 300))
        async with Producer(broker.bootstrap) as producer:
            await (await producer.send_arrow(topic, table, partition="partition"))
        async with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
            consumer.assign([partition])
            consumer.seek(partition, 17)
            rows = await read_all(consumer, topic, 103, columns=["offset"], until={partition: 120})
            assert [row["offset"] for row in rows] == list(range(17, 120))
            assert await consumer.position(partition) == 300

    asyncio.run(read())


def test_columns_and_records_can_be_read_alternately(broker, topic):
    async def read() -> None:
        partition = TopicPartition(topic, 0)
        table = table_of(100).append_column("partition", pa.array([0] * 100))
        async with Producer(broker.bootstrap) as producer:
            await (await producer.send_arrow(topic, table, partition="partition"))
        async with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([partition])
            assert (await consumer.getone()).offset == 0
            assert [each.offset for each in (await consumer.getmany(timeout_ms=9000, max_records=4))[partition]] == [
                1,
                2,
                3,
                4,
            ]
            rows = await read_all(consumer, topic, 95, columns=["offset"])
            assert [row["offset"] for row in rows] == list(range(5, 100))

    asyncio.run(read())


def test_wrong_columns_are_refused_by_name(broker, topic):
    async def send() -> None:
        async with Producer(broker.bootstrap) as producer:
            with pytest.raises(BadSetting, match="no column 'colour'; there are key, value"):
                await producer.send_arrow(topic, table_of(1), key="colour")
            with pytest.raises(ClientError, match="bytes or text"):
                await producer.send_arrow(topic, pa.table({"value": [1.5]}))
            with pytest.raises(ClientError, match="no partition 9"):
                await producer.send_arrow(topic, pa.table({"value": ["a"], "to": [9]}), partition="to")
        async with Consumer(topic, bootstrap_servers=broker.bootstrap) as consumer:
            with pytest.raises(BadSetting, match="no column 'colour'"):
                await consumer.getmany_arrow(columns=["colour"])

    asyncio.run(send())


def test_batches_larger_than_a_topic_takes_are_split(broker, fresh_name):
    name = fresh_name()
    values = [bytes([at % 256]) * 3000 for at in range(200)]

    async def send() -> None:
        async with Admin(broker.bootstrap) as admin:
            await admin.create_topics([NewTopic(name, 1, configs={"max.message.bytes": "20000"})])
        async with Producer(broker.bootstrap) as producer:
            assert await (await producer.send_arrow(name, pa.table({"value": pa.array(values)}))) == 200
        async with Consumer(name, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
            rows = await read_all(consumer, name, 200, columns=["offset", "value"])
        assert [row["value"] for row in rows] == values
        assert [row["offset"] for row in rows] == list(range(200))

    asyncio.run(send())


def test_the_blocking_clients_have_columns_too(broker, topic):
    with blocking.Producer(broker.bootstrap) as producer:
        first = producer.send(topic, b"first", partition=2)
        table = table_of(50).append_column("partition", pa.array([2] * 50))
        assert producer.send_arrow(topic, table, partition="partition").result() == 50
        assert first.result().offset == 0
    with blocking.Consumer(topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        offsets: list[int] = []
        while len(offsets) < 51:
            for batches in consumer.getmany_arrow(timeout_ms=15_000, columns=["offset"]).values():
                offsets += [offset for batch in batches for offset in batch["offset"].to_pylist()]
    assert offsets == list(range(51))


def test_neither_a_range_nor_its_leftovers_delay_the_next_one(broker, fresh_name):
    """A fetch beyond the end of a partition waits at its broker: a minute here, and the test for less."""
    name = fresh_name()
    one, other = TopicPartition(name, 0), TopicPartition(name, 1)

    async def scenario() -> None:
        async with Admin(broker.bootstrap) as admin:
            await admin.create_topics([NewTopic(name, 2)])
        async with Producer(broker.bootstrap) as producer:
            rows = pa.table({"value": [b"v"] * 20, "to": [0, 1] * 10})
            assert await (await producer.send_arrow(name, rows, partition="to")) == 20
        consumer = Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="none", fetch_max_wait_ms=60_000)
        async with asyncio.timeout(30), consumer:
            for partition, start, end in ((one, 0, 10), (other, 0, 4), (one, 3, 10), (other, 4, 10)):
                consumer.assign([partition])
                consumer.seek(partition, start, until=end)
                offsets: list[int] = []
                while await consumer.position(partition) < end:
                    taken = await consumer.getmany_arrow(timeout_ms=1000, columns=["offset"], until={partition: end})
                    offsets += [offset for batch in taken.get(partition, ()) for offset in batch["offset"].to_pylist()]
                assert offsets == list(range(start, end))
                consumer.unsubscribe()
            consumer.assign([one])
            consumer.seek(one, 10)
            assert await consumer.getmany(timeout_ms=200) == {}  # a fetch waits now
            consumer.unsubscribe()
            consumer.assign([other])
            consumer.seek(other, 9)
            assert (await consumer.getone()).offset == 9

    asyncio.run(scenario())
