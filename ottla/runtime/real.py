"""The runtime of the operating system: its clock, disk, network and random source, and one uvloop."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from typing import Any, TypeVar

from ottla.errors import Fault, PortTaken
from ottla.runtime import Disk, Handle
from ottla.runtime.child_process import run_in_child
from ottla.runtime.disk import RealDisk

log = logging.getLogger("ottla.runtime")

T = TypeVar("T")

OFFLOAD_THREADS_MAX = 4


class RealListener:
    def __init__(self, server: asyncio.Server, host: str, port: int) -> None:
        self._server = server
        self.host = host
        self.port = port

    async def start(self) -> None:
        await self._server.start_serving()

    async def close(self) -> None:
        """Stop accepting; open connections stay until their owner closes them."""
        self._server.close()


class RealRuntime:
    """Created in a running loop, which it uses."""

    def __init__(self, *, open_files_max: int = 1000, disk: Disk | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(OFFLOAD_THREADS_MAX, thread_name_prefix="ottla-offload")
        self._own_threads: list[ThreadPoolExecutor] = []
        self._tasks: set[asyncio.Task[object]] = set()
        self.disk: Disk = disk or RealDisk(open_files_max=open_files_max)
        self.random = Random()
        self.entropy = os.urandom
        # The loop's own methods, without another frame: they are called on the hot path.
        self.now = self._loop.time
        self.stopwatch = time.perf_counter
        self.call_soon = self._loop.call_soon

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_at(self, when: float, act: Callable[..., object], *args: object) -> Handle:
        return self._loop.call_at(when, act, *args)

    def spawn(self, work: Coroutine[object, object, T], *, name: str) -> asyncio.Task[T]:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)  # the loop keeps weak references only
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[T]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=failure)

    def offload(self, act: Callable[..., T], *args: object) -> Awaitable[T]:
        return self._loop.run_in_executor(self._threads, act, *args)

    def own_thread(self, name: str) -> Callable[..., Awaitable[Any]]:
        thread = ThreadPoolExecutor(1, thread_name_prefix=f"ottla-{name}")
        self._own_threads.append(thread)
        return partial(self._loop.run_in_executor, thread)

    def offload_process(
        self, work: str, job: Mapping[str, Any], *, bytes_per_second: float | None = None, insist: bool = False
    ) -> AsyncGenerator[dict[str, Any], None]:
        return run_in_child(work, job, bytes_per_second=bytes_per_second, insist=insist)

    async def listen(self, protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> RealListener:
        try:
            server = await self._loop.create_server(
                protocol, host, port, reuse_address=True, backlog=1024, start_serving=False
            )
        except OSError as failure:
            raise _not_listening(f"{host}:{port}", failure) from failure
        bound = server.sockets[0].getsockname()
        return RealListener(server, host, bound[1])

    async def connect(
        self, protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        return await self._loop.create_connection(protocol, host, port)

    async def close(self) -> None:
        """Wait for the threads; the owners of tasks have ended them before."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for threads in (self._threads, *self._own_threads):
            threads.shutdown(wait=True)


def _not_listening(where: str, failure: OSError) -> Fault:
    named = isinstance(failure, socket.gaierror)  # its numbers are not errno
    why = failure.strerror if named or failure.errno is None else os.strerror(failure.errno)
    text = f"cannot listen on {where}: {why or failure}"
    if not named and failure.errno == errno.EADDRINUSE:
        return PortTaken(f"{text}; is another broker running there?")
    if named or failure.errno == errno.EADDRNOTAVAIL:
        return Fault(f"{text}; it must be an address of this machine")
    return Fault(text)
