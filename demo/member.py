"""Group member of the demo in its own process, so that it can be killed: reads and commits."""

from __future__ import annotations

import asyncio
import sys

from ottla.client.consuming.consumer import Consumer


async def read(bootstrap: str, topic: str, group: str, name: str, session_ms: int) -> None:
    consumer = Consumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        client_id=name,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=500,
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=session_ms // 10,
    )
    async with consumer:
        while True:
            await consumer.getmany(timeout_ms=500)


if __name__ == "__main__":
    bootstrap, topic, group, name, session_ms = sys.argv[1:]
    asyncio.run(read(bootstrap, topic, group, name, int(session_ms)))
