"""Runs drills, each on a cluster in a directory of its own. A drill reuses the cluster of the one before when it has
the same settings and nothing is broken. Directories are removed at the end."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ottla.client.errors import ClientError
from ottla.cluster.ensemble import Ensemble, find_jars, find_java
from ottla.drills.catalogue import DRILLS, Drill
from ottla.drills.stage import SETTINGS, Differs, Said, Stage
from ottla.errors import Fault
from ottla.local.cluster import LocalCluster

Ended = Callable[[Stage], Awaitable[None]]


def missing(drill: Drill, jars: str | None = None) -> list[str]:
    """All that a drill needs and this machine lacks, each with what to do about it."""
    if not drill.zookeepers:
        return []
    lacking: list[str] = []
    if find_spec("kazoo") is None:
        lacking.append("brokers speak to ZooKeeper through kazoo: pip install 'ottla[zookeeper]'")
    for find in (find_java, lambda: find_jars(jars)):
        try:
            find()
        except Fault as fault:
            lacking.append(str(fault))
    return lacking


class _Kind(NamedTuple):
    """Clusters of one kind are as good as each other."""

    brokers: tuple[int, ...]
    zookeepers: int
    settings: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, drill: Drill) -> _Kind:
        return cls(drill.brokers, drill.zookeepers, tuple(sorted(drill.settings.items())))


class Player:
    """Plays drills, one after the other, and keeps a cluster for the next one while it is whole."""

    def __init__(self, said: Said, *, jars: str | None = None, ended: Ended | None = None) -> None:
        """`ended` is called after a drill while its cluster still runs."""
        self.said = said
        self._jars = jars
        self.ended = ended
        self._kind: _Kind | None = None
        self.cluster: LocalCluster | None = None
        """That of the last drill, while it is whole."""
        self._directory = Path()

    async def play(self, name: str, drills: Mapping[str, Drill] = DRILLS) -> None:
        """When something differs, logs and data are left to be looked at; processes never are."""
        drill = drills[name]
        if lacking := missing(drill, self._jars):
            raise Fault(f"drill {name} cannot start: " + "; and ".join(lacking))
        begun = time.monotonic()
        self.said(f"Drill {name}: {drill.title}")
        self.said(f"  {drill.quote.source}:")
        self.said(f"  “{drill.quote.sentence}”")
        self.said(f"  Kafka's term: {drill.term}")
        kept = whole = False
        try:
            await self._play(drill)
            whole = drill.whole
        except (Differs, ClientError):
            kept = True
            raise
        finally:
            if kept:
                self.said(f"What the brokers have to say about it is in {self._directory}.")
            if not whole:
                self.close(keep=kept)
        self.said(f"Passed in {time.monotonic() - begun:.1f} s.")

    async def _play(self, drill: Drill) -> None:
        cluster = self._cluster_for(drill)
        stage = Stage(cluster, self.said)
        beside = (
            f", beside {drill.zookeepers} ZooKeeper{'s' if drill.zookeepers > 1 else ''}" if drill.zookeepers else ""
        )
        await stage.until(
            f"{len(drill.brokers)} brokers are ready{beside}, and know each other",
            stage.probe.everybody_knows,
            lambda known: known == {drill.brokers},
        )
        await drill.play(stage)
        if self.ended is not None:
            await self.ended(stage)

    def _cluster_for(self, drill: Drill) -> LocalCluster:
        """A cluster for this drill: the one that is there, or a new one."""
        kind = _Kind.of(drill)
        if self.cluster is not None and self._kind == kind:
            return self.cluster
        self.close()
        self._directory = Path(tempfile.mkdtemp(prefix="ottla-drill-"))
        ensemble = None
        if drill.zookeepers:
            ensemble = Ensemble(self._directory / "zookeeper", drill.zookeepers, jars=self._jars)
        settings = {**SETTINGS, **drill.settings}
        self.cluster = LocalCluster(self._directory, drill.brokers, settings=settings, ensemble=ensemble)
        for broker in self.cluster.brokers.values():
            broker.settings["broker.rack"] = f"rack-{broker.id}"
        self._kind = kind
        self.cluster.start()
        return self.cluster

    def close(self, *, keep: bool = False) -> None:
        """End the cluster, and remove its files unless they are to be looked at."""
        if self.cluster is not None:
            self.cluster.kill()
            self.cluster = None
            if not keep:
                shutil.rmtree(self._directory, ignore_errors=True)


async def run(name: str, said: Said, *, jars: str | None = None) -> None:
    """Play one drill on a cluster of its own."""
    player = Player(said, jars=jars)
    try:
        await player.play(name)
    finally:
        player.close()
