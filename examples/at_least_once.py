"""At least once: nothing is skipped, and what was being dealt with when we died is dealt with again.

The offset is committed after the records were handled: here after every batch that came, which is cheaper than after
every record. Handling should be idempotent: here it stores the value under partition and offset, so that a repetition
changes nothing.

    python examples/at_least_once.py localhost:9092 orders kitchen
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from ottla import Consumer, ConsumerRecord

Stored = dict[tuple[int, int], Any]


async def run(bootstrap: str, topic: str, group: str, handle: Callable[[ConsumerRecord[Any, Any]], object]) -> None:
    async with Consumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        group_protocol="consumer",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    ) as consumer:
        while True:
            batch = await consumer.getmany(timeout_ms=1000, max_records=100)
            for records in batch.values():
                for record in records:
                    handle(record)
            if batch:
                await consumer.commit()


def writes_into(stored: Stored) -> Callable[[ConsumerRecord[Any, Any]], object]:
    """A handler that may be called twice with the same record."""

    def handle(record: ConsumerRecord[Any, Any]) -> None:
        stored[record.partition, record.offset] = record.value

    return handle


if __name__ == "__main__":
    bootstrap, topic, group = sys.argv[1:4]
    asyncio.run(
        run(bootstrap, topic, group, handle=lambda record: print(record.partition, record.offset, record.value))
    )
