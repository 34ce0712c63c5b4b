"""Steady load of a drill: a producer of numbered records at a constant rate, and a consumer."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final, Self

from ottla.client.consuming.consumer import Consumer
from ottla.client.errors import ClientError
from ottla.client.producing.producer import Producer
from ottla.client.values import RecordMetadata
from ottla.drills.stage import Stage

RATE: Final = 500
TICK_SECONDS: Final = 0.01
PATIENCE_MS: Final = 60_000


class SteadyProducer:
    """A producer with default settings: acks=all, idempotent. Adds what is acknowledged to `stage.acknowledged`."""

    def __init__(self, stage: Stage, topic: str, partitions: int) -> None:
        self.count = 0
        """Records acknowledged so far."""
        self.failures: list[str] = []
        self.longest_silence = 0.0
        self._stage = stage
        self._topic = topic
        self._partitions = partitions
        self._producer = Producer(stage.cluster.bootstrap, delivery_timeout_ms=PATIENCE_MS)
        self._last_delivery = 0.0
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    async def __aenter__(self) -> Self:
        await self._producer.start()
        self._last_delivery = time.monotonic()
        self._task = asyncio.create_task(self._write(), name="steady writer")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop writing, and wait for the records in flight."""
        if self._task is not None:
            # Not cancelled: the future of a record in flight would be lost.
            self._stopping = True
            await self._task
            self._task = None
            await self._producer.stop()

    async def _write(self) -> None:
        sent, started = 0, time.monotonic()
        while not self._stopping:
            due = int((time.monotonic() - started) * RATE)
            for number in range(sent, due):
                partition, value = number % self._partitions, f"record {number // self._partitions}"
                sent_record = await self._producer.send(self._topic, value, partition=partition)
                sent_record.add_done_callback(
                    lambda each, p=partition, v=value: self._delivered(p, v, each)  # type: ignore[misc]
                )
            sent = max(sent, due)
            await asyncio.sleep(TICK_SECONDS)

    def _delivered(self, partition: int, value: str, outcome: asyncio.Future[RecordMetadata]) -> None:
        if outcome.cancelled():
            return
        error = outcome.exception()
        if error is not None:
            self.failures.append(str(error))
            return
        now = time.monotonic()
        self.longest_silence = max(self.longest_silence, now - self._last_delivery)
        self._last_delivery = now
        self.count += 1
        self._stage.acknowledged.setdefault((self._topic, partition), []).append(value)

    async def more(self, records: int) -> None:
        """Wait until so many more records are acknowledged."""
        wanted = self.count + records
        expected = f"{records} more records of {self._topic} acknowledged"
        await self._stage.until(expected, self._counted, lambda count: count >= wanted)

    async def _counted(self) -> int:
        return self.count


class SteadyConsumer:
    """A member of a group that checks the order of offsets."""

    def __init__(self, stage: Stage, topic: str, group: str) -> None:
        self.seen: dict[int, list[str]] = {}
        self.disorder: list[str] = []
        self.failures: list[str] = []
        self._next: dict[int, int] = {}
        self._consumer = Consumer(
            topic, bootstrap_servers=stage.cluster.bootstrap, group_id=group, auto_offset_reset="earliest"
        )
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._consumer.start()
        self._task = asyncio.create_task(self._read(), name="steady reader")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._consumer.stop()

    async def _read(self) -> None:
        while True:
            try:
                found = await self._consumer.getmany(timeout_ms=200)
            except ClientError as error:
                self.failures.append(str(error))
                await asyncio.sleep(TICK_SECONDS)
                continue
            for tp, records in found.items():
                for record in records:
                    due = self._next.get(tp.partition, 0)
                    if record.offset != due:
                        self.disorder.append(f"partition {tp.partition}: offset {record.offset} instead of {due}")
                    self._next[tp.partition] = record.offset + 1
                    self.seen.setdefault(tp.partition, []).append(record.value.decode())

    async def seen_count(self) -> int:
        return sum(map(len, self.seen.values()))
