"""At most once: nothing is dealt with twice, and what was being dealt with when we died is skipped.

The offset is committed before the record is handled. Good for what is worthless late or harmful twice.

    python examples/at_most_once.py localhost:9092 orders kitchen
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from ottla import Consumer, ConsumerRecord, TopicPartition


async def run(bootstrap: str, topic: str, group: str, handle: Callable[[ConsumerRecord[Any, Any]], object]) -> None:
    async with Consumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        group_protocol="consumer",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    ) as consumer:
        async for record in consumer:
            await consumer.commit({TopicPartition(record.topic, record.partition): record.offset + 1})
            handle(record)


if __name__ == "__main__":
    bootstrap, topic, group = sys.argv[1:4]
    asyncio.run(run(bootstrap, topic, group, handle=lambda record: print(record.value)))
