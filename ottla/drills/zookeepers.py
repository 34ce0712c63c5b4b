"""Drills about ZooKeeper: the registry of brokers, and an ensemble that loses servers."""

from __future__ import annotations

import asyncio
import json
from typing import Final

from ottla.cluster.ensemble import Ensemble
from ottla.cluster.store import Store
from ottla.cluster.zookeeper_options import ZooKeeperOptions
from ottla.drills.stage import PATIENCE_SECONDS, Stage
from ottla.drills.steady import SteadyProducer
from ottla.local.processes import State
from ottla.runtime.real import RealRuntime

TOPIC: Final = "orders"
BROKERS: Final = "/brokers/ids"
TOPICS: Final = "/brokers/topics"
CONTROLLER: Final = "/controller"
STATE: Final = f"{TOPICS}/{TOPIC}/partitions/0/state"
SHOWN: Final = ("host", "port", "brokerid", "partitions", "leader", "leader_epoch", "isr")
"""Fields of znodes that the drill shows."""
SAFE: Final = {"min.insync.replicas": "2"}


def _ensemble(stage: Stage) -> Ensemble:
    assert stage.cluster.ensemble is not None
    return stage.cluster.ensemble


async def zookeeper_registry(stage: Stage) -> None:
    from ottla.cluster.zookeeper_store import ZooKeeperStore  # needs kazoo; the other drills do not

    store = await ZooKeeperStore.open(stage.cluster.store.removeprefix("zookeeper:"), RealRuntime(), ZooKeeperOptions())
    try:
        await _registry(stage, store)
    finally:
        await store.close()


def _shown(data: bytes) -> str:
    """The fields of a znode that matter here, as JSON."""
    fields = json.loads(data)
    shown = {name: fields[name] for name in SHOWN if name in fields}
    return json.dumps(shown).removesuffix("}") + (", …}" if len(shown) < len(fields) else "}")


async def _registry(stage: Stage, store: Store) -> None:
    async def picture() -> list[str]:
        lines = []
        for path in (f"{BROKERS}/1", f"{BROKERS}/2", f"{BROKERS}/3", CONTROLLER, f"{TOPICS}/{TOPIC}", STATE):
            node = await store.read(path)
            lines.append(f"{path:<42} {'does not exist' if node is None else _shown(node.data)}")
        return lines

    stage.show(picture)
    registered = sorted(await store.children(BROKERS))
    stage.check(registered == ["1", "2", "3"], f"each broker has a znode under {BROKERS}", registered)
    await stage.create(TOPIC, [(1, 2, 3)])
    topics = await store.children(TOPICS)
    stage.check(TOPIC in topics, f"the topic has a znode under {TOPICS}", topics)
    notified = asyncio.Event()
    unwatch = store.watch(BROKERS, notified.set)
    stage.say(f"A watch is set on {BROKERS}. A broker has an ephemeral znode, which is deleted when its session ends.")
    await stage.kill(1)

    async def children() -> list[str]:
        return sorted(await store.children(BROKERS))

    await stage.until("the ephemeral znode of broker 1 is gone", children, lambda found: found == ["2", "3"])
    await asyncio.wait_for(notified.wait(), PATIENCE_SECONDS)
    unwatch()
    stage.check(notified.is_set(), "the watch has fired")
    await stage.led_by_other(TOPIC, 1)
    await stage.write(TOPIC, 10)
    await stage.restart(1)
    await stage.until("broker 1 has registered again", children, lambda found: found == ["1", "2", "3"])


async def zookeeper_leader_dies(stage: Stage) -> None:
    ensemble = _ensemble(stage)
    stage.show(lambda: _ensemble_picture(stage, ensemble))
    await stage.create(TOPIC, [(1, 2, 3), (2, 3, 1), (3, 1, 2)], configs=SAFE)
    leading = ensemble.leader
    stage.say(f"The ZooKeeper on port {leading.port} leads the ensemble. A producer writes to the brokers.")
    async with SteadyProducer(stage, TOPIC, 3) as writing:
        await writing.more(300)
        leading.kill()
        stage.say("The leading ZooKeeper is killed with kill -9. Records do not pass through it: writes continue.")
        await stage.draw()
        await writing.more(300)
        await _leads_again(stage, ensemble)
        stage.say("ZooKeeper is available again: a topic can be created, and a new leader elected when a broker dies.")
        await stage.probe.create("afterwards", partitions=3, copies=3)
        await stage.write("afterwards", 10)
        await stage.kill(1)
        await stage.led_by_other(TOPIC, 1)
        await writing.more(300)
        leading.start()
        await stage.restart(1)
        await stage.in_sync(TOPIC, (1, 2, 3))
        await writing.stop()
        stage.check(not writing.failures, "the producer reported no error to its program", writing.failures[:1])
    for partition in range(3):
        await stage.nothing_lost(TOPIC, partition)


async def six_brokers_three_zookeepers(stage: Stage) -> None:
    ensemble = _ensemble(stage)
    stage.show(lambda: _ensemble_picture(stage, ensemble))
    modes = sorted(server.mode() for server in ensemble.servers)
    stage.check(modes == ["follower", "follower", "leader"], "of three ZooKeepers one leads, and two follow", modes)
    await stage.probe.create(TOPIC, partitions=6, copies=3, configs=SAFE)
    snapshot = await stage.until(
        f"topic {TOPIC}, 6 partitions with replication factor 3, is created",
        stage.probe.snapshot,
        lambda snapshot: sum(topic == TOPIC for topic, _ in snapshot.partitions) == 6,
    )
    states = [state for (topic, _), state in snapshot.partitions.items() if topic == TOPIC]
    leaders = sorted(state.leader for state in states)
    stage.check(leaders == [1, 2, 3, 4, 5, 6], "each of six brokers leads one partition", leaders)
    async with SteadyProducer(stage, TOPIC, 6) as writing:
        await writing.more(600)
        follower = next(server for server in ensemble.servers if server.mode() == "follower")
        follower.kill()
        stage.say("A follower of the ensemble is killed: two of three are a majority (quorum).")
        await stage.draw()
        await writing.more(600)
        known = await stage.probe.registered_brokers()
        stage.check(known == {(1, 2, 3, 4, 5, 6)}, "all six brokers are still registered", known)
        await stage.kill(6)
        await stage.until(
            "the partition that broker 6 led has another leader",
            stage.probe.snapshot,
            lambda now: all(s.leader not in (6, -1) for (topic, _), s in now.partitions.items() if topic == TOPIC),
        )
        await writing.more(600)
        await writing.stop()
        stage.check(not writing.failures, "the producer reported no error to its program", writing.failures[:1])
    for partition in range(6):
        await stage.nothing_lost(TOPIC, partition)


async def _ensemble_picture(stage: Stage, ensemble: Ensemble) -> list[str]:
    """Servers of the ensemble, and the partitions that each broker leads."""
    servers = "  ".join(
        f"[ZooKeeper :{server.port} {server.mode() or 'no quorum' if server.running else 'killed'}]"
        for server in ensemble.servers
    )
    snapshot = await stage.probe.snapshot()
    brokers = []
    for broker in stage.cluster.brokers.values():
        led = [f"{topic}-{n}" for (topic, n), state in snapshot.partitions.items() if state.leader == broker.id]
        shown = [name for name in led if name.startswith(f"{TOPIC}-")]
        word = f"leads {', '.join(shown) or 'nothing'}" if broker.state is State.READY else broker.state.value
        brokers.append(f"broker {broker.id}: {word}")
    return [servers, *brokers]


async def _leads_again(stage: Stage, ensemble: Ensemble) -> None:
    async def modes() -> list[str]:
        return [server.mode() for server in ensemble.servers if server.running]

    await stage.until("the two others have elected a leader", modes, lambda found: "leader" in found)
