"""Brokers on simulated machines: started, killed, paused, stopped and started again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from ottla.broker.broker import Broker
from ottla.cluster import layout
from ottla.cluster.image import Image
from ottla.config.load import load_broker_config
from ottla.errors import Fault
from ottla.sim.runtime import SimRuntime
from ottla.sim.world import World

PORT: Final = 9092
DATA: Final = "data"
"""The directory of every broker."""
RESTART_SECONDS: Final = 2.0
"""The pause before a broker whose start failed is started again."""
STOP_SECONDS: Final = 60.0
"""A broker that does not stop within this time is killed."""


class Node:
    """A machine for a broker, and the process on it if there is one."""

    def __init__(self, cluster: SimCluster, broker_id: int) -> None:
        self.id = broker_id
        self.name = f"broker-{broker_id}"
        self.broker: Broker | None = None
        self.ready = False
        self.stopping = False
        self.tail_lost = False
        """It lost what its disk had not synced, and may not have it back yet."""
        self.unclean = False
        """It was killed, or lost power, since all replicas were in sync."""
        self.lives = 0
        self._scrubbed_since: tuple[int, int] | None = None
        self._again = False
        self._cluster = cluster
        self._world = cluster.world
        self._runtime: SimRuntime | None = None
        self._world.machine(self.name)

    @property
    def running(self) -> bool:
        return self._runtime is not None

    @property
    def paused(self) -> bool:
        return self._runtime is not None and self._runtime.loop.paused

    def damaged(self) -> None:
        """A file of it has changed behind its back."""
        self._scrubbed_since = (-1, 0) if self.broker is None else (self.lives, self.broker.scrubber.passes_tried)

    def scrubbed(self, passes: int) -> bool:
        """Whether the scrub has come to the end of all there is so often, in one life, since it was damaged."""
        if self._scrubbed_since is None:
            return True
        if self.broker is None or not self.ready:
            return False
        life, before = self._scrubbed_since
        if life != self.lives:
            self._scrubbed_since = (self.lives, 0)
            before = 0
        if self.broker.scrubber.passes_tried - before < passes:
            return False
        self._scrubbed_since = None
        return True

    def start(self) -> None:
        if self._runtime is not None:
            self._again = self.stopping  # as soon as it has stopped
            return
        self.lives += 1
        self._say("starts")
        machine = self._world.machine(self.name)
        if not machine.host.up:
            self._world.network.power_back(machine.host)
        runtime = self._runtime = self._world.process(self.name)
        runtime.loop.call_soon(self._begin, runtime)

    def _begin(self, runtime: SimRuntime) -> None:
        config = load_broker_config(flags=self._cluster.settings_of(self.id))
        self.broker = Broker(config, runtime)
        task = runtime.loop.create_task(self.broker.start(), name="start")
        task.add_done_callback(lambda task: self._started(runtime, task))

    def _started(self, runtime: SimRuntime, task: asyncio.Task[None]) -> None:
        failure = task.exception()
        if failure is None:
            self.ready = True
            self._say("is ready")
            return
        if not isinstance(failure, Fault):
            self._world.failed(f"{self.name} did not start", failure)
        self._say(f"did not start: {failure}")
        self._world.kernel.call_soon(self._end, runtime)
        self._world.kernel.call_later(RESTART_SECONDS, self.start)

    def kill(self, *, power: bool = False) -> None:
        """kill -9, or a power cut, which loses bytes that the disk had not synced."""
        if self._runtime is not None:
            self._say("loses power" if power else "is killed")
            self.unclean = True
            self.tail_lost = self.tail_lost or power
            self._end(self._runtime, power=power)

    def _end(self, runtime: SimRuntime, *, power: bool = False) -> None:
        if self._runtime is runtime:
            self._runtime = None
            self.broker = None
            self.ready = self.stopping = False
            self._world.kill(runtime, power=power)
            if self._again:
                self._again = False
                self._world.kernel.call_later(RESTART_SECONDS, self.start)

    def pause(self) -> None:
        if self._runtime is not None and not self.paused:
            self._say("is paused")
            self._runtime.loop.pause()

    def resume(self) -> None:
        if self._runtime is not None and self.paused:
            self._say("goes on")
            self._runtime.loop.resume()

    def stop(self) -> None:
        """A clean stop, as by SIGTERM. A broker that is not ready yet does not know how."""
        runtime, broker = self._runtime, self.broker
        if runtime is None or broker is None or not self.ready or self.stopping:
            return
        self._say("gets SIGTERM")
        self.stopping = True
        runtime.loop.call_soon(self._stop, runtime, broker)
        self._world.kernel.call_later(STOP_SECONDS, self._give_up_stopping, runtime)

    def _stop(self, runtime: SimRuntime, broker: Broker) -> None:
        task = runtime.loop.create_task(broker.stop(), name="stop")
        task.add_done_callback(lambda task: self._stopped(runtime, task))

    def _stopped(self, runtime: SimRuntime, task: asyncio.Task[None]) -> None:
        failure = task.exception()
        if failure is not None and not isinstance(failure, Fault):
            self._world.failed(f"{self.name} did not stop", failure)
        self._say("has stopped" if failure is None else f"fell over while stopping: {failure}")
        self._world.kernel.call_soon(self._end, runtime)

    def _give_up_stopping(self, runtime: SimRuntime) -> None:
        if self._runtime is runtime:
            self._say("does not stop")
            self.kill()

    def _say(self, what: str) -> None:
        self._world.trace.line(self.name, what)


class SimCluster:
    """The brokers of one world. `settings` are of all of them, and may be changed before one starts."""

    def __init__(self, world: World, brokers: int, settings: Mapping[str, str]) -> None:
        self.world = world
        self.settings = dict(settings)
        self.nodes = [Node(self, broker_id) for broker_id in range(1, brokers + 1)]

    @property
    def bootstrap(self) -> list[str]:
        return [f"{node.name}:{PORT}" for node in self.nodes]

    def settings_of(self, broker_id: int) -> dict[str, str]:
        return {
            "broker.id": str(broker_id),
            "log.dirs": DATA,
            "listeners": f"PLAINTEXT://broker-{broker_id}:{PORT}",
            "ottla.store": "simulated:",
            **self.settings,
        }

    def start(self) -> None:
        for node in self.nodes:
            node.start()

    def image(self) -> Image:
        """The metadata image in the store."""
        return Image.load(self.world.store.tree.tree(*layout.IMAGE_PATHS), version=0)

    def leader_epoch(self, topic: str, index: int) -> int:
        node = self.world.store.tree.read(layout.state_path(topic, index))
        return -1 if node is None else layout.state_of(node.data, node.version).leader_epoch

    def in_sync(self) -> bool:
        """Whether every replica of every partition is."""
        topics = self.image().topics.values()
        return all(len(part.in_sync) == len(part.replicas) for topic in topics for part in topic.partitions)
