"""Playground of `ottla dev`: keys write records, and start and stop consumers of a group. The work runs in the
background and reports its outcome as lines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from ottla.client.admin import Admin, NewTopic
from ottla.client.consuming.consumer import Consumer
from ottla.client.errors import ClientError
from ottla.client.producing.producer import Producer
from ottla.errors import ErrorCode
from ottla.local.cluster import LocalCluster

TOPIC: Final = "orders"
PARTITIONS: Final = 3
GROUP: Final = "kitchen"
MEMBERS: Final = ("anna", "bert", "cleo", "dora", "emil", "fred")
RECORDS: Final = 10
DELIVERY_MS: Final = 10_000
REQUEST_MS: Final = 3_000
HEARTBEAT_MS: Final = 200
SESSION_MS: Final = 6_000
COMMIT_MS: Final = 500
POLL_MS: Final = 500
READ_MAX: Final = 5
"""Records of one poll: few, so that the lag falls slowly enough to be seen."""

CLIENT_LOG: Final = logging.getLogger("ottla.client")
TOO_FEW: Final = ErrorCode.not_enough_replicas.name.replace("_", " ")

Report = Callable[[str], None]


def _is_not_waiting(record: logging.LogRecord) -> bool:
    """Drops the clients' lines about waiting: the live view shows the cause, and one line reports the outcome."""
    return not record.getMessage().startswith("still trying")


def _why(error: BaseException) -> str:
    """The cause in a few words, for one line."""
    said = str(error)
    if TOO_FEW in said.lower():
        return "below min.insync.replicas"
    return said.partition(";")[0]


class Playground:
    """Works on the topic `orders`, which it creates if necessary."""

    def __init__(self, cluster: LocalCluster, report: Report) -> None:
        self._cluster = cluster
        self._report = report
        self._written = 0
        self._consuming: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # Keys.

    def write_soon(self) -> None:
        CLIENT_LOG.addFilter(_is_not_waiting)
        self._soon(self._write())

    def start_consumer_soon(self) -> None:
        CLIENT_LOG.addFilter(_is_not_waiting)
        name = next((each for each in MEMBERS if each not in self._consuming), None)
        if name is None:
            self._report(f"group {GROUP} has {len(MEMBERS)} consumers: this is the limit")
            return
        task = asyncio.get_running_loop().create_task(self._consume(name), name=f"consumer {name}")
        self._consuming[name] = task
        self._report(f"consumer {name} joins group {GROUP}, topic {TOPIC}")

    def stop_consumer_soon(self) -> None:
        if not self._consuming:
            self._report(f"no consumer is running: g starts one in group {GROUP}")
            return
        name, task = self._consuming.popitem()
        task.cancel()
        self._report(f"consumer {name} leaves group {GROUP}")

    async def close(self) -> None:
        CLIENT_LOG.removeFilter(_is_not_waiting)
        tasks = [*self._consuming.values(), *self._tasks]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Work.

    async def _write(self) -> None:
        first = self._written
        self._written += RECORDS
        self._report(f"writing {RECORDS} records to {TOPIC}…")
        try:
            await self._create()
            async with Producer(
                self._cluster.bootstrap,
                delivery_timeout_ms=DELIVERY_MS,
                request_timeout_ms=REQUEST_MS,
                max_block_ms=DELIVERY_MS,
                partitioner="round_robin",
            ) as producer:
                sent = [await producer.send(TOPIC, b"order %d" % n) for n in range(first, first + RECORDS)]
                outcomes = await asyncio.gather(*sent, return_exceptions=True)
        except ClientError as error:
            self._report(f"{RECORDS} records for {TOPIC} were not written: {_why(error)}")
            return
        failed = [each for each in outcomes if isinstance(each, BaseException)]
        if failed:
            self._report(f"{len(failed)} of {RECORDS} records for {TOPIC} not acknowledged: {_why(failed[0])}")
        else:
            self._report(f"{RECORDS} records written to {TOPIC}, acks=all")

    async def _create(self) -> None:
        async with Admin(self._cluster.bootstrap, default_api_timeout_ms=DELIVERY_MS) as admin:
            if TOPIC not in {topic.name for topic in await admin.list_topics()}:
                await admin.create_topics([NewTopic(TOPIC, PARTITIONS)])

    async def _consume(self, name: str) -> None:
        try:
            await self._create()
            async with Consumer(
                TOPIC,
                bootstrap_servers=self._cluster.bootstrap,
                group_id=GROUP,
                client_id=name,
                auto_offset_reset="earliest",
                auto_commit_interval_ms=COMMIT_MS,
                heartbeat_interval_ms=HEARTBEAT_MS,
                session_timeout_ms=SESSION_MS,
            ) as consumer:
                while True:
                    try:
                        await consumer.getmany(timeout_ms=POLL_MS, max_records=READ_MAX)
                    except ClientError as error:
                        self._report(f"consumer {name}: {error}")
                        await asyncio.sleep(POLL_MS / 1000)
        except ClientError as error:
            self._report(f"consumer {name} could not start: {error}")
            self._consuming.pop(name, None)
