"""What the files of a log tell of lost segments besides their sizes: for a log whose manifest is lost, for files that
are not what their names say, and for files that somebody has put back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ottla.errors import Refused
from ottla.log.manifest import Manifest, Range, merged, without
from ottla.log.scan import headers, whole
from ottla.log.segment import Segment

if TYPE_CHECKING:
    from ottla.log.damage import Evidence
    from ottla.log.partition_log import PartitionLog


class Beginning(NamedTuple):
    """What tells where a log begins that has no manifest."""

    checkpointed: int
    """As the checkpoint of log starts says; 0 also if it says nothing."""
    epochs: Sequence[tuple[int, int]]
    """Leader epochs as their checkpoint has them: the first begins where the log does, for whoever deletes a segment
    moves it, if not before then soon."""
    orphans: Sequence[int]
    """Segments of which only indexes are there."""
    deleting: bool
    """Files stand there that are about to be deleted: then the epochs may not know yet."""


def lost_before(first: int, started: int, began: Beginning) -> Range | None:
    """What is missing before the first segment of a log without a manifest. `started`: where it started, as the mark of
    a clean stop or the checkpoint of log starts says; negative: neither does."""
    told = [started] if started >= 0 else [start for _, start in began.epochs[:1]] + list(began.orphans[:1])
    if started < 0 and began.deleting:
        return None
    start = min(told, default=first)
    return (start, first) if start < first else None


def unproven_before(log_start: int, evidence: Evidence, began: Beginning) -> tuple[Range, ...]:
    """A log without a manifest starts where its first file begins, if nothing says otherwise. That is a guess unless
    something proves it, and nobody may delete anything because of a guess: what is before counts as a gap, which other
    replicas may have whole (`Manifest.proven_start`)."""
    proven = [evidence.closed_start, evidence.started, began.checkpointed, *(start for _, start in began.epochs[:1])]
    return () if max(proven) >= log_start else ((0, log_start),)


def begins_elsewhere(segment: Segment, end: int) -> bool:
    """Whether the first batch of a file has an offset that cannot be in it: then it is another segment."""
    try:
        for _, header in headers(segment.log, 0, segment.size):
            return not segment.base_offset <= header.base_offset < end
    except Refused:
        pass
    finally:
        segment.close()
    return False


def cut_by_indexes(segment: Segment, end: int) -> bool:
    """Whether the indexes of a segment tell of batches behind its end, which is at this offset."""
    last = segment.offsets.last_position_told()
    offset = segment.times.last_offset_told()
    return last >= max(segment.size, 1) or (offset is not None and segment.base_offset + offset >= end)


def lost_from_killed(segments: Sequence[Segment], end_of: dict[int, int], orphans: Sequence[int]) -> list[Range]:
    """As `lost_from_compacted`, of one that was not closed cleanly: snapshots may be of segments that were about to be
    replaced. `end_of`: of the segments to be looked at."""
    found = []
    bases = [segment.base_offset for segment in segments]
    for offset in orphans:
        following = next((base for base in bases if base > offset), None)
        if following is not None and bases[0] < offset and any(base > offset for base in end_of):
            found.append((offset, following))
    for segment, behind in pairwise(segments):
        end = end_of.get(segment.base_offset)
        if end is not None and cut_by_indexes(segment, end):
            found.append((end, behind.base_offset))
    return found


def lost_from_compacted(log: PartitionLog, segments: Sequence[Segment], end_of: dict[int, int]) -> list[Range]:
    """The manifest of a compacted log is lost, so nobody knows which offsets it has. But every segment has a producer
    snapshot where it begins, and indexes that reach to its end. `end_of`: of whole batches, by base offset."""
    found = []
    bases = [segment.base_offset for segment in segments]
    for offset in log.snapshots.offsets:
        following = next((base for base in bases if base > offset), None)
        if offset not in bases and following is not None and bases[0] < offset:
            found.append((offset, following))
    for segment, behind in pairwise(segments):
        if cut_by_indexes(segment, end_of[segment.base_offset]):
            found.append((end_of[segment.base_offset], behind.base_offset))
    return found


def put_back(log: PartitionLog, segments: Sequence[Segment], manifest: Manifest) -> tuple[Manifest, list[int]]:
    """What of the missing ranges is there again: batches are read, and their checksums compared. Returns the manifest
    without it, and the segments in which it is."""
    covered: list[Range] = []
    bases = []
    ends = [*(segment.base_offset for segment in segments[1:]), 2**63]
    for segment, end in zip(segments, ends, strict=True):
        within = [each for each in manifest.missing if each[0] < end and each[1] > segment.base_offset]
        if not within or not segment.size:
            continue
        there = _batches_in(segment, end)
        if without(within, there) != merged(within):
            covered += there
            bases.append(segment.base_offset)
    if not covered:
        return manifest, []
    back = without(manifest.missing, without(manifest.missing, covered))
    kept = [each for each in (*manifest.aborted, *manifest.undecided) if not _within(each.last_offset, back)]
    return (
        manifest.without(bases)._replace(
            missing=without(manifest.missing, covered),
            decided=without(manifest.decided, back),
            aborted=tuple(each for each in manifest.aborted if each in kept),
            undecided=tuple(each for each in manifest.undecided if each in kept),
        ),
        bases,
    )


def _within(offset: int, ranges: Sequence[Range]) -> bool:
    return any(start <= offset < end for start, end in ranges)


def _batches_in(segment: Segment, end: int) -> list[Range]:
    """The offsets of whole batches, but for those that a scrub put in the place of damaged ones."""
    found = []
    try:
        for _, header, _ in whole(segment.log, 0, segment.size):
            if header.base_offset < segment.base_offset or header.next_offset > end:
                break
            if header.record_count or header.producer_id >= 0:
                found.append((header.base_offset, header.next_offset))
    except Refused:
        pass
    finally:
        segment.close()
    return list(merged(found))
