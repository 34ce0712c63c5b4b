"""Evidence: what a log must contain. It is compared with the files when the log is opened, before anything is
truncated.

No records are read. The files are compared with the manifest, and the log end with everything that proves one:
    manifest, recovery point, high watermark          at every start: committed records must be there, also after a
                                                      power cut
    clean shutdown file                               after a clean stop
    newest producer snapshot, leader epochs           after a clean stop, or if there is no other replica: otherwise a
                                                      power cut may have taken records that were never committed
The highest end counts: a manifest may be an older one that was restored together with the files. If clean shutdown
file, manifest and files agree, a checkpoint with a higher offset is wrong.

If a log has no manifest, then checkpoints, leader epochs, indexes and snapshots show where it began and which segments
it had. A file may be another segment than its name says, and a file that was missing may have been restored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from ottla.errors import Refused
from ottla.log.index import RELATIVE_OFFSET_MAX
from ottla.log.manifest import NO_CUT, Manifest, Range, SegmentClaim, merged, without
from ottla.log.quarantine import quarantine_bytes, quarantine_file
from ottla.log.scan import headers, whole
from ottla.log.segment import Segment
from ottla.wire.batch import BatchHeader

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog

NOT_KNOWN = -1


class Evidence(NamedTuple):
    """The offsets of a log in the checkpoints of the data directory."""

    recovery_point: int = 0
    high_watermark: int = 0
    closed_start: int = NOT_KNOWN
    """The log start at the last clean stop, if this release wrote it."""
    closed_end: int = NOT_KNOWN
    """The log end at the same time."""
    started: int = NOT_KNOWN
    """The log start in the last checkpoint."""
    alone: bool = False
    """There is no other replica: every appended record was committed."""


class StartEvidence(NamedTuple):
    """Evidence of the log start, for a log without a manifest."""

    checkpointed: int
    """As the checkpoint of log starts says; 0 also if it says nothing."""
    epochs: Sequence[tuple[int, int]]
    """Leader epochs of the checkpoint. The first one begins at the log start: deleting a segment moves it, at once or
    soon."""
    orphans: Sequence[int]
    """Segments that have indexes but no log file."""
    deleting: bool
    """There are files about to be deleted: the leader epochs may not be updated yet."""


def lost_before(first: int, started: int, began: StartEvidence) -> Range | None:
    """The range that is missing before the first segment of a log without a manifest. `started`: the log start in the
    clean shutdown file or the checkpoint of log starts; negative: in neither."""
    recorded = [started] if started >= 0 else [start for _, start in began.epochs[:1]] + list(began.orphans[:1])
    if started < 0 and began.deleting:
        return None
    start = min(recorded, default=first)
    return (start, first) if start < first else None


def unproven_before(log_start: int, evidence: Evidence, began: StartEvidence) -> tuple[Range, ...]:
    """Without a manifest a log starts at its first file. Unless something proves this, it is a guess, and no replica
    may delete records because of a guess: everything before it counts as a gap that other replicas may have
    (`Manifest.proven_start`)."""
    proven = [evidence.closed_start, evidence.started, began.checkpointed, *(start for _, start in began.epochs[:1])]
    return () if max(proven) >= log_start else ((0, log_start),)


def start_of(log: PartitionLog, recorded: int, missing: Sequence[Range]) -> int:
    """The log start: the recorded one, or the first file, or the missing range before that."""
    first = log.segments[0].base_offset
    lost = [start for start, end in missing if start < first]
    return max(recorded, min([first, *lost]))


def missing_segments(
    log: PartitionLog,
    segments: list[Segment],
    evidence: Evidence,
    began: StartEvidence,
    *,
    clean: bool,
    notes: list[str],
) -> list[Range]:
    """The ranges that the manifest claims and the files lack. A file that is longer than claimed is truncated, and the
    rest is quarantined."""
    manifest = log.manifest.latest
    # Unsynced files are read completely, if the stop was not clean (`repair`).
    looked_at = [each for each in segments if clean or each.base_offset <= evidence.recovery_point]
    orphans = None if clean else began.orphans
    if manifest is None:
        ours = evidence.closed_start != NOT_KNOWN  # then there was a manifest, and it is lost
        found = between_segments(log, looked_at, {}, notes, ours=ours, orphans=orphans)
        start = evidence.started if evidence.closed_start == NOT_KNOWN else evidence.closed_start
        if segments and (lost := lost_before(segments[0].base_offset, start, began)) is not None:
            found.append(lost)
            notes.append(f"{segments[0].log.path} is the first file, and the log began at offset {lost[0]}")
        return found
    _quarantine_misnamed(log, segments, manifest, notes)
    by_base = {segment.base_offset: segment for segment in segments}
    found = list(manifest.missing)
    claims = [*manifest.segments, *([manifest.active] if manifest.active is not None else [])]
    for claim in claims:
        if not claim.size:
            continue
        segment = by_base.get(claim.base_offset)
        if segment is not None and segment.size and claim.end_offset > evidence.recovery_point and not clean:
            continue  # it is read completely, and missing ranges are reported
        if segment is None or segment.size < claim.size:
            end, size = (claim.base_offset, 0) if segment is None else whole_end(segment)
            if end < claim.end_offset:
                found.append((end, claim.end_offset))
                notes.append(_wrong(log, claim, segment))
            if segment is not None and size < segment.size:
                _cut_back(log, segment, size, notes)  # part of a batch: nothing may follow it
            elif segment is not None:
                _drop_indexes(log, segment)
        elif segment.size > claim.size and (claim is not manifest.active or clean):
            _cut_back(log, segment, claim.size, notes)
    first = min(by_base, default=None)
    if manifest.log_start >= 0 and first is not None and first > manifest.log_start and segments[0].size:
        found.append((manifest.log_start, first))
    looked_at = [each for each in looked_at if each in segments]
    found += between_segments(log, looked_at, {claim.base_offset: claim for claim in claims}, notes)
    return found


def between_segments(
    log: PartitionLog,
    segments: list[Segment],
    claims: Mapping[int, SegmentClaim],
    notes: list[str],
    *,
    ours: bool = False,
    orphans: Sequence[int] | None = None,
) -> list[Range]:
    """Offsets between the end of a segment and the next one, in a log that is not compacted. Between segments in the
    manifest there are none, or they were given up: only other segments are checked, which another release wrote or
    whose manifest is lost. `orphans`: in a log without manifest that was not closed cleanly, segments of which only the
    indexes exist."""
    found = []
    compacted = log.config.cleanup_compact or log.cleaned
    if compacted and (ours or orphans is not None):
        looked_at = segments if orphans is None else segments[:-1]
        ends = {segment.base_offset: whole_end(segment)[0] for segment in looked_at}
        found += lost_from_compacted(segments, log.snapshots.offsets if orphans is None else orphans, ends)
    for segment, following in pairwise(segments):
        if segment.base_offset in claims:
            continue
        end, size = last_end(segment)
        if end < following.base_offset and (size < segment.size or not compacted):
            found.append((end, following.base_offset))
            notes.append(f"{segment.log.path} ends at offset {end}, and the next one begins at {following.base_offset}")
        if size < segment.size:
            _cut_back(log, segment, size, notes)  # no whole batch: nothing may follow it, and it must not be read
    return found


def _quarantine_misnamed(log: PartitionLog, segments: list[Segment], manifest: Manifest, notes: list[str]) -> None:
    """Quarantine files that are another segment than their names say. Only files with an unexpected size are checked
    here; the scrub checks the others."""
    for segment in list(segments):
        claim = manifest.claim(segment.base_offset)
        if claim is None or segment.size in (0, claim.size):
            continue
        grows = claim is manifest.active
        if not begins_elsewhere(segment, segment.base_offset + RELATIVE_OFFSET_MAX if grows else claim.end_offset):
            continue
        notes.append(
            f"{segment.log.path} is another segment: quarantined as {quarantine_file(log.disk, segment.log.path)}"
        )
        segments.remove(segment)


def readable_headers(segment: Segment, start: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch, up to the first bytes that are none. Leaves no descriptor open."""
    try:
        yield from headers(segment.log, start, segment.size)
    except Refused:
        return
    finally:
        segment.close()


def first_header(segment: Segment) -> BatchHeader | None:
    return next((header for _, header in readable_headers(segment)), None)


def begins_elsewhere(segment: Segment, end: int) -> bool:
    """Whether the first batch of a file has an offset that cannot be in it: then it is another segment."""
    first = first_header(segment)
    return first is not None and not segment.base_offset <= first.base_offset < end


def _wrong(log: PartitionLog, claim: SegmentClaim, segment: Segment | None) -> str:
    has = "is missing" if segment is None else f"has {segment.size} bytes instead of {claim.size}"
    return f"{log.path}/{claim.base_offset:020d}.log {has}"


def last_end(segment: Segment) -> tuple[int, int]:
    """Where the whole batches of a segment end, as `whole_end`: by its last batches, from the last entry of its index
    on, if they end with the file."""
    for position, header in readable_headers(segment, segment.offsets.peek_last_position(segment.size)):
        if position + header.size == segment.size:
            return header.next_offset, segment.size
    return whole_end(segment)


def whole_end(segment: Segment) -> tuple[int, int]:
    """Where the whole batches of a segment end, by their headers: offset and position."""
    end, size = segment.base_offset, 0
    for position, header in readable_headers(segment):
        if header.base_offset < end:
            break
        end, size = header.next_offset, position + header.size
    return end, size


def _cut_back(log: PartitionLog, segment: Segment, size: int, notes: list[str]) -> None:
    """Remove bytes after the end of a closed segment, or after its last whole batch."""
    quarantined = quarantine_bytes(log.disk, segment.log, size, segment.size)
    notes.append(f"{segment.log.path} was cut back to {size} of {segment.size} bytes; the rest is in {quarantined}")
    segment.log.truncate(size)
    segment.log.sync()
    segment.log.close()
    segment.size = size
    _drop_indexes(log, segment)


def _drop_indexes(log: PartitionLog, segment: Segment) -> None:
    """The index files point to batches that are gone. They are built from the log when they are needed."""
    for index in (segment.offsets, segment.times):
        log.disk.remove(index.path)


def cut_by_indexes(segment: Segment, end: int) -> bool:
    """Whether the indexes of a segment have batches after its end, which is at this offset."""
    last = segment.offsets.last_recorded_position()
    offset = segment.times.last_recorded_offset()
    return last >= max(segment.size, 1) or (offset is not None and segment.base_offset + offset >= end)


def lost_from_compacted(segments: Sequence[Segment], traces: Sequence[int], end_of: Mapping[int, int]) -> list[Range]:
    """The manifest of a compacted log is lost, so its offsets are unknown. But every segment has a producer
    snapshot where it begins, and indexes that reach to its end. `traces`: where segments began, by their snapshots, or
    by indexes without a log if it was not closed cleanly (snapshots may be of segments that were about to be replaced).
    `end_of`: of the whole batches of segments to be looked at, by base offset."""
    found = []
    bases = [segment.base_offset for segment in segments]
    for offset in traces:
        following = next((base for base in bases if base > offset), None)
        if offset not in bases and following is not None and bases[0] < offset < max(end_of, default=-1):
            found.append((offset, following))
    for segment, behind in pairwise(segments):
        end = end_of.get(segment.base_offset)
        if end is not None and cut_by_indexes(segment, end):
            found.append((end, behind.base_offset))
    return found


def put_back(log: PartitionLog, segments: Sequence[Segment], manifest: Manifest) -> tuple[Manifest, list[int]]:
    """Missing ranges whose batches exist again: they are read, and their checksums compared. Returns the manifest
    without these ranges, and their segments."""
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
    """The offsets of whole batches, without the empty batches that a scrub has written over damage."""
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


def derived_ends(log: PartitionLog) -> dict[str, int]:
    """The log ends that files of the partition show. Call it before anything is truncated."""
    return {
        "a producer snapshot": max(log.snapshots.offsets, default=0),
        "a leader epoch": max((start for _, start in log.epochs.entries), default=0),
    }


def recorded_ends(manifest: Manifest, evidence: Evidence, derived: Mapping[str, int], *, clean: bool) -> dict[str, int]:
    """The recorded ends of the log besides the manifest, by their source. A truncation that is in the manifest is no
    damage."""
    ends = {"the recovery point": evidence.recovery_point, "the high watermark": evidence.high_watermark}
    if clean or evidence.alone:
        ends.update(derived)
    if manifest.cut != NO_CUT:
        ends = {what: min(offset, manifest.cut) for what, offset in ends.items()}
    if clean:
        ends["the mark of the clean stop"] = evidence.closed_end
    return ends


def closed_there(manifest: Manifest, evidence: Evidence, log_end: int, *, clean: bool) -> bool:
    """Whether it is certain that the log ends as at the clean stop: then a checkpoint with a higher offset is wrong."""
    known = clean and manifest.active is not None and not manifest.missing
    return known and manifest.end_offset == log_end == evidence.closed_end


def proven_end(
    log: PartitionLog, evidence: Evidence, derived: Mapping[str, int], *, clean: bool, notes: list[str]
) -> int:
    """The highest proven end of the log."""
    manifest, log_end = log.manifest.latest or Manifest(), log.log_end
    ends = recorded_ends(manifest, evidence, derived, clean=clean)
    more = [f"{what} says {offset}" for what, offset in ends.items() if offset > log_end]
    if closed_there(manifest, evidence, log_end, clean=clean):
        if more:
            notes.append(f"the log ends at {log_end}, as its manifest proves; {', '.join(more)}: rebuilt")
        return log_end
    if more:
        notes.append(f"the log ends at {log_end}; {', '.join(more)}")
    return max(manifest.end_offset, log_end, *ends.values())
