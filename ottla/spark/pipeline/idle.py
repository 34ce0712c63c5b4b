"""Idle partitions: the watermark advances without them while others have records. No Spark.

A watermark is the youngest time that a query has seen, in whatever partition, less a delay. Rows of a partition that
stands still while the others go on are too late when they come at last, and are dropped. So it is said in time.
"""

from __future__ import annotations

from collections.abc import Mapping

Ends = Mapping[tuple[str, str], int]
"""How far partitions were read."""


class Idle:
    """Of one query. Each partition is warned of once, until something comes of it again."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._ends: dict[tuple[str, str], int] = {}
        self._moved_at: dict[tuple[str, str], float] = {}
        self._reported: set[tuple[str, str]] = set()

    def seen(self, ends: Ends, now: float) -> list[str]:
        """Partitions that have become idle, as topic-number, while at least one other moved within the limit."""
        for tp, end in ends.items():
            if self._ends.get(tp) != end:
                self._moved_at[tp] = now
                self._reported.discard(tp)
            self._ends[tp] = end
        others_move = any(now - at < self._limit_s for at in self._moved_at.values())
        idle = [
            tp for tp in sorted(ends)
            if others_move and now - self._moved_at[tp] >= self._limit_s and tp not in self._reported
        ]  # fmt: skip
        self._reported.update(idle)
        return [f"{topic}-{partition}" for topic, partition in idle]
