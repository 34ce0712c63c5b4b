"""Group member in its own process, so that a drill can kill it: reads, commits some of it, waits.

It prints `committed N` after the commit of offset N, and `read N` after N records.
"""

from __future__ import annotations

import asyncio
import sys

from ottla.client.consuming.consumer import Consumer
from ottla.client.values import TopicPartition


async def work(bootstrap: str, topic: str, group: str, name: str, session_ms: int, read: int, commit: int) -> None:
    consumer = Consumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        client_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=session_ms // 10,
    )
    async with consumer:
        done = 0
        while done < read:
            for records in (await consumer.getmany(timeout_ms=500, max_records=read - done)).values():
                for record in records:
                    done += 1
                    if record.offset + 1 == commit:
                        await consumer.commit({TopicPartition(topic, record.partition): commit})
                        sys.stdout.write(f"committed {commit}\n")
                        sys.stdout.flush()
        sys.stdout.write(f"read {done}\n")
        sys.stdout.flush()
        while True:
            await consumer.getmany(timeout_ms=500, max_records=1)


if __name__ == "__main__":
    bootstrap, topic, group, name, *numbers = sys.argv[1:]
    asyncio.run(work(bootstrap, topic, group, name, *map(int, numbers)))
