"""Invariants of simulated brokers, checked several times a second: one leader for a leader epoch, high watermarks that
do not go back."""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.local.history import History, Kind
from ottla.sim.cluster import SimCluster

LOOK_SECONDS: Final = 0.1


class Leadership(NamedTuple):
    """One leader epoch of one partition."""

    topic: str
    partition: int
    leader_epoch: int


class Invariants:
    """In one leader epoch there is one leader, and one process of it; its high watermark does not go back, and is not
    beyond its log."""

    def __init__(self, cluster: SimCluster, history: History) -> None:
        self._cluster = cluster
        self._history = history
        self._leaders: dict[Leadership, tuple[int, int]] = {}
        self._high_watermarks: dict[Leadership, int] = {}

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
                    leadership = Leadership(partition.topic, partition.index, partition.leader_epoch)
                    self._leads(leadership, (node.id, node.lives), partition.high_watermark)
        self._cluster.world.kernel.call_later(LOOK_SECONDS, self._look)

    def _leads(self, leadership: Leadership, leader: tuple[int, int], high_watermark: int) -> None:
        other = self._leaders.setdefault(leadership, leader)
        if other != leader:
            self._violated(Kind.TWO_LEADERS, f"{leadership}: brokers (and lives) {other} and {leader}")
        before = self._high_watermarks.get(leadership, 0)
        if high_watermark < before:
            self._violated(Kind.SHRUNK, f"{leadership}: the high watermark goes from {before} to {high_watermark}")
        self._high_watermarks[leadership] = high_watermark

    def _violated(self, kind: Kind, text: str) -> None:
        self._history.violated(kind, text)
