"""What a few runs of the same cell allow to say: median, spread, ratio, and whether it is more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.cells import Better, Metric


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some runs and the range around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        return cls(median(values), min(values), max(values)) if values else None

    def overlaps(self, other: Spread) -> bool:
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours against the peer's; `ratio` is of the medians, `tie` when the spreads overlap."""

    ratio: float
    tie: bool

    def verdict(self, metric: Metric) -> str:
        """Against the metric's target; a target of parity is not missed within the spread."""
        target = metric.target
        if target is None:
            return ""
        met = self.ratio >= target if metric.better is Better.HIGHER else self.ratio <= target
        if target == 1.0 and self.tie:
            return "tie"
        if met:
            return "met"
        short = 1 - self.ratio / target if metric.better is Better.HIGHER else self.ratio / target - 1
        return f"missed by {short:.0%}"


def compare(ours: Sequence[float], theirs: Sequence[float]) -> Comparison | None:
    mine, other = Spread.of(ours), Spread.of(theirs)
    if mine is None or other is None or other.median == 0:
        return None
    return Comparison(mine.median / other.median, mine.overlaps(other))
