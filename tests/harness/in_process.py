"""Brokers of one cluster as objects in the test's process, and a client that sends any frame."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from ottla.broker.broker import Broker
from ottla.cluster.image import Endpoint
from ottla.config.load import load_broker_config
from ottla.local.waiting import until
from ottla.net.server import Serve
from ottla.runtime.disk import RealDisk
from ottla.runtime.real import RealRuntime
from ottla.wire import messages
from ottla.wire.frame import framed, parse_response_header, request_header
from ottla.wire.tree import Message
from tests.harness.fast_clock import FastRuntime

R = TypeVar("R", bound=Message)
Intercept = Callable[[Serve], Serve]

DEADLINE_S = 60.0


def run(act: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await act()

    asyncio.run(main())


async def start_broker(
    directory: Path,
    broker_id: int,
    disk: RealDisk | None = None,
    clock_speed: float = 1.0,
    intercept: Intercept | None = None,
    /,
    **settings: str,
) -> Broker:
    flags = {
        "broker.id": str(broker_id),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(directory / f"data-{broker_id}"),
        "ottla.store": f"embedded:{directory}/store.db",
        "controlled.shutdown.enable": "false",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    runtime = FastRuntime(clock_speed)
    runtime.disk = disk or runtime.disk
    broker = Broker(load_broker_config(flags=flags), runtime, intercept=intercept)
    await broker.start()
    return broker


async def stop_broker(broker: Broker) -> None:
    """One that must not go on is ended as its process ends it."""
    assert isinstance(broker.runtime, RealRuntime)
    await (broker.abandon() if broker.fatal_error.done() else broker.stop())
    await broker.runtime.close()


@asynccontextmanager
async def brokers(
    directory: Path,
    count: int = 2,
    disks: Sequence[RealDisk] = (),
    intercept: Intercept | None = None,
    /,
    **settings: str,
) -> AsyncIterator[list[Broker]]:
    """Brokers 1 to `count`, on these disks if there are some; the first is controller. All of them know each other.
    `intercept` is called with what serves the requests, and returns what serves them instead."""
    started: list[Broker] = []
    try:
        for number in range(1, count + 1):
            disk = disks[number - 1] if disks else None
            broker = await start_broker(directory, number, disk, 1.0, intercept, **settings)
            started.append(broker)  # one by one: what has started is stopped, even if the next one does not start
        await until(lambda: all(len(broker.image.brokers) == count for broker in started))
        yield started
    finally:
        for broker in reversed(started):
            await stop_broker(broker)


def endpoint_of(broker: Broker, listener: str) -> Endpoint:
    found = broker.image.brokers[broker.id].endpoint(listener)
    assert found is not None, f"broker {broker.id} has no listener {listener}"
    return found


class Client:
    """Frames out, frames in, nothing in between."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._correlation_id = 0

    @classmethod
    @asynccontextmanager
    async def to(cls, broker: Broker, listener: str = "PLAINTEXT") -> AsyncIterator[Client]:
        endpoint = endpoint_of(broker, listener)
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def call(self, request: Message, answer: type[R], version: int) -> R:
        self._correlation_id += 1
        header = request_header(request.API_KEY, version, self._correlation_id, "test")
        self.send(framed(header, messages.encode(request, version)))
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        frame = memoryview(await self._reader.readexactly(size))
        correlation_id, pos = parse_response_header(frame, request.API_KEY, version)
        assert correlation_id == self._correlation_id
        return messages.decode(answer, version, frame, pos)

    async def closed(self) -> bool:
        """Whether the broker hangs up without another byte."""
        try:
            return await self._reader.read(1) == b""
        except ConnectionError:
            return True
