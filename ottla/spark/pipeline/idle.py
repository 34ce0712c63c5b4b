"""Partitions of which nothing comes while others go on: a watermark passes them by. No Spark.

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
        self._told: set[tuple[str, str]] = set()

    def seen(self, ends: Ends, now: float) -> list[str]:
        """Partitions that have become idle, as topic-number, while at least one other moved within the limit."""
        for place, end in ends.items():
            if self._ends.get(place) != end:
                self._moved_at[place] = now
                self._told.discard(place)
            self._ends[place] = end
        others_move = any(now - at < self._limit_s for at in self._moved_at.values())
        idle = [
            place for place in sorted(ends)
            if others_move and now - self._moved_at[place] >= self._limit_s and place not in self._told
        ]  # fmt: skip
        self._told.update(idle)
        return [f"{topic}-{partition}" for topic, partition in idle]
