"""Faust: numbers the records of each key in a table with a changelog topic; runs until it is stopped."""

from __future__ import annotations

import sys
from typing import Any

import faust

BOOTSTRAP, SOURCE, TARGET, DIRECTORY = sys.argv[1:]
app = faust.App(
    "faust",
    broker=";".join(f"kafka://{each}" for each in BOOTSTRAP.split(",")),
    store="memory://",
    datadir=DIRECTORY,
    topic_partitions=3,
    topic_replication_factor=3,
    topic_allow_declare=True,
    consumer_auto_offset_reset="earliest",
    broker_session_timeout=10.0,
    broker_heartbeat_interval=1.0,
    broker_commit_interval=0.5,
    web_enabled=False,
)
lines = app.topic(SOURCE, key_type=str, value_type=str, key_serializer="raw", value_serializer="raw")
numbers = app.topic(TARGET, key_type=str, value_type=str, key_serializer="raw", value_serializer="raw")
counts = app.Table("counts", default=int, partitions=3)


@app.agent(lines)
async def number(stream: Any) -> None:
    async for key, line in stream.items():
        counts[key] += 1
        await numbers.send(key=key, value=f"{line} {counts[key]}")


if __name__ == "__main__":
    faust.Worker(app, loglevel="info").execute_from_commandline()
