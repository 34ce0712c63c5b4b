"""One run: a cluster and its clients under faults, then healed, then judged.

First faults are injected while clients write and read, and every answer must be correct (safety). Then
everything is healed, and within a limit of virtual time every broker is up, every replica in sync, every
record is acknowledged or given up, and every written record is read (liveness). In the end the replicas are compared.

Odd seeds have transactions beside the rest: all that is written is copied, and money moves between accounts. Then no
transaction stays open, the copy equals its original, and the sum of the bank is unchanged.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

from ottla.local.history import History, Kind, Value, Violation
from ottla.sim.cluster import DATA, SimCluster
from ottla.sim.damage import SCRUB_PASSES
from ottla.sim.faults import AT_REST, Faults
from ottla.sim.invariants import Invariants
from ottla.sim.loop import Livelock
from ottla.sim.operator import Operator
from ottla.sim.transactions import BANK, COPIERS, COPY, Exactness
from ottla.sim.transactions import SETTINGS as TRANSACTION_SETTINGS
from ottla.sim.workload import TOPIC, Client, Member, Protocol, Reader, Surveyor, Writer, create_topic
from ottla.sim.world import Log, Unfinished, World
from ottla.wire.batch import batches
from ottla.wire.records import iterate

READY_SECONDS: Final = 60.0
SETTLED_STEP_SECONDS: Final = 0.5
SETTLED_STEPS: Final = 480
"""Together longer than a producer tries to deliver."""
SETTLED_STEPS_SHOWN: Final = 20
AFTERWARDS_SECONDS: Final = 10.0
"""How long clients continue to write after everything is healed."""
BATCH_BYTES_MAX: Final = 2**30
GARBAGE_OBJECTS: Final = 20_000
"""The number of new objects between garbage collections: few objects of a run need one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    violations: list[Violation]
    failures: list[str]
    counts: dict[str, int]
    faults: dict[str, int]
    digest: str
    virtual_s: float
    last: list[str] = field(repr=False)
    """The last lines of the trace."""

    @property
    def good(self) -> bool:
        return not self.violations and not self.failures


def simulate(
    seed: int,
    minutes: float,
    *,
    brokers: int = 3,
    only: Collection[str] | None = None,
    show: Callable[[str], object] | None = None,
    detail: bool = False,
) -> Outcome:
    """`only` names the kinds of faults; without it the seed chooses. `show` gets the trace line by line; with `detail`
    what brokers log about their ordinary business is in it, too."""
    simulation = Simulation(seed, minutes, brokers, show, only=only, detail=detail)
    gc.collect()
    gc.freeze()  # earlier objects need not be collected
    threshold = gc.get_threshold()
    gc.set_threshold(GARBAGE_OBJECTS, *threshold[1:])
    try:
        with _logged(simulation.world):
            return simulation.run()
    finally:
        gc.set_threshold(*threshold)


@contextmanager
def _logged(world: World) -> Iterator[None]:
    logger = logging.getLogger("ottla")
    handler = Log(world)
    before, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        logger.propagate = propagate


class Simulation:
    def __init__(
        self,
        seed: int,
        minutes: float,
        brokers: int,
        show: Callable[[str], object] | None,
        *,
        only: Collection[str] | None = None,
        detail: bool = False,
    ) -> None:
        self.world = World(seed, show, detail=detail)
        random = self.world.chance("plan")
        self.seconds = minutes * 60
        self.history = History(partial(self.world.trace.line, "checker"), self._leader_epoch)
        self.world.store.prompt = random.random() < 0.3
        self.replicas = min(3, brokers)
        transactional = seed % 2 == 1
        partitions = random.randint(1, 4)
        self.partitions = COPIERS if transactional else partitions
        self.cluster = SimCluster(self.world, brokers, self._settings(random))
        self.clients: list[Client] = [
            Writer(self.cluster, self.history, f"writer-{number}", self.partitions, random)
            for number in range(random.randint(1, 3))
        ]
        self.clients += [
            Reader(self.cluster, self.history, f"reader-{number}", self.partitions, random, again_s)
            for number, again_s in enumerate([None, 30.0])
        ]
        kinds: list[Protocol] = ["classic", "consumer"]
        kind = random.choice(kinds)
        self.clients += [
            Member(self.cluster, self.history, f"member-{number}", self.partitions, random, group="group", kind=kind)
            for number in range(random.randint(0, 3))
        ]
        if random.random() < 0.5:
            operator = Operator(self.cluster, self.history, "operator", self.partitions, self.replicas, random)
            self.clients.append(operator)
        self.clients.append(Surveyor(self.cluster, self.history, "surveyor", self.partitions, random))
        self.exactness: Exactness | None = None
        if transactional:
            self.exactness = Exactness(self.cluster, self.history, self.world.chance("transactions"))
            self.clients += self.exactness.clients
        every_s = random.choice([1.0, 3.0, 8.0])
        self.faults = Faults(self.cluster, self.clients, self.world.chance("faults"), every_s=every_s, only=only)
        damaged = not set(AT_REST).isdisjoint(self.faults.kinds)
        scrubbed = self.world.chance("scrub").choice(["10000", "15000"] if damaged else ["15000", "60000"])
        self.cluster.settings["ottla.scrub.interval.ms"] = scrubbed

    def _settings(self, random: Random) -> dict[str, str]:
        choose = random.choice
        return {
            "default.replication.factor": str(self.replicas),
            "min.insync.replicas": str(min(2, self.replicas)),
            "offsets.topic.replication.factor": str(self.replicas),
            "offsets.topic.num.partitions": "2",
            "transaction.state.log.replication.factor": str(self.replicas),
            "transaction.state.log.min.isr": str(min(2, self.replicas)),
            **TRANSACTION_SETTINGS,
            "ottla.transaction.version": choose(["1", "2"]),
            "zookeeper.session.timeout.ms": choose(["2000", "6000", "12000"]),
            "replica.lag.time.max.ms": choose(["1500", "5000", "15000"]),
            "log.roll.ms": choose(["1000", "20000", "604800000"]),
            "log.index.interval.bytes": choose(["100", "4096"]),
            "log.flush.interval.messages": choose(["1", "100", "9223372036854775807"]),
        }

    def run(self) -> Outcome:
        try:
            self._begin()
            Invariants(self.cluster, self.history).begin()
            self.faults.begin()
            self.world.run(self._broken, self.seconds)
            self.faults.heal()
            if any(self.faults.counts[kind] for kind in AT_REST):
                for node in self.cluster.nodes:
                    node.damaged()  # or may be, which is unknown before all is scrubbed
            self._settle()
            if not self._broken():
                self._compare()
        except Unfinished as unfinished:
            self.history.violated(Kind.STUCK, str(unfinished))
        except Livelock as livelock:
            self.world.failed(str(livelock), None)
        world = self.world
        digest = world.trace.digest
        world.end()
        return Outcome(
            world.seed,
            self.history.violations,
            world.failures,
            dict(self.history.counts),
            dict(self.faults.counts),
            digest,
            world.timeline.now,
            list(world.trace.last),
        )

    def _leader_epoch(self, partition: int) -> int:
        return self.cluster.leader_epoch(TOPIC, partition)

    def _broken(self) -> bool:
        return bool(self.history.violations or self.world.failures)

    def _begin(self) -> None:
        self.cluster.start()
        if not self.world.run(self._all_ready, READY_SECONDS):
            raise Unfinished(f"not all brokers are ready within {READY_SECONDS:g} s of the first start")
        admin = self.world.process("admin")
        self.world.run_in(admin, create_topic(admin, self.cluster, self.partitions, self.replicas, {}), READY_SECONDS)
        if self.exactness is not None:
            self.world.run_in(admin, self.exactness.begin(admin, self.replicas), READY_SECONDS)
        for client in self.clients:
            client.start()

    def _all_ready(self) -> bool:
        return all(node.ready and not node.stopping for node in self.cluster.nodes)

    def _settle(self) -> None:
        """Everything is healed: what should come to its end does."""
        if not self.world.run(lambda: self._all_ready() or self._broken(), READY_SECONDS):
            down = ", ".join(node.name for node in self.cluster.nodes if not node.ready)
            raise Unfinished(f"{down}: not up again within {READY_SECONDS:g} s after healing")
        before = self.history.counts["acknowledged"]
        self.world.run(self._broken, AFTERWARDS_SECONDS)
        self._wait(lambda: [] if self.history.counts["acknowledged"] > before else ["nothing was acknowledged"])
        for client in self.clients:
            client.quiet = True
        self._wait(self._unsettled)

    def _wait(self, unsettled: Callable[[], list[str]]) -> None:
        """Until nothing is named that should have come to its end."""
        for step in range(SETTLED_STEPS):
            waiting = unsettled()
            if not waiting or self.world.run(self._broken, SETTLED_STEP_SECONDS):
                return
            if step % SETTLED_STEPS_SHOWN == SETTLED_STEPS_SHOWN - 1:
                self.world.trace.line("checker", f"waits: {'; '.join(waiting)}")
        raise Unfinished(f"{SETTLED_STEPS * SETTLED_STEP_SECONDS:g} s after healing: {'; '.join(unsettled())}")

    def _unsettled(self) -> list[str]:
        found = [f"{client.name} {client.state}" for client in self.clients if not client.settled]
        if not found and self.exactness is not None:
            found = self.exactness.open_transactions()
        found += [f"{node.name} is being scrubbed" for node in self.cluster.nodes if not node.scrubbed(SCRUB_PASSES)]
        if found:
            return found
        for topic in self.cluster.image().topics.values():
            for index, part in enumerate(topic.partitions):
                if len(part.in_sync) < len(part.replicas):
                    found.append(f"{topic.name}-{index} is led by {part.leader}, in sync are {part.in_sync}")
        return found

    def _compare(self) -> None:
        """All replicas have the same bytes, and these agree with the answers to clients."""
        logs = {
            index: [
                (record.offset, record.value or b"")
                for position, header in batches(log)
                for record in iterate(log[position : position + header.size], bytes_max=BATCH_BYTES_MAX)
            ]
            for index, log in self._replicated(TOPIC).items()
        }
        self.history.conclude(
            {index: [(offset, Value.decode(value)) for offset, value in log] for index, log in logs.items()}
        )
        if self.exactness is not None:
            self._replicated(COPY)
            if not self.exactness.compacted:  # each replica by itself, and not at the same time
                self._replicated(BANK)
            originals = {index: [value for _, value in log] for index, log in logs.items()}
            reader = self.world.process("verifier")
            self.world.run_in(reader, self.exactness.conclude(reader, originals), READY_SECONDS)

    def _replicated(self, topic: str) -> dict[int, bytes]:
        """The logs of a topic, of which all replicas have the same bytes."""
        logs: dict[int, bytes] = {}
        for index, partition in enumerate(self.cluster.image().topics[topic].partitions):
            copies = {broker: self._log_of(broker, f"{topic}-{index}") for broker in partition.replicas}
            leader = logs[index] = copies[partition.leader]
            for broker, copy in copies.items():
                if copy != leader:
                    self.history.violated(
                        Kind.DIVERGED,
                        f"{topic}-{index}: broker {broker} has {len(copy)} bytes, its leader {partition.leader} has "
                        f"{len(leader)}, the first {_common(copy, leader)} are the same",
                    )
        return logs

    def _log_of(self, broker: int, name: str) -> bytes:
        disk = self.world.machine(f"broker-{broker}").disk
        directory = f"{DATA}/{name}"
        names = [name for name in disk.listdir(directory) if name.endswith(".log")]
        return b"".join(disk.read(f"{directory}/{name}") for name in names)


def _common(one: bytes, other: bytes) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
