"""Offsets of many partitions: as Spark stores them, admission per trigger, and ranges of tasks.

    {"orders": {"0": 23, "1": 45}}

Everything here is a function of offsets and options, so that a batch that is run again has the same ranges, whatever
the state of the cluster is: the sink relies on that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from ottla.client.values import TopicPartition

Offsets = dict[TopicPartition, int]
NO_IDS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of one partition, read by one task."""

    topic: str
    partition: int
    start: int
    end: int
    begins: bool = False
    """The partition is new: it starts at its log start."""
    topic_id: str = ""
    """The id of the planned topic, in hex: a recreated topic of this name has none of its records. Empty: any."""

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    parsed: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        parsed.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return parsed


def from_json(parsed: Mapping[str, Mapping[str, Any]]) -> Offsets:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, offsets in parsed.items()
        for partition, offset in offsets.items()
    }


def limited(start: Offsets, latest: Offsets, offsets_max: int) -> Offsets:
    """At most so many offsets, shared by the backlog of each partition, so that no partition starves."""
    waiting = {tp: end - start.get(tp, 0) for tp, end in latest.items()}
    total = sum(size for size in waiting.values() if size > 0)
    if total <= offsets_max:
        return dict(latest)
    ends: Offsets = {}
    for tp, end in latest.items():
        size = waiting[tp]
        if size <= 0:
            ends[tp] = end
            continue
        share = offsets_max * size / total
        whole = math.ceil(share) if share < 1 else math.floor(share)
        ends[tp] = min(end, start.get(tp, 0) + whole)
    return ends


def count(start: Offsets, end: Offsets) -> int:
    """How many offsets lie between."""
    return sum(max(0, offset - start.get(tp, 0)) for tp, offset in end.items())


def ranges(start: Offsets, end: Offsets, topic_ids: Mapping[str, str] = NO_IDS) -> list[OffsetRange]:
    """The range to read in each partition, in order. A partition without a start offset starts at its beginning."""
    return [
        OffsetRange(tp.topic, tp.partition, start.get(tp, 0), end[tp], tp not in start, topic_ids.get(tp.topic, ""))
        for tp in sorted(end)
        if end[tp] > start.get(tp, 0)
    ]


def tasks(parts: list[OffsetRange], partitions_min: int | None, records_max: int | None) -> list[OffsetRange]:
    """One task for each partition, or more: so many at least, and none with more offsets than may be."""
    pieces = [
        piece for part in parts for piece in _split(part, 1 if records_max is None else -(-len(part) // records_max))
    ]
    if partitions_min is None or len(pieces) >= partitions_min:
        return pieces
    # Partitions whose share is one task are not split; the others share the rest by size.
    total = sum(map(len, pieces))
    small = {piece for piece in pieces if round(len(piece) * partitions_min / total) <= 1}
    left = partitions_min - len(small)
    large = sum(len(piece) for piece in pieces if piece not in small)
    return [
        part
        for piece in pieces
        for part in _split(piece, 1 if piece in small else max(1, round(len(piece) * left / large)))
    ]


def _split(part: OffsetRange, pieces: int) -> Iterator[OffsetRange]:
    start, left = part.start, len(part)
    for at in range(pieces):
        size = left // (pieces - at)
        left -= size
        end = part.end if at == pieces - 1 else start + size
        if end > start:
            yield replace(part, start=start, end=end)
        start = end
