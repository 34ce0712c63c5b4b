"""Exactly once, from topic to topic: each record is read, changed and written once, whatever dies in between.

What is written and how far was read are committed in one transaction. If we die, it is aborted, and whoever takes over
reads the same records again; readers with `isolation_level="read_committed"` never see the first attempt.

    python examples/exactly_once.py localhost:9092 orders invoices kitchen
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from ottla import Consumer, ConsumerRecord, Producer

Change = Callable[[ConsumerRecord[Any, Any]], bytes]


async def run(bootstrap: str, source: str, target: str, group: str, change: Change) -> None:
    consumer = Consumer(
        source,
        bootstrap_servers=bootstrap,
        group_id=group,
        group_protocol="consumer",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    async with consumer, Producer(bootstrap, transactional_id=f"{group}-1") as producer:
        while True:
            batch = await consumer.getmany(timeout_ms=1000, max_records=100)
            if not batch:
                continue
            async with producer.transaction():
                for records in batch.values():
                    for record in records:
                        await producer.send(target, change(record), key=record.key)
                done = {tp: records[-1].offset + 1 for tp, records in batch.items()}
                await producer.send_offsets_to_transaction(done, consumer.group_metadata())


if __name__ == "__main__":
    bootstrap, source, target, group = sys.argv[1:5]
    asyncio.run(run(bootstrap, source, target, group, lambda record: record.value.upper()))
