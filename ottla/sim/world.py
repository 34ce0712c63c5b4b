"""A world to simulate in: one timeline, a network, a store, and machines on which processes live and die."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from ottla.cluster.cluster import STORES
from ottla.cluster.store import Store
from ottla.cluster.zookeeper_options import ZooKeeperOptions
from ottla.runtime import Runtime
from ottla.sim.loop import Timeline, new_loop
from ottla.sim.network import Network
from ottla.sim.runtime import Machine, SimRuntime
from ottla.sim.store import SimStore, StoreServer
from ottla.sim.trace import Trace

T = TypeVar("T")


class Unfinished(Exception):
    """Something that was to happen did not happen in time."""


class World:
    """Everything in it comes from the seed."""

    def __init__(self, seed: int, show: Callable[[str], object] | None = None, *, detail: bool = False) -> None:
        self.seed = seed
        self.timeline = Timeline()
        self.trace = Trace(lambda: self.timeline.now, show, detail)
        self.kernel = new_loop(self.timeline, "kernel", self.failed)
        self.network = Network(self.kernel, self.chance("network"), self.trace)
        self.store = StoreServer(self.network)
        self.machines: dict[str, Machine] = {}
        self.failures: list[str] = []
        """Uncaught exceptions, and errors in programs' logs: defects, whatever the history says."""
        self._processes = 0
        self._alive: dict[SimRuntime, None] = {}

    def chance(self, name: str) -> Random:
        """A source of chance of its own for everything, so that more of one does not change the others."""
        return Random(f"{self.seed}/{name}")

    def failed(self, message: str, failure: BaseException | None) -> None:
        self.failures.append(f"{message}: {failure!r}" if failure is not None else message)
        self.trace.line("failure", self.failures[-1])

    def machine(self, name: str) -> Machine:
        if name not in self.machines:
            self.machines[name] = Machine(self.network, name, self.chance(f"machine {name}"))
        return self.machines[name]

    def process(self, name: str) -> SimRuntime:
        """A new process on this machine."""
        self._processes += 1
        loop = new_loop(self.timeline, name, self.failed)
        runtime = SimRuntime(self.machine(name), loop, self.chance(f"process {name} {self._processes}"))
        runtime.store = self.store
        self._alive[runtime] = None
        return runtime

    def kill(self, runtime: SimRuntime, *, power: bool = False) -> None:
        """End a process as kill -9 does, or as a power cut that takes what its disk had not synced."""
        self._alive.pop(runtime, None)
        machine = runtime.machine
        machine.disk.broken, broken = True, machine.disk.broken  # nothing is written on the way out
        runtime.loop.kill()
        machine.disk.broken = broken
        if power:
            self.network.power_lost(machine.host, runtime.loop)
            machine.disk.crash()
        else:
            self.network.process_died(machine.host, runtime.loop)
            machine.disk.process_died()
        self.store.process_died(machine.name)

    def end(self) -> None:
        """Nothing is to happen any more."""
        for runtime in list(self._alive):
            self.kill(runtime)

    def run(self, done: Callable[[], bool], seconds: float) -> bool:
        """Run until `done`, or for so many seconds. Returns whether it is done."""
        return self.timeline.run(done, self.timeline.now + seconds)

    def run_in(self, runtime: SimRuntime, work: Coroutine[Any, Any, T], seconds: float = 600.0) -> T:
        """Run until this work is done, in this process."""
        task: list[asyncio.Task[T]] = []
        runtime.loop.call_soon(lambda: task.append(runtime.loop.create_task(work)))
        if not self.run(lambda: bool(task) and task[0].done(), seconds):
            raise Unfinished(f"not done within {seconds:g} virtual seconds")
        return task[0].result()


async def open_store(where: str, runtime: Runtime, data_dir: str, options: ZooKeeperOptions | None) -> Store:
    """`simulated:`, the store of the world in which the broker lives."""
    assert isinstance(runtime, SimRuntime)
    assert runtime.store is not None
    timeout_s = (options or ZooKeeperOptions()).session_timeout_ms / 1000
    return await SimStore.open(runtime.store, runtime, timeout_s=timeout_s, session_file=f"{data_dir}/store.session")


STORES["simulated"] = open_store


class Log(logging.Handler):
    """Takes the log lines of simulated programs into the trace. An error with a traceback is a defect."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        try:
            source = getattr(asyncio.get_running_loop(), "name", "?")
        except RuntimeError:
            source = "?"
        minor = record.levelno < logging.WARNING
        self._world.trace.line(source, f"{record.levelname.lower()}: {record.getMessage()}", minor=minor)
        if record.exc_info and record.exc_info[1] is not None:
            self._world.failed(f"{source}: {record.getMessage()}", record.exc_info[1])
