"""Player of drills: starts a cluster in a temporary directory for each drill, or reuses the last one if it has the same
settings and is unbroken. Directories are removed at the end."""

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
from ottla.drills.stage import SETTINGS, CheckFailed, Print, Stage
from ottla.errors import Fault
from ottla.local.cluster import LocalCluster

Ended = Callable[[Stage], Awaitable[None]]


def missing(drill: Drill, jars: str | None = None) -> list[str]:
    """What a drill needs and this machine lacks, each with what to do."""
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


class _ClusterKind(NamedTuple):
    """Drills of one kind can share a cluster."""

    brokers: tuple[int, ...]
    zookeepers: int
    settings: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, drill: Drill) -> _ClusterKind:
        return cls(drill.brokers, drill.zookeepers, tuple(sorted(drill.settings.items())))


class Player:
    """Plays drills one after the other, and keeps an unbroken cluster for the next one."""

    def __init__(self, print: Print, *, jars: str | None = None, ended: Ended | None = None) -> None:
        """`ended` is called after a drill while its cluster still runs."""
        self.print = print
        self._jars = jars
        self.ended = ended
        self._kind: _ClusterKind | None = None
        self.cluster: LocalCluster | None = None
        """The cluster of the last drill, if it is unbroken."""
        self._directory = Path()

    async def play(self, name: str, drills: Mapping[str, Drill] = DRILLS) -> None:
        """If a check fails, logs and data are kept for inspection; processes are always ended."""
        drill = drills[name]
        if lacking := missing(drill, self._jars):
            raise Fault(f"drill {name} cannot start: " + "; and ".join(lacking))
        begun = time.monotonic()
        self.print(f"Drill {name}: {drill.title}")
        self.print(f"  {drill.quote.source}:")
        self.print(f"  “{drill.quote.sentence}”")
        self.print(f"  Kafka's term: {drill.term}")
        keep = reusable = False
        try:
            await self._play(drill)
            reusable = drill.reusable
        except (CheckFailed, ClientError):
            keep = True
            raise
        finally:
            if keep:
                self.print(f"Logs and data of the brokers are in {self._directory}.")
            if not reusable:
                self.close(keep=keep)
        self.print(f"Passed in {time.monotonic() - begun:.1f} s.")

    async def _play(self, drill: Drill) -> None:
        cluster = self._cluster_for(drill)
        stage = Stage(cluster, self.print)
        beside = (
            f", beside {drill.zookeepers} ZooKeeper{'s' if drill.zookeepers > 1 else ''}" if drill.zookeepers else ""
        )
        await stage.until(
            f"{len(drill.brokers)} brokers are ready{beside}, and registered",
            stage.probe.registered_brokers,
            lambda known: known == {drill.brokers},
        )
        await drill.play(stage)
        if self.ended is not None:
            await self.ended(stage)

    def _cluster_for(self, drill: Drill) -> LocalCluster:
        """The existing cluster if this drill can use it, otherwise a new one."""
        kind = _ClusterKind.of(drill)
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
        """Kill the cluster, and remove its files unless `keep`."""
        if self.cluster is not None:
            self.cluster.kill()
            self.cluster = None
            if not keep:
                shutil.rmtree(self._directory, ignore_errors=True)
