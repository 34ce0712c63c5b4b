"""All drills by name, and how one is run: a cluster in a directory of its own, the story, and nothing left behind."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from ottla.client.errors import ClientError
from ottla.cluster.ensemble import Ensemble
from ottla.drills import clients, failures, zookeepers
from ottla.drills.stage import SETTINGS, Differs, Said, Stage
from ottla.local.cluster import LocalCluster


class Drill(NamedTuple):
    """`zookeepers`: how many there are; with none the brokers share an embedded store."""

    title: str
    play: Callable[[Stage], Awaitable[None]]
    brokers: tuple[int, ...] = (1, 2, 3)
    zookeepers: int = 0
    settings: Mapping[str, str] = {}


FOUR: Final = (1, 2, 3, 4)

DRILLS: Final = {
    "replica-fails": Drill("One replica fails: writing goes on, and it falls behind.", failures.replica_fails),
    "two-replicas-fail": Drill("A second one fails: the leader alone is in sync.", failures.two_replicas_fail),
    "leader-fails-last": Drill("Then the leader fails: nobody can take a write.", failures.leader_fails_last, FOUR),
    "recover-clean": Drill("Wait for the leader to come back: nothing is lost.", failures.recover_clean, FOUR),
    "recover-unclean": Drill(
        "Elect whoever comes back first: what it missed is lost.", failures.recover_unclean, FOUR
    ),
    "start-from-zero": Drill("Elect a replica that has nothing: all is lost.", failures.start_from_zero, FOUR),
    "eligible-leader": Drill(
        "A replica that left with everything acknowledged may lead.", failures.eligible_leader, FOUR
    ),
    "no-replication": Drill("Without copies, a lost disk is a lost partition.", failures.no_replication),
    "replicas-spread": Drill(
        "Where replicas lie: spread evenly, copied by their holders.", clients.replicas_spread, (101, 102, 103, 104)
    ),
    "producer-recovers": Drill("A leader dies: the producer finds the new one.", clients.producer_recovers),
    "consumer-recovers": Drill("Leaders die: the consumer misses nothing.", clients.consumer_recovers),
    "fast-catch-up": Drill("A broker comes back, and catches up fast.", clients.fast_catch_up),
    "add-a-broker": Drill(
        "A new broker takes its share, and producers notice nothing.",
        clients.add_a_broker,
        settings={"auto.leader.rebalance.enable": "true", "leader.imbalance.check.interval.seconds": "1"},
    ),
    "zookeeper-leader-dies": Drill(
        "The leading ZooKeeper dies: records flow on.", zookeepers.zookeeper_leader_dies, zookeepers=3
    ),
    "six-brokers-three-zookeepers": Drill(
        "The picture with six brokers and three ZooKeepers, and what it survives.",
        zookeepers.six_brokers_three_zookeepers,
        (1, 2, 3, 4, 5, 6),
        zookeepers=3,
    ),
}


async def run(name: str, said: Said, *, jars: str | None = None) -> None:
    """Play one drill. When something differs, logs and data are left to be looked at; processes never are."""
    drill = DRILLS[name]
    begun = time.monotonic()
    said(f"Drill {name}: {drill.title}")
    directory = Path(tempfile.mkdtemp(prefix="ottla-drill-"))
    kept = False
    try:
        await _play(drill, directory, said, jars)
    except (Differs, ClientError):
        kept = True
        raise
    finally:
        if kept:
            said(f"What the brokers have to say about it is in {directory}.")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    said(f"Passed in {time.monotonic() - begun:.1f} s.")


async def _play(drill: Drill, directory: Path, said: Said, jars: str | None) -> None:
    ensemble = Ensemble(directory / "zookeeper", drill.zookeepers, jars=jars) if drill.zookeepers else None
    cluster = LocalCluster(directory, drill.brokers, settings={**SETTINGS, **drill.settings}, ensemble=ensemble)
    stage = Stage(cluster, said)
    try:
        cluster.start()
        await stage.until(
            f"{len(drill.brokers)} brokers are ready{_beside(drill)}, and know each other",
            stage.probe.everybody_knows,
            lambda known: known == {drill.brokers},
        )
        await drill.play(stage)
    finally:
        cluster.kill()


def _beside(drill: Drill) -> str:
    if not drill.zookeepers:
        return ", share an embedded store"
    return ", beside one ZooKeeper" if drill.zookeepers == 1 else f", beside {drill.zookeepers} ZooKeepers"
