"""A real ZooKeeper ensemble that loses servers while brokers depend on it."""

from __future__ import annotations

import asyncio
import json
from typing import Final

from ottla.cluster.ensemble import Ensemble
from ottla.cluster.store import Store
from ottla.cluster.zookeeper_options import ZooKeeperOptions
from ottla.drills.stage import PATIENCE_SECONDS, Stage
from ottla.drills.steady import Writing
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
    from ottla.cluster.zookeeper_store import ZooKeeperStore  # needs kazoo, which the other drills do without

    store = await ZooKeeperStore.open(stage.cluster.store.removeprefix("zookeeper:"), RealRuntime(), ZooKeeperOptions())
    try:
        await _registry(stage, store)
    finally:
        await store.close()


def _shown(data: bytes) -> str:
    """Of what a znode holds, as JSON: what the drill is about."""
    held = json.loads(data)
    told = {name: held[name] for name in SHOWN if name in held}
    return json.dumps(told).removesuffix("}") + (", …}" if len(told) < len(held) else "}")


async def _registry(stage: Stage, store: Store) -> None:
    async def picture() -> list[str]:
        lines = []
        for path in (f"{BROKERS}/1", f"{BROKERS}/2", f"{BROKERS}/3", CONTROLLER, f"{TOPICS}/{TOPIC}", STATE):
            node = await store.read(path)
            lines.append(f"{path:<42} {'not there' if node is None else _shown(node.data)}")
        return lines

    stage.show(picture)
    registered = sorted(await store.children(BROKERS))
    stage.check(registered == ["1", "2", "3"], f"each broker has registered in ZooKeeper, under {BROKERS}", registered)
    await stage.probe.create(TOPIC, [(1, 2, 3)])
    await stage.made(TOPIC, 1)
    topics = await store.children(TOPICS)
    stage.check(TOPIC in topics, f"ZooKeeper has the topic, too, under {TOPICS}", topics)
    told = asyncio.Event()
    unwatch = store.watch(BROKERS, told.set)
    stage.say(f"A watch is set on {BROKERS}. The znode of each broker is ephemeral: it goes when its session ends.")
    await stage.kill(1)

    async def children() -> list[str]:
        return sorted(await store.children(BROKERS))

    await stage.until("the ephemeral znode of broker 1 is gone", children, lambda found: found == ["2", "3"])
    await asyncio.wait_for(told.wait(), PATIENCE_SECONDS)
    unwatch()
    stage.check(told.is_set(), "the watch has told of it")
    await stage.led_by_another(TOPIC, 1)
    await stage.write(TOPIC, 10)
    await stage.restart(1)
    await stage.until("broker 1 has registered again", children, lambda found: found == ["1", "2", "3"])


async def zookeeper_leader_dies(stage: Stage) -> None:
    ensemble = _ensemble(stage)
    await stage.probe.create(TOPIC, [(1, 2, 3), (2, 3, 1), (3, 1, 2)], configs=SAFE)
    stage.show(lambda: _ensemble_picture(stage, ensemble))
    await stage.made(TOPIC, 3)
    leading = ensemble.leader
    stage.say(f"The ZooKeeper on port {leading.port} leads the ensemble. A producer writes to the brokers.")
    async with Writing(stage, TOPIC, 3) as writing:
        await writing.more(300)
        leading.kill()
        stage.say("The leading ZooKeeper is killed with kill -9. Records do not pass through it: writing goes on.")
        await stage.draw()
        await writing.more(300)
        await _leads_again(stage, ensemble)
        stage.say("What needs ZooKeeper works, too: a new topic, and a new leader when a broker dies.")
        await stage.probe.create("afterwards", partitions=3, copies=3)
        await stage.write("afterwards", 10)
        await stage.kill(1)
        await stage.led_by_another(TOPIC, 1)
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
    async with Writing(stage, TOPIC, 6) as writing:
        await writing.more(600)
        follower = next(server for server in ensemble.servers if server.mode() == "follower")
        follower.kill()
        stage.say("A following ZooKeeper is killed: two of three are a majority (quorum).")
        await stage.draw()
        await writing.more(600)
        known = await stage.probe.everybody_knows()
        stage.check(known == {(1, 2, 3, 4, 5, 6)}, "all six brokers are still there", known)
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
    """Servers of the ensemble, and below them what each broker leads."""
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
