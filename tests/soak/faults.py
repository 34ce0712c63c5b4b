"""Faults of a soak round: each happens, lasts a while, and is healed before the next one begins.

Healed means that everything runs again, not that replicas have caught up: the next fault may meet a cluster that is
still recovering from the last one.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from ottla.local.cluster import LocalCluster
from ottla.local.history import History, Kind
from ottla.local.processes import BrokerProcess, State
from ottla.local.proxy import ClusterProxies, Pair, both_ways
from ottla.local.snapshot import NO_BROKER, ClusterSnapshot, MetadataWatcher
from ottla.log import manifest
from ottla.runtime.disk import RealDisk
from ottla.sim import damage
from tests.harness.raw import fetch_request
from tests.soak.exactly_once import ExactlyOnce
from tests.soak.load import TOPIC, Writer

KNOWN_SECONDS = 20.0
REPAIRED_SECONDS = 90.0
SCRUBBED = b"scrub: pass "
SCRUB_PASSES = 2
"""When so many have ended, all files were read since."""
NEVER_READING = 40


class Arena:
    """A cluster, those who write to it, and chance."""

    def __init__(
        self,
        cluster: LocalCluster,
        writers: list[Writer],
        transactions: ExactlyOnce,
        random: Random,
        session_s: float,
        proxies: ClusterProxies,
        history: History,
        say: Callable[[str], None],
    ) -> None:
        self.cluster = cluster
        self.history = history
        self.say = say
        self.proxies = proxies
        self.writers = writers
        self.transactions = transactions
        self.random = random
        self.session_s = session_s
        self.failovers_s: list[float] = []
        """From the kill -9 of a leader until every partition was written to again."""

    @property
    def brokers(self) -> list[BrokerProcess]:
        return list(self.cluster.brokers.values())

    def rest(self, low: float, high: float) -> None:
        time.sleep(self.random.uniform(low, high))

    def snapshot(self) -> ClusterSnapshot:
        """The cluster as the first broker that answers describes it."""

        async def look() -> ClusterSnapshot | None:
            watcher = MetadataWatcher()
            try:
                return await watcher.look(each.bootstrap for each in self.cluster.serving())
            finally:
                await watcher.close()

        return asyncio.run(look()) or ClusterSnapshot()

    def whole(self) -> bool:
        """Whether every partition of every topic has a leader and all its replicas in sync."""
        states = self.snapshot().partitions.values()
        return bool(states) and all(
            state.leader != NO_BROKER and set(state.in_sync) == set(state.replicas) for state in states
        )

    def wait_until_whole(self) -> bool:
        """Whether it became whole in time; the end of the round looks after a cluster that does not."""
        deadline = time.monotonic() + KNOWN_SECONDS
        while not self.whole():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def wait_until_repaired(self, broker: BrokerProcess) -> None:
        """Files of it were damaged: the scrub has read all of them since, and its replicas are in sync. Only then may
        another broker lose something."""
        enough = broker.printed().count(SCRUBBED) + SCRUB_PASSES
        deadline = time.monotonic() + REPAIRED_SECONDS
        while broker.printed().count(SCRUBBED) < enough or not self.whole():
            if time.monotonic() > deadline:
                self.history.violated(Kind.STUCK, f"broker {broker.id} does not repair its files")
                return
            time.sleep(0.2)

    def leader(self) -> BrokerProcess:
        """Of some partition."""
        leaders = sorted(
            {state.leader for (topic, _), state in self.snapshot().partitions.items() if topic == TOPIC} - {NO_BROKER}
        )
        running = [self.cluster[each] for each in leaders if self.cluster[each].running]
        return self.random.choice(running or self.brokers)

    def controller(self) -> BrokerProcess:
        controller = self.snapshot().controller
        return self.cluster[controller] if controller in self.cluster.brokers else self.random.choice(self.brokers)

    def coordinator(self) -> BrokerProcess:
        """Of the transactions of some copier."""
        shard = self.snapshot().partitions.get(("__transaction_state", self.transactions.state_partition()))
        led = shard is not None and shard.leader in self.cluster.brokers
        return self.cluster[shard.leader] if shard is not None and led else self.random.choice(self.brokers)

    def acknowledged_since(self, moment: float) -> bool:
        """Whether a client got a record of each partition after this."""
        return all(
            max(writer.last_acknowledged[n] for writer in self.writers) > moment
            for n in range(self.writers[0].partitions)
        )


def heal(arena: Arena) -> None:
    """Everything runs again, and serves."""
    arena.proxies.heal()
    if arena.cluster.ensemble is not None:
        arena.cluster.ensemble.start()
    for broker in arena.brokers:
        if broker.state is State.PAUSED:
            broker.resume()
        if not broker.running:
            broker.launch()
    arena.transactions.heal()
    for broker in arena.brokers:
        broker.wait_until_ready()


def kill_leader(arena: Arena) -> None:
    arena.leader().kill()
    arena.rest(0, 4)


def kill_leader_of_a_whole_cluster(arena: Arena) -> None:
    """With the clock running: who else has everything leads soon."""
    if not arena.wait_until_whole():
        return
    arena.leader().kill()
    killed = time.monotonic()
    deadline = killed + 3 * arena.session_s + 10
    while not arena.acknowledged_since(killed + 0.05):
        if time.monotonic() > deadline:
            break
        time.sleep(0.005)
    arena.failovers_s.append(time.monotonic() - killed)


def kill_controller(arena: Arena) -> None:
    arena.controller().kill()
    arena.rest(0, 4)


def kill_and_start_at_once(arena: Arena) -> None:
    """Faster than a session expires."""
    broker = arena.random.choice(arena.brokers)
    broker.kill()
    broker.launch()


def kill_two(arena: Arena) -> None:
    for broker in arena.random.sample(arena.brokers, 2):
        broker.kill()
        arena.rest(0, 0.5)
    arena.rest(0, 2)


def kill_all(arena: Arena) -> None:
    for broker in arena.random.sample(arena.brokers, len(arena.brokers)):
        broker.kill()
    arena.random.shuffle(order := arena.brokers)
    for broker in order:
        broker.launch()
        arena.rest(0, 1)


def pause_briefly(arena: Arena) -> None:
    broker = arena.random.choice([arena.leader(), arena.random.choice(arena.brokers)])
    broker.pause()
    arena.rest(0.2 * arena.session_s, 0.8 * arena.session_s)
    broker.resume()


def pause_beyond_the_session(arena: Arena) -> None:
    """A leader that resumes after another broker was elected."""
    broker = arena.random.choice([arena.leader(), arena.controller()])
    broker.pause()
    arena.rest(1.2 * arena.session_s, 2.5 * arena.session_s)
    broker.resume()


def kill_leader_while_others_hang(arena: Arena) -> None:
    """What it alone has, it must not have acknowledged."""
    leader = arena.leader()
    others = [broker for broker in arena.brokers if broker is not leader and broker.running]
    for broker in others:
        broker.pause()
    arena.rest(0.1, 1.5)
    leader.kill()
    for broker in others:
        broker.resume()
    arena.rest(0, 3)


def kill_leader_after_one_hung(arena: Arena) -> None:
    """Who hung may have left the in-sync set, and must not lead with what it has."""
    leader = arena.leader()
    hanging = arena.random.choice([broker for broker in arena.brokers if broker is not leader])
    hanging.pause()
    arena.rest(0.5, 5)
    leader.kill()
    hanging.resume()
    arena.rest(0, 3)


def stop_and_start(arena: Arena) -> None:
    broker = arena.random.choice(arena.brokers)
    broker.stop()
    arena.rest(0, 2)
    broker.start()


def rolling_restart(arena: Arena) -> None:
    for broker in arena.random.sample(arena.brokers, len(arena.brokers)):
        broker.stop()
        broker.start()


def _around(arena: Arena, broker: BrokerProcess) -> list[Pair]:
    """Both ways between this broker and all others."""
    return both_ways(broker.id, [each.id for each in arena.brokers if each is not broker])


def cut_off_a_broker(arena: Arena) -> None:
    """Clients and the store still reach it: it must not acknowledge what it alone has."""
    broker = arena.random.choice([arena.leader(), arena.controller()])
    arena.proxies.cut(_around(arena, broker))
    arena.rest(0.5, 8)


def cut_one_way(arena: Arena) -> None:
    one, other = arena.random.sample(arena.brokers, 2)
    arena.proxies.cut([(one.id, other.id)])
    arena.rest(0.5, 8)


def cut_a_bridge(arena: Arena) -> None:
    """Two brokers do not hear of each other; the third hears of both."""
    one, other = arena.random.sample(arena.brokers, 2)
    arena.proxies.cut(both_ways(one.id, [other.id]))
    arena.rest(0.5, 8)


def slow_links(arena: Arena) -> None:
    broker = arena.random.choice(arena.brokers)
    arena.proxies.delay(_around(arena, broker), arena.random.uniform(0.02, 0.5))
    arena.rest(1, 5)


def cut_and_kill(arena: Arena) -> None:
    """A leader without reachable followers dies; the next leader has all acknowledged records."""
    broker = arena.leader()
    arena.proxies.cut(_around(arena, broker))
    arena.rest(0.2, 5)
    broker.kill()
    arena.proxies.heal()
    arena.rest(0, 3)


def kill_a_zookeeper(arena: Arena) -> None:
    ensemble = arena.cluster.ensemble
    assert ensemble is not None
    arena.random.choice(ensemble.servers).kill()
    arena.rest(1, 5)


def kill_the_leading_zookeeper(arena: Arena) -> None:
    ensemble = arena.cluster.ensemble
    assert ensemble is not None
    ensemble.leader.kill()
    arena.rest(0, 3)


def zookeeper_outage(arena: Arena) -> None:
    """The whole ensemble away for longer than a session lasts."""
    ensemble = arena.cluster.ensemble
    assert ensemble is not None
    for server in ensemble.servers:
        server.kill()
    arena.rest(arena.session_s, 2.5 * arena.session_s)


def zookeeper_outage_and_kill(arena: Arena) -> None:
    """A leader dies while the store is unreachable."""
    ensemble = arena.cluster.ensemble
    assert ensemble is not None
    for server in ensemble.servers:
        server.kill()
    arena.rest(0, 2)
    arena.random.choice(arena.brokers).kill()
    arena.rest(0, arena.session_s)


def kill_copiers(arena: Arena) -> None:
    """Some of them, and tellers: those who come back end what the ones before left behind."""
    for program in arena.transactions.some():
        program.kill(hold=arena.random.random() < 0.5)
    arena.rest(0, 3)


def replace_copiers(arena: Arena) -> None:
    """While they hang, others take their transactional ids; when they go on, they must not do any harm."""
    for program in arena.transactions.some():
        program.replace()
    arena.rest(0.5, 4)


def kill_coordinator(arena: Arena) -> None:
    """During transactions: the next coordinator completes prepared ones."""
    arena.coordinator().kill()
    arena.rest(0, 4)


def kill_coordinator_and_copiers(arena: Arena) -> None:
    """Those who come back find a coordinator that has to read first what there is to end."""
    arena.coordinator().kill()
    for program in arena.transactions.some():
        program.kill()
    arena.rest(0, 4)


def damage_a_file(arena: Arena) -> None:
    """Of one replica, behind a clean stop or a kill, while the others are whole."""
    broker = arena.random.choice(arena.brokers)
    if not arena.wait_until_whole():
        return
    broker.stop() if arena.random.random() < 0.5 else broker.kill()
    arena.say(damage.damage_a_file(RealDisk(), str(broker.data), arena.random))
    arena.rest(0, 2)
    broker.start()
    arena.wait_until_repaired(broker)


def flip_a_bit(arena: Arena) -> None:
    """In a file of a running replica that only the scrub reads again."""
    broker = arena.random.choice(arena.brokers)
    if not arena.wait_until_whole() or not (segments := _closed_segments(broker)):
        return
    path = arena.random.choice(segments)
    arena.say(damage.flip_a_bit_of(RealDisk(), str(path), path.read_bytes(), arena.random))
    arena.wait_until_repaired(broker)


def _closed_segments(broker: BrokerProcess) -> list[Path]:
    """Those that the manifests have."""
    found = []
    for directory in {path.parent for path in broker.data.glob(f"*-*/{manifest.FILE_NAME}")}:
        claims = manifest.read(RealDisk(), str(directory))
        found += [directory / f"{claim.base_offset:020d}.log" for claim in (claims.segments if claims else ())]
    return sorted(path for path in found if path.exists() and path.stat().st_size)


def clients_that_never_read(arena: Arena) -> None:
    """They fetch all there is from a leader, and take none of it."""
    leader = arena.leader()
    request = fetch_request(TOPIC, range(arena.writers[0].partitions))
    clients = []
    try:
        for _ in range(NEVER_READING):
            clients.append(socket.create_connection((leader.host, leader.port), KNOWN_SECONDS))
            clients[-1].sendall(request)
        arena.rest(1, 5)
    finally:
        for client in clients:
            client.close()


Fault = Callable[[Arena], None]

OF_BROKERS: tuple[Fault, ...] = (
    kill_leader,
    kill_leader_of_a_whole_cluster,
    kill_leader_of_a_whole_cluster,
    kill_controller,
    kill_and_start_at_once,
    kill_two,
    kill_all,
    pause_briefly,
    pause_beyond_the_session,
    kill_leader_while_others_hang,
    kill_leader_while_others_hang,
    kill_leader_after_one_hung,
    stop_and_start,
    rolling_restart,
    kill_copiers,
    kill_copiers,
    replace_copiers,
    kill_coordinator,
    kill_coordinator_and_copiers,
)
OF_FILES: tuple[Fault, ...] = (damage_a_file, damage_a_file, damage_a_file, flip_a_bit)
OF_NETWORK: tuple[Fault, ...] = (
    cut_off_a_broker,
    cut_one_way,
    cut_a_bridge,
    slow_links,
    cut_and_kill,
    clients_that_never_read,
)
OF_ZOOKEEPER: tuple[Fault, ...] = (
    kill_a_zookeeper,
    kill_the_leading_zookeeper,
    zookeeper_outage,
    zookeeper_outage_and_kill,
)
