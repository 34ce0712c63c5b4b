"""Fault injection of a simulation, and its limits.

The limits are those of the guarantee. Processes may be killed and paused, links cut, and the store stopped at any time.
Unsynced bytes may be lost by one broker at a time, and by the next one only when every ISR is complete again: an
acknowledged record is on two machines, and one of them may lose it. Until such a loss is repaired, one of the others
stays up, because a broker cannot distinguish a kill from a power cut. A flipped bit in the log of a killed broker is
such a loss, too: the records after it are lost, synced or not.

And so is damage to files at rest, of a broker that is stopped or runs: any one file of a partition is removed, emptied,
cut, extended, or one of its bits flips. That loss is repaired when the broker has scrubbed all its logs, and is in sync
again. Only bytes that a batch's checksum covers are damaged here: clients cannot detect other damage before the scrub
does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from random import Random
from typing import Final

from ottla.errors import StorageFault
from ottla.sim.cluster import DATA, Node, SimCluster
from ottla.sim.damage import MAGIC_AT, SCRUB_PASSES, damage_a_file, flip_a_bit
from ottla.sim.disk import UNLIMITED, SimDisk
from ottla.sim.runtime import DISK_DELAY_S
from ottla.sim.store import STORE
from ottla.sim.workload import Client
from ottla.wire.batch import batches

AT_ONCE_MAX: Final = 4
WALL_JUMP_MS: Final = 3_600_000

Undo = Callable[[], object]

KINDS: Final = {
    "kill": "_kill",
    "all killed": "_kill_all",
    "power cut": "_power_cut",
    "bit flip": "_bit_flip",
    "damaged file": "_damaged_file",
    "bit rot": "_bit_rot",
    "pause": "_pause",
    "stop": "_stop",
    "cut": "_cut",
    "one-way cut": "_cut_one_way",
    "isolation": "_isolate",
    "cut from the store": "_cut_from_store",
    "slow link": "_slow_link",
    "lossy link": "_lossy_link",
    "store outage": "_store_away",
    "session expiry": "_expire",
    "slow disk": "_slow_disk",
    "full disk": "_full_disk",
    "broken disk": "_broken_disk",
    "clock jump": "_clock_jump",
    "client killed": "_kill_client",
    "client cut off": "_cut_client",
}
"""What can go wrong, and which method does it: each says how it is undone, or that it cannot be done now."""
AT_REST: Final = ("damaged file", "bit rot")
LOSSES: Final = ("power cut", "bit flip", *AT_REST)
"""What takes records away that a broker had."""


class Faults:
    """`begin` lets faults come and go until `heal` ends all of them."""

    def __init__(
        self,
        cluster: SimCluster,
        clients: list[Client],
        random: Random,
        *,
        every_s: float,
        only: Collection[str] | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._cluster = cluster
        self._world = cluster.world
        self._network = cluster.world.network
        self._clients = clients
        self._random = random
        self._every_s = every_s
        self._active = False
        self._underway: dict[int, tuple[str, Undo]] = {}
        self._serial = 0
        everything = [name for name in KINDS if name not in LOSSES or len(cluster.nodes) > 1]  # others have them
        # Not all of it in every run: some defects show only where nothing else disturbs.
        names = random.sample(everything, random.randint(3, len(everything))) if only is None else only
        self.kinds = [name for name in everything if name in names]

    def begin(self) -> None:
        self._active = True
        self._later()

    def heal(self) -> None:
        self._active = False
        for name, undo in list(self._underway.values()):
            self._say(f"{name} ends")
            undo()
        self._underway.clear()
        self._network.heal_all()
        for node in self._cluster.nodes:
            node.resume()
            node.start()

    def _later(self) -> None:
        self._world.kernel.call_later(self._random.expovariate(1 / self._every_s), self._strike)

    def _strike(self) -> None:
        if not self._active:
            return
        self._later()
        if len(self._underway) >= AT_ONCE_MAX:
            return
        name = self._random.choice(self.kinds)
        undo: Undo | None = getattr(self, KINDS[name])()
        if undo is None:
            return  # no candidate for this fault now
        self.counts[name] += 1
        self._serial += 1
        serial = self._serial
        self._underway[serial] = name, undo
        self._world.kernel.call_later(self._duration(), self._over, serial)

    def _over(self, serial: int) -> None:
        name, undo = self._underway.pop(serial, ("", None))
        if undo is not None:
            self._say(f"{name} ends")
            undo()

    def _duration(self) -> float:
        low, high = self._random.choice([(0.01, 1.0), (1.0, 10.0), (1.0, 10.0), (10.0, 40.0)])
        return self._random.uniform(low, high)

    def _say(self, what: str) -> None:
        self._world.trace.line("fault", what)

    # Processes.

    def _running(self) -> list[Node]:
        return [node for node in self._cluster.nodes if node.running]

    def _chosen(self, nodes: list[Node]) -> Node | None:
        return self._random.choice(nodes) if nodes else None

    def _kill(self) -> Undo | None:
        node = self._chosen(self._running())
        if node is None or not self._may_go(node):
            return None
        node.kill()
        return node.start

    def _kill_all(self) -> Undo | None:
        """At one moment; they come back one after the other."""
        if any(node.tail_lost for node in self._cluster.nodes) and not self.whole():
            return None
        nodes = self._running()
        for node in nodes:
            node.kill()

        def undo() -> None:
            for node in nodes:
                self._world.kernel.call_later(self._random.uniform(0, 5), node.start)

        return undo if nodes else None

    def _stop(self) -> Undo | None:
        node = self._chosen([node for node in self._running() if node.ready and not node.paused])
        if node is None or not self._may_go(node):
            return None
        node.stop()
        return node.start

    def _pause(self) -> Undo | None:
        node = self._chosen([node for node in self._running() if not node.paused])
        if node is None:
            return None
        node.pause()
        return node.resume

    def _power_cut(self) -> Undo | None:
        node = self._chosen(self._running())
        if node is None or not self.whole():
            return None
        node.kill(power=True)
        return node.start

    def _bit_flip(self) -> Undo | None:
        """In the part of a log that recovery reads again, and of a batch that its checksum covers."""
        node = self._chosen(self._running())
        if node is None or not self.whole():
            return None
        node.kill()
        node.tail_lost = True
        disk = self._world.machine(node.name).disk
        logs = [path for name in disk.listdir(DATA) if (path := _last_segment(disk, f"{DATA}/{name}")) is not None]
        if logs:
            path = self._random.choice(logs)
            position, header = self._random.choice(list(batches(disk.read(path))))
            at = disk.flip_bit(path, position + self._random.randrange(MAGIC_AT, header.size))
            self._say(f"a bit of {node.name} flips in {path} at {at}")
        return node.start

    def _damaged_file(self) -> Undo | None:
        """Of a broker that was stopped, or killed."""
        node = self._chosen([node for node in self._running() if node.ready and not node.paused])
        if node is None or not self.whole():
            return None
        node.tail_lost = True
        if self._random.random() < 0.7:
            node.stop()
        else:
            node.kill()

        def undo() -> None:
            if node.running and self._active:
                self._world.kernel.call_later(1.0, undo)  # it has not stopped yet
                return
            if not node.running:
                try:
                    done = damage_a_file(self._world.machine(node.name).disk, DATA, self._random)
                except StorageFault as fault:  # it is full, or broken, at the same time
                    done = f"files could not all be damaged: {fault}"
                self._say(f"{node.name}: {done}")
                node.damaged()
            node.start()

        return undo

    def _bit_rot(self) -> Undo | None:
        """In the log of a running broker: in flushed bytes that only a scrub would read again."""
        node = self._chosen([node for node in self._running() if node.ready and not node.paused])
        if node is None or not self.whole():
            return None
        assert node.broker is not None
        disk, replicas = self._world.machine(node.name).disk, node.broker.replicas
        try:
            flipped = flip_a_bit(disk, replicas, self._random)
        except StorageFault:
            return None  # the disk is broken at the same time
        if flipped is None:
            return None
        self._say(f"{node.name}: {flipped}")
        node.tail_lost = True
        node.damaged()
        return lambda: None

    def whole(self) -> bool:
        """Whether every replica is in sync and up; then earlier losses are repaired."""
        if not all(node.ready and not node.paused and not node.stopping for node in self._cluster.nodes):
            return False
        if not self._cluster.in_sync() or not all(node.scrubbed(SCRUB_PASSES) for node in self._cluster.nodes):
            return False
        for node in self._cluster.nodes:
            node.tail_lost = node.unclean = False
        return True

    def _may_go(self, node: Node) -> bool:
        """After one replica has lost records, another one must have all acknowledged ones: in each partition one
        replica must be in sync, running, and not killed since."""
        if not any(each.tail_lost for each in self._cluster.nodes) or self.whole():
            return True
        stay = {each.id for each in self._running() if each is not node and not each.unclean and not each.tail_lost}
        topics = self._cluster.image().topics.values()
        return all(stay.intersection(part.in_sync) for topic in topics for part in topic.partitions if part.initialized)

    # The network.

    def _pair(self) -> tuple[str, str]:
        first, second = self._random.sample(self._cluster.nodes, 2)
        return first.name, second.name

    def _cut_links(self, links: list[tuple[str, str]]) -> Undo:
        self._say("cut " + ", ".join(f"{source} -> {target}" for source, target in links))
        for source, target in links:
            self._network.cut(source, target)

        def undo() -> None:
            for source, target in links:
                self._network.heal(source, target)

        return undo

    def _cut(self) -> Undo | None:
        if len(self._cluster.nodes) < 2:
            return None
        first, second = self._pair()
        return self._cut_links([(first, second), (second, first)])

    def _cut_one_way(self) -> Undo | None:
        if len(self._cluster.nodes) < 2:
            return None
        return self._cut_links([self._pair()])

    def _isolate(self) -> Undo | None:
        """One broker from all others, sometimes from the store too, but not from clients."""
        alone = self._random.choice(self._cluster.nodes).name
        others = [node.name for node in self._cluster.nodes if node.name != alone]
        if self._random.random() < 0.5:
            others.append(STORE)
        return self._cut_links([link for other in others for link in ((alone, other), (other, alone))])

    def _cut_from_store(self) -> Undo | None:
        name = self._random.choice(self._cluster.nodes).name
        links = [(name, STORE), (STORE, name)]
        return self._cut_links(links if self._random.random() < 0.6 else [self._random.choice(links)])

    def _slow_link(self) -> Undo | None:
        source, target = self._any_link()
        link = self._network.link(source, target)
        link.delay_s, link.spread_s = self._random.uniform(0.01, 1.0), self._random.uniform(0.001, 0.5)
        link.bytes_per_second = self._random.choice([None, 20_000.0])
        self._say(f"{source} -> {target} takes {link.delay_s:.3f} s")
        return lambda: self._network.reset_delay(source, target)

    def _lossy_link(self) -> Undo | None:
        source, target = self._any_link()
        link = self._network.link(source, target)
        link.loss = self._random.choice([0.02, 0.2])
        self._say(f"{source} -> {target} loses {link.loss:.0%}")
        return lambda: setattr(link, "loss", 0.0)

    def _any_link(self) -> tuple[str, str]:
        names = [*(node.name for node in self._cluster.nodes), STORE, *(client.name for client in self._clients)]
        source, target = self._random.sample(names, 2)
        return source, target

    # The store.

    def _store_away(self) -> Undo | None:
        if self._world.store.away:
            return None
        self._say("the store goes away")
        self._world.store.go_away()
        return self._world.store.come_back

    def _expire(self) -> Undo | None:
        node = self._chosen(self._running())
        if node is None or self._world.store.away:
            return None
        self._world.store.expire(node.name)
        return lambda: None

    # Disks and clocks.

    def _slow_disk(self) -> Undo | None:
        machine = self._world.machine(self._random.choice(self._cluster.nodes).name)
        machine.disk_delay_s = self._random.choice([0.05, 0.5, 3.0])
        self._say(f"{machine.name} has a slow disk: {machine.disk_delay_s} s")
        return lambda: setattr(machine, "disk_delay_s", DISK_DELAY_S)  # not the previous value: that may be slow, too

    def _full_disk(self) -> Undo | None:
        disk = self._world.machine(self._random.choice(self._cluster.nodes).name).disk
        disk.capacity_bytes = disk.used() + self._random.choice([0, 100, 5_000])
        self._say("a disk is full")
        return lambda: setattr(disk, "capacity_bytes", UNLIMITED)

    def _broken_disk(self) -> Undo | None:
        disk = self._world.machine(self._random.choice(self._cluster.nodes).name).disk
        disk.broken = True
        self._say("a disk refuses to write")
        return lambda: setattr(disk, "broken", False)

    def _clock_jump(self) -> Undo | None:
        machine = self._world.machine(self._random.choice(self._cluster.nodes).name)
        machine.wall_skew_ms = self._random.randint(-WALL_JUMP_MS, WALL_JUMP_MS)
        self._say(f"the clock of {machine.name} is off by {machine.wall_skew_ms} ms")
        return lambda: setattr(machine, "wall_skew_ms", 0)

    # Clients.

    def _kill_client(self) -> Undo | None:
        running = [client for client in self._clients if client.running]
        if not running:
            return None
        client = self._random.choice(running)
        client.kill()
        return client.start

    def _cut_client(self) -> Undo | None:
        client, node = self._random.choice(self._clients).name, self._random.choice(self._cluster.nodes).name
        links = [(client, node), (node, client)]
        return self._cut_links(links if self._random.random() < 0.5 else [self._random.choice(links)])


def _last_segment(disk: SimDisk, directory: str) -> str | None:
    """The file of a log that recovery always reads, if there is something in it."""
    names = [name for name in disk.listdir(directory) if name.endswith(".log")]
    path = f"{directory}/{names[-1]}" if names else ""
    return path if path and disk.read(path) else None
