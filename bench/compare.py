"""Statistics of a few runs of a cell: median, spread, ratio, and whether a difference is larger than the noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.cell import Better, Metric


def number(value: float) -> str:
    """Three significant digits, grouped by thousands, never in powers of ten."""
    if value >= 100:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some runs and the range around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        return cls(median(values), min(values), max(values)) if values else None

    def times(self, factor: float) -> Spread:
        return Spread(self.median * factor, self.low * factor, self.high * factor)

    def overlaps(self, other: Spread) -> bool:
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ottla's number against a peer's, for the same metric."""

    metric: Metric
    ours: Spread
    theirs: Spread

    @property
    def ratio(self) -> float:
        return self.ours.median / self.theirs.median

    @property
    def tie(self) -> bool:
        return self.ours.overlaps(self.theirs)

    def verdict(self) -> str:
        """Whether the target was met; neither met nor missed if the spreads overlap."""
        target = self.metric.target
        if target is None:
            return ""
        if self.ours.overlaps(self.theirs.times(target)):
            return "tie" if target == 1.0 else "at the target"
        short = target / self.ratio if self.metric.better is Better.HIGHER else self.ratio / target
        return "met" if short <= 1 else f"missed ×{short:.2f}"


def within(limit: float, values: Sequence[float], better: Better = Better.LOWER) -> str:
    """Whether all runs are within the limit; "at the limit" if only some are."""
    found = Spread.of(values)
    if found is None:
        return "not measured"
    higher = better is Better.HIGHER
    kept = [value >= limit if higher else value <= limit for value in values]
    if all(kept):
        return "met"
    short = limit / found.median if higher else found.median / limit
    return "at the limit" if any(kept) else f"missed ×{short:.2f}"


def compare(metric: Metric, ours: Sequence[float], theirs: Sequence[float]) -> Comparison | None:
    """None if one of them was not measured."""
    mine, other = Spread.of(ours), Spread.of(theirs)
    if mine is None or other is None or min(mine.low, other.low) <= 0:
        return None
    return Comparison(metric, mine, other)
