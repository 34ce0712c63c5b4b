"""A real ZooKeeper ensemble that loses servers while brokers depend on it."""

from __future__ import annotations

from typing import Final

from ottla.cluster.ensemble import Ensemble
from ottla.drills.stage import Stage
from ottla.drills.steady import Writing

TOPIC: Final = "orders"
SAFE: Final = {"min.insync.replicas": "2"}


def _ensemble(stage: Stage) -> Ensemble:
    assert stage.cluster.ensemble is not None
    return stage.cluster.ensemble


async def zookeeper_leader_dies(stage: Stage) -> None:
    ensemble = _ensemble(stage)
    await stage.probe.create(TOPIC, [(1, 2, 3), (2, 3, 1), (3, 1, 2)], configs=SAFE)
    leading = ensemble.leader
    stage.say(f"The ZooKeeper on port {leading.port} leads the ensemble. A producer writes to the brokers.")
    async with Writing(stage, TOPIC, 3) as writing:
        await writing.more(300)
        leading.kill()
        stage.say("The leading ZooKeeper is killed with kill -9. Records do not pass through it: writing goes on.")
        await writing.more(300)
        await _leads_again(stage, ensemble)
        stage.say("What needs ZooKeeper works, too: a new topic, and a new leader when a broker dies.")
        await stage.probe.create("afterwards", partitions=3, copies=3)
        await stage.write("afterwards", 10)
        stage.kill(1)
        await stage.until(
            f"another broker leads {TOPIC}-0", lambda: stage.probe.replicas(TOPIC), lambda state: state.leader in (2, 3)
        )
        await writing.more(300)
        leading.start()
        await stage.restart(1)
        await stage.in_sync(TOPIC, (1, 2, 3))
        await writing.stop()
        stage.check(not writing.failures, "no error reached whoever uses the producer", writing.failures[:1])
    for partition in range(3):
        await stage.nothing_lost(TOPIC, partition)


async def six_brokers_three_zookeepers(stage: Stage) -> None:
    ensemble = _ensemble(stage)
    modes = sorted(server.mode() for server in ensemble.servers)
    stage.check(modes == ["follower", "follower", "leader"], "of three ZooKeepers one leads, and two follow", modes)
    await stage.probe.create(TOPIC, partitions=6, copies=3, configs=SAFE)
    sight = await stage.until(
        f"topic {TOPIC}, 6 partitions of 3 replicas, is made",
        stage.probe.sight,
        lambda sight: sum(topic == TOPIC for topic, _ in sight.partitions) == 6,
    )
    states = [state for (topic, _), state in sight.partitions.items() if topic == TOPIC]
    leaders = sorted(state.leader for state in states)
    stage.check(leaders == [1, 2, 3, 4, 5, 6], "each of six brokers leads one partition", leaders)
    async with Writing(stage, TOPIC, 6) as writing:
        await writing.more(600)
        follower = next(server for server in ensemble.servers if server.mode() == "follower")
        follower.kill()
        stage.say("A following ZooKeeper is killed: two of three are a majority.")
        await writing.more(600)
        known = await stage.probe.everybody_knows()
        stage.check(known == {(1, 2, 3, 4, 5, 6)}, "all six brokers are still there", known)
        stage.kill(6)
        await stage.until(
            "its partition has another leader",
            stage.probe.sight,
            lambda sight: all(s.leader not in (6, -1) for (topic, _), s in sight.partitions.items() if topic == TOPIC),
        )
        await writing.more(600)
        await writing.stop()
        stage.check(not writing.failures, "no error reached whoever uses the producer", writing.failures[:1])
    for partition in range(6):
        await stage.nothing_lost(TOPIC, partition)


async def _leads_again(stage: Stage, ensemble: Ensemble) -> None:
    async def modes() -> list[str]:
        return [server.mode() for server in ensemble.servers if server.running]

    await stage.until("the two others have elected a leader", modes, lambda found: "leader" in found)
