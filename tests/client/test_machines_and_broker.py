"""The client's machines with a real broker: everything written is read back, once and in order, kill -9 or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from ottla.client.admin import Admin, NewTopic
from ottla.client.consuming.fetcher import Fetcher
from ottla.client.consuming.subscription_state import ConsumerSettings
from ottla.client.core.metadata import Metadata
from ottla.client.producing.partitioners import partitioner_of
from ottla.client.producing.produce_requests import NO_OFFSET, AppendResult, Delivered, ProducerSettings
from ottla.client.producing.sender import Sender
from ottla.client.values import EARLIEST, TopicPartition
from tests.client.machine_driver import Driver
from tests.conftest import Served, StartBroker

RECORDS = 10_000
PARTITIONS = 4


def values(count: int = RECORDS) -> list[bytes]:
    return [b"%07d" % number for number in range(count)]


async def produce(
    bootstrap: tuple[str, int], topic: str, settings: ProducerSettings, during: Callable[[int], None] = lambda _: None
) -> Driver:
    """Write all values round-robin, waiting whenever there is no room."""
    metadata = Metadata([bootstrap])
    machine = Sender(metadata, partitioner_of("round_robin"), settings)
    driver = Driver(metadata, machine)
    metadata.want(topic)
    await driver.run_until(lambda: metadata.topic(topic) is not None)
    for number, value in enumerate(values()):
        during(number)
        while machine.append(topic, value, driver.now, timestamp_ms=number, token=value) is AppendResult.FULL:
            await driver.run_until(partial(more_than, driver.delivered, len(driver.delivered)))
        if number % 500 == 0:
            driver.pump()
            await asyncio.sleep(0)
    mark = machine.close()
    await driver.run_until(lambda: machine.flushed(mark))
    await driver.close()
    return driver


def more_than(delivered: list[Delivered], count: int) -> bool:
    return len(delivered) > count


async def consume(bootstrap: tuple[str, int], topic: str, count: int, settings: ConsumerSettings) -> dict[int, list]:
    metadata = Metadata([bootstrap])
    machine = Fetcher(metadata, settings)
    driver = Driver(metadata, machine)
    machine.assign([TopicPartition(topic, index) for index in range(PARTITIONS)])
    read: dict[int, list] = {index: [] for index in range(PARTITIONS)}

    def all_read() -> bool:
        while taken := machine.take(1000):
            for partition, records in taken.items():
                read[partition.partition] += records
        return sum(map(len, read.values())) >= count

    await driver.run_until(all_read)
    assert all(machine.lag(TopicPartition(topic, index)) == 0 for index in range(PARTITIONS))
    await driver.close()
    return read


async def create(bootstrap: tuple[str, int], topic: str) -> None:
    async with Admin(f"{bootstrap[0]}:{bootstrap[1]}") as admin:
        await admin.create_topics([NewTopic(topic, PARTITIONS)])
        # With acks=0 the client does not learn that a leader did not know the topic yet.
        await admin.list_offsets({TopicPartition(topic, index): "latest" for index in range(PARTITIONS)})


def check(driver: Driver, read: dict[int, list]) -> None:
    assert not driver.undelivered
    for index in range(PARTITIONS):
        assert [record.value for record in read[index]] == values()[index::PARTITIONS]
        assert [record.offset for record in read[index]] == list(range(RECORDS // PARTITIONS))
    where = {token: result for batch in driver.delivered for token, result in batch.results()}
    assert len(where) == RECORDS
    for index, records in read.items():
        reported = [(where[record.value], record.offset) for record in records]
        assert all((at.partition, at.offset) in ((index, offset), (index, NO_OFFSET)) for at, offset in reported)


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("sessions", [True, False])
def test_records_are_read_once_and_in_order(broker: Served, fresh_name, codec, sessions):
    async def main() -> None:
        bootstrap, topic = (broker.host, broker.port), fresh_name()
        await create(bootstrap, topic)
        settings = ProducerSettings(batch_size=4096, compression_type=codec, buffer_memory=100_000)
        driver = await produce(bootstrap, topic, settings)
        consumer = ConsumerSettings(auto_offset_reset=EARLIEST, fetch_sessions=sessions, max_partition_fetch_bytes=9000)
        check(driver, await consume(bootstrap, topic, RECORDS, consumer))

    asyncio.run(main())


@pytest.mark.parametrize("acks", [0, 1])
def test_without_idempotence_all_records_arrive_if_nothing_fails(broker: Served, fresh_name, acks):
    async def main() -> None:
        bootstrap, topic = (broker.host, broker.port), fresh_name()
        await create(bootstrap, topic)
        driver = await produce(bootstrap, topic, ProducerSettings(acks=acks))
        consumer = ConsumerSettings(auto_offset_reset=EARLIEST)
        check(driver, await consume(bootstrap, topic, RECORDS, consumer))

    asyncio.run(main())


def test_a_broker_killed_in_the_middle_neither_loses_nor_doubles_nor_reorders(start_broker: StartBroker, fresh_name):
    process = start_broker()

    def kill_and_start(number: int) -> None:
        if number in (3000, 7000):
            process.kill()
            process.start()

    async def main() -> None:
        bootstrap, topic = (process.host, process.port), fresh_name()
        await create(bootstrap, topic)
        driver = await produce(bootstrap, topic, ProducerSettings(batch_size=512), kill_and_start)
        consumer = ConsumerSettings(auto_offset_reset=EARLIEST)
        check(driver, await consume(bootstrap, topic, RECORDS, consumer))

    asyncio.run(main())
