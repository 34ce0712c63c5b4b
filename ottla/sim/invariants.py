"""What must hold inside the brokers at every moment, seen from outside: looked at now and then during a run."""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.local.history import History, Kind
from ottla.sim.cluster import SimCluster

LOOK_SECONDS: Final = 0.1


class Reign(NamedTuple):
    """One leader epoch of one partition."""

    topic: str
    partition: int
    leader_epoch: int


class Invariants:
    """In one reign there is one leader, and one process of it; its high watermark does not go back, and is no further
    than its log."""

    def __init__(self, cluster: SimCluster, history: History) -> None:
        self._cluster = cluster
        self._history = history
        self._leaders: dict[Reign, tuple[int, int]] = {}
        self._high_watermarks: dict[Reign, int] = {}

    def begin(self) -> None:
        self._look()

    def _look(self) -> None:
        for node in self._cluster.nodes:
            if node.broker is None or not node.ready:
                continue
            for partition in node.broker.replicas:
                if partition.high_watermark > partition.log.log_end:
                    self._violated(Kind.SHRUNK, f"{node.name}: {partition} ends before its high watermark")
                if partition.leads:
                    reign = Reign(partition.topic, partition.index, partition.leader_epoch)
                    self._reigns(reign, (node.id, node.lives), partition.high_watermark)
        self._cluster.world.kernel.call_later(LOOK_SECONDS, self._look)

    def _reigns(self, reign: Reign, who: tuple[int, int], high_watermark: int) -> None:
        other = self._leaders.setdefault(reign, who)
        if other != who:
            self._violated(Kind.TWO_LEADERS, f"{reign}: brokers (and lives) {other} and {who}")
        before = self._high_watermarks.get(reign, 0)
        if high_watermark < before:
            self._violated(Kind.SHRUNK, f"{reign}: the high watermark goes from {before} to {high_watermark}")
        self._high_watermarks[reign] = high_watermark

    def _violated(self, kind: Kind, text: str) -> None:
        self._history.violated(kind, text)
