"""What tests of the client share."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

from ottla.client.admin import Admin, NewTopic
from ottla.client.consuming.consumer import Consumer
from ottla.client.consuming.consumer_records import ConsumerRecord
from ottla.client.producing.producer import Producer

T = TypeVar("T")

TIMEOUT_S = 60.0


def run(work: Coroutine[Any, Any, T]) -> T:
    """In a loop of its own; errors that asyncio reports (tasks and futures that were never awaited) fail the test."""
    complaints: list[str] = []

    async def watched() -> T:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(str(context)))
        before = asyncio.all_tasks()
        async with asyncio.timeout(TIMEOUT_S):
            result = await work
        await asyncio.sleep(0)
        left = [task for task in asyncio.all_tasks() - before if not task.done()]
        assert not left, f"tasks left over: {left}"
        return result

    result = asyncio.run(watched())
    gc.collect()
    assert not complaints, complaints
    return result


async def create(bootstrap: str, topic: str, partitions: int = 1, **configs: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topics(
            [NewTopic(topic, partitions, configs={k.replace("_", "."): v for k, v in configs.items()})]
        )


async def write(bootstrap: str, topic: str, values: list[bytes], **settings: Any) -> None:
    async with Producer(bootstrap, **settings) as producer:
        sent = [await producer.send(topic, value) for value in values]
        await asyncio.gather(*sent)


async def read(consumer: Consumer, count: int) -> list[ConsumerRecord[Any, Any]]:
    records: list[ConsumerRecord[Any, Any]] = []
    while len(records) < count:
        for taken in (await consumer.getmany(timeout_ms=1000)).values():
            records += taken
    return records
