"""The runtime of one simulated process: virtual clock and network, a disk in memory, and chance from a seed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ottla.errors import Fault, StorageFault
from ottla.runtime import ChildKilled, Handle
from ottla.runtime.child import find_work
from ottla.sim.disk import SimDisk
from ottla.sim.loop import SimLoop
from ottla.sim.network import Host, Network, SimListener

if TYPE_CHECKING:
    from ottla.sim.store import StoreServer

log = logging.getLogger("ottla.runtime")

T = TypeVar("T")

WALL_START_MS: Final = 1_750_000_000_000
CHILD_START_SECONDS: Final = 0.2
CHILD_BYTES_PER_SECOND: Final = 100e6

DISK_DELAY_S: Final = 0.002


class Machine:
    """The parts that outlive a process: its network address, its disk and its wall clock."""

    def __init__(self, network: Network, name: str, random: Random) -> None:
        self.network = network
        self.host: Host = network.host(name)
        self.name = name
        self.disk = SimDisk(random)
        self.random = random
        self.wall_skew_ms = 0
        self.disk_delay_s = DISK_DELAY_S
        """About the duration of a call that waits for the disk."""
        self.child_killed = 0.0
        """The chance that work in a process of its own is killed, at each of its reports."""


class SimChild:
    """What work in a process of its own may use."""

    def __init__(self, disk: SimDisk, bytes_per_second: float | None) -> None:
        self.disk = disk
        self.owed_s = 0.0
        """The time that the work would have waited so far."""
        self._bytes_per_second = min(bytes_per_second or CHILD_BYTES_PER_SECOND, CHILD_BYTES_PER_SECOND)

    def pace(self, done_bytes: int) -> None:
        self.owed_s += done_bytes / self._bytes_per_second


class SimRuntime:
    """One process on a machine. It ends with its loop."""

    def __init__(self, machine: Machine, loop: SimLoop, random: Random) -> None:
        self.machine = machine
        self.loop = loop
        self.random = random
        self.disk = machine.disk
        self.store: StoreServer | None = None
        """The store that this process can reach, if there is one."""
        self.now = loop.time
        self.stopwatch = loop.time
        self.call_soon = loop.call_soon
        self._tasks: dict[asyncio.Task[Any], None] = {}
        loop.connect = self.connect

    def wall_ms(self) -> int:
        return WALL_START_MS + int(self.loop.time() * 1000) + self.machine.wall_skew_ms

    def entropy(self, count: int) -> bytes:
        return self.random.randbytes(count)

    def call_at(self, when: float, act: Callable[..., object], *args: object) -> Handle:
        return self.loop.call_at(when, act, *args)

    def spawn(self, work: Coroutine[object, object, T], *, name: str) -> asyncio.Task[T]:
        task = self.loop.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[T]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=failure)

    def offload(self, act: Callable[..., T], *args: object) -> Awaitable[T]:
        """Threads are not in order among each other, and neither is this."""
        future: asyncio.Future[T] = self.loop.create_future()
        self.loop.call_later(self._disk_delay(), _run, future, act, args)
        return future

    def own_thread(self, name: str) -> Callable[..., Awaitable[Any]]:
        return self.offload

    def _disk_delay(self) -> float:
        return self.machine.random.expovariate(1 / self.machine.disk_delay_s)

    async def offload_process(
        self, work: str, job: Mapping[str, Any], *, bytes_per_second: float | None = None, insist: bool = False
    ) -> AsyncGenerator[dict[str, Any], None]:
        """All that the work does between two reports is done at once, and then takes its time."""
        child = SimChild(self.disk, bytes_per_second)
        await asyncio.sleep(CHILD_START_SECONDS)
        try:
            for report in find_work(work)(child, json.loads(json.dumps(job))):
                owed, child.owed_s = child.owed_s, 0.0
                await asyncio.sleep(owed + self._disk_delay())
                if self.machine.random.random() < self.machine.child_killed:
                    raise ChildKilled(f"the process of {work} was killed (SIGKILL)")
                yield json.loads(json.dumps(report))
        except ChildKilled:
            raise
        except Fault as fault:
            raise StorageFault(str(fault)) from fault

    async def listen(self, protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> SimListener:
        return self.machine.network.listen(self.machine.host, self.loop, protocol, host, port)

    async def connect(
        self, protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await self.machine.network.connect(self.machine.host, self.loop, protocol, host, port)


def _run(future: asyncio.Future[T], act: Callable[..., T], args: tuple[object, ...]) -> None:
    try:
        result = act(*args)
    except Exception as failure:  # noqa: BLE001 (it is raised where it is awaited)
        if not future.cancelled():
            future.set_exception(failure)
    else:
        if not future.cancelled():
            future.set_result(result)
