"""FastStream: one stage on librdkafka, a second one on aiokafka; runs until it is stopped."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from faststream.confluent import KafkaBroker as ConfluentBroker
from faststream.confluent import KafkaMessage as ConfluentMessage
from faststream.kafka import KafkaBroker, KafkaMessage

BOOTSTRAP, SOURCE, BETWEEN, TARGET = sys.argv[1:]
first = ConfluentBroker(BOOTSTRAP.split(","))
second = KafkaBroker(BOOTSTRAP.split(","))
counts: dict[bytes, int] = {}


@first.subscriber(SOURCE, group_id="faststream-first", auto_offset_reset="earliest")
async def forward(line: str, message: ConfluentMessage) -> None:
    key: Any = message.raw_message.key()
    await first.publish(line, BETWEEN, key=key)


@second.subscriber(BETWEEN, group_id="faststream-second", auto_offset_reset="earliest")
async def number(line: str, message: KafkaMessage) -> None:
    key: Any = message.raw_message.key
    counts[key] = counts.get(key, 0) + 1
    await second.publish(f"{line} {counts[key]}", TARGET, key=key)


async def main() -> None:
    async with first, second:
        await first.start()
        await second.start()
        await asyncio.Event().wait()


asyncio.run(main())
