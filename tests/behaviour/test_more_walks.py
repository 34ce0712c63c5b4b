"""The walks of docs/walks.md: a real request, and a real start, go through the functions that they name."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from ottla.local.waiting import until
from ottla.runtime.real import RealRuntime
from ottla.wire.schema import create_topics
from ottla.wire.schema import incremental_alter_configs as alter
from tests.behaviour.test_walks import Plain, batch, topic
from tests.harness import walks
from tests.harness.call_trace import Trace, traced
from tests.harness.in_process import Client, brokers, run, start_broker, stop_broker

PAGE = walks.REPOSITORY / "docs" / "walks.md"


async def creation_walk(directory: Path) -> Trace:
    async with brokers(directory, 1) as (broker,), Client.to(broker) as connected:
        client = Plain(connected)
        topics = [create_topics.CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
        frame = client.frame(create_topics.CreateTopicsRequest(topics=topics, timeout_ms=30_000), 7)
        with traced() as trace:
            client.send(frame)
            await client.answer()
            await until(lambda: broker.replicas.get("t", 0) is not None)
        return trace


async def start_walk(directory: Path) -> Trace:
    """Logs are opened in threads, which the trace has, too."""
    broker = await start_broker(directory, 1)
    await topic([broker], 1)
    partition = broker.replicas.get("t", 0)
    assert partition is not None
    partition.append(memoryview(bytearray(batch(broker))), 1, broker.runtime.wall_ms())
    await broker.abandon()
    assert isinstance(broker.runtime, RealRuntime)
    await broker.runtime.close()
    with traced() as trace:
        threading.setprofile(trace.event)
        try:
            broker = await start_broker(directory, 1)
        finally:
            threading.setprofile(None)
    await stop_broker(broker)
    return trace


async def setting_walk(directory: Path) -> Trace:
    async with brokers(directory, 1) as (broker,), Client.to(broker) as connected:
        await topic([broker], 1)
        client = Plain(connected)
        edits = [alter.AlterableConfig(name="retention.ms", config_operation=0, value="60000")]
        resources = [alter.AlterConfigsResource(resource_type=2, resource_name="t", configs=edits)]
        frame = client.frame(alter.IncrementalAlterConfigsRequest(resources=resources), 1)
        with traced() as trace:
            client.send(frame)
            await client.answer()
            await until(lambda: broker.image.topics["t"].configs == {"retention.ms": "60000"})
            await asyncio.sleep(0)
        return trace


WALKS = {
    "Creating a topic": creation_walk,
    "A start after kill -9": start_walk,
    "A dynamic setting of a topic": setting_walk,
}


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_names_the_functions_in_the_order_of_their_calls(title, tmp_path):
    async def test() -> None:
        walks.check(title, await WALKS[title](tmp_path), PAGE)

    run(test)


def test_every_walk_of_the_page_is_checked():
    assert {*walks.walks(PAGE.read_text())} == {*WALKS}
