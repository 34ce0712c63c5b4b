"""Damage: what is missing in a log, found when it is opened and before anything of it is truncated.

No data is read. The files are held against the manifest, and the end of the log against everything that proves one:
    the manifest, the recovery point, the high watermark     at every start: what was committed is missed, whatever
                                                             took it, a power cut included
    the mark of a clean stop                                 if there was one
    the newest producer snapshot and the leader epochs       after a clean stop, or if there is no other replica: else a
                                                             power cut may have taken what was never committed
Whoever says most is right: a manifest may be an older one that somebody put back together with the files. Only where
the mark, the manifest and the files agree, a checkpoint that says more is wrong itself.

What is missing is a range of offsets. The log keeps what is whole on both sides of it, ends where the highest proof
says (an offset that was given is never given again), and answers a read in the range with KAFKA_STORAGE_ERROR: nothing
is skipped in silence. The ranges stand in the manifest until the replica is copied anew from another one
(`quarantine`), or somebody accepts the loss (`ottla log accept-loss`) and they become a gap, as compaction leaves them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count, pairwise
from typing import TYPE_CHECKING, NamedTuple

from ottla.errors import ErrorCode, Refused
from ottla.log import undecided
from ottla.log.aside import DAMAGED_SUFFIX, keep, keep_whole
from ottla.log.manifest import NO_CUT, LostEnd, Manifest, Range, SegmentClaim, merged, without
from ottla.log.scan import headers
from ottla.log.segment import RELATIVE_OFFSET_MAX, Segment
from ottla.log.traces import Beginning, begins_elsewhere, lost_before, lost_from_compacted, lost_from_killed
from ottla.log.undecided import Ends
from ottla.runtime import Disk

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog


class Damage(NamedTuple):
    """Ranges of offsets that a log must have and has not, in order."""

    path: str
    missing: tuple[Range, ...]
    epoch: int
    """The leader epoch that is proven, with the end of the log: a replica that has both lacks nothing."""
    end: int

    def __str__(self) -> str:
        ranges = ", ".join(f"{start}..{end - 1}" for start, end in self.missing)
        return f"offsets {ranges} are missing in {self.path}"

    def limit(self, offset: int, limit: int) -> int:
        """Up to where a reader who begins at `offset` may be served. Refused if that is missing itself."""
        for start, end in self.missing:
            if offset < start:
                return min(start, limit)
            if offset < end:
                raise Refused(
                    ErrorCode.kafka_storage_error,
                    f"offsets {start}..{end - 1} are missing in {self.path}: restore them from another replica, or "
                    f"give them up with `ottla log accept-loss` while the broker is stopped",
                )
        return limit


class Gap(NamedTuple):
    """Offsets that a log has not, as it is told to followers: they may have them, and keep them then."""

    start: int
    end: int
    given_up: bool = False


def gap_at(log: PartitionLog, offset: int) -> Gap | None:
    """What is missing, or was given up, at an offset."""
    for ranges, given_up in ((() if log.damage is None else log.damage.missing, False), (log.given_up, True)):
        for start, end in ranges:
            if start <= offset < end:
                return Gap(start, end, given_up)
    return None


def read_limit(log: PartitionLog, offset: int, limit: int) -> int:
    """Up to where a reader who begins at `offset` may be served at once: to the next gap. Refused if that is missing.
    What was given up it passes over, but with the next answer: whatever it is told of aborted transactions whose
    markers are gone ends with the answer."""
    if log.damage is not None:
        limit = log.damage.limit(offset, limit)
    return min([limit, *(start for start, _ in log.given_up if start > offset)])


def behind_gap(log: PartitionLog, offset: int) -> int:
    """The first offset from there on that was not given up."""
    return next((end for start, end in log.given_up if start <= offset < end), offset)


def held_from(log: PartitionLog) -> int:
    """The first offset that the log may have: where it starts, but for what is missing there, or was given up."""
    start = log.log_start
    while start < log.log_end and (gap := gap_at(log, start)) is not None:
        start = gap.end
    return start


def guessed_from(log: PartitionLog) -> int:
    """From where on nobody knows whether the log had anything before its start (`traces.unproven_before`); the log
    start if it is proven, or what is before was given up by somebody."""
    manifest = log.manifest.latest
    guessed = without(log.given_up, () if manifest is None else manifest.decided)
    return next((first for first, end in guessed if first < log.log_start <= end), log.log_start)


def began_at(log: PartitionLog, start: int) -> None:
    """Another replica has what is before the log start here, which nothing proves: it is lost here. Durable on
    return."""
    end = log.log_start
    log.manifest.start_before(start, end)
    log.log_start = start
    log.given_up = without(log.given_up, [(start, end)])
    note(log, [(start, end)])


NOT_KNOWN = -1


class Evidence(NamedTuple):
    """What checkpoints of the data directory say of a log."""

    recovery_point: int = 0
    high_watermark: int = 0
    closed_start: int = NOT_KNOWN
    """Where it started when this release closed it, if that was the last thing that happened to it."""
    closed_end: int = NOT_KNOWN
    """And where it ended."""
    started: int = NOT_KNOWN
    """Where it started when log starts were last written down."""
    alone: bool = False
    """There is no other replica: what was appended was committed."""


def note(log: PartitionLog, ranges: Iterable[Range]) -> None:
    """The log was found to have lost these as well, while it is in use."""
    known = () if log.damage is None else log.damage.missing
    log.damage = Damage(log.path, merged([*known, *ranges]), log.epochs.latest, log.log_end)
    trim(log)


def trim(log: PartitionLog) -> None:
    """The log starts later, or ends earlier: what is missing outside of it is no loss any more."""
    if log.given_up:
        log.given_up = tuple((start, min(end, log.log_end)) for start, end in log.given_up if start < log.log_end)
    if log.damage is not None:
        inside = merged((max(start, log.log_start), min(end, log.log_end)) for start, end in log.damage.missing)
        log.damage = log.damage._replace(missing=inside) if inside else None


def pass_over(log: PartitionLog, offset: int, gap: Gap, now_ms: int) -> int:
    """The leader has nothing from `offset` to the end of the gap, and here the log ends with it or lacks it as well:
    take that for what it is at the leader. Durable on return. Returns up to where that is."""
    known = () if log.damage is None else log.damage.missing
    end = gap.end if offset >= log.log_end else min(gap.end, next(e for s, e in known if s <= offset < e))
    lost = [(offset, end)]
    at_the_end = offset >= log.log_end
    open_since = log.transactions.open_since if at_the_end else {}
    ends = tuple(LostEnd(producer_id, first, end - 1) for producer_id, first in open_since.items())
    log.make_directory()
    log.manifest.lose(
        lost,
        log_start=log.log_start,
        topic_id=log.topic_id,
        undecided=ends,
        decided=lost if at_the_end else (),
        give_up=gap.given_up,
    )
    undecided.take_up(log)
    if at_the_end:
        log.producers.close_transactions()
        log.transactions.load()
        log.go_on_at(end, now_ms)
    if gap.given_up:
        log.given_up = merged([*log.given_up, (offset, end)])
        left = without(known, [(offset, end)])
        log.damage = Damage(log.path, left, log.epochs.latest, log.log_end) if left else None
    else:
        log.damage = Damage(log.path, merged([*known, (offset, end)]), log.epochs.latest, log.log_end)
    return end


def start_of(log: PartitionLog, told: int, missing: Sequence[Range]) -> int:
    """Where a log starts: where it is told, or with its first file, or with what is missing before that."""
    first = log.segments[0].base_offset
    lost = [start for start, end in missing if start < first]
    return max(told, min([first, *lost]))


def missing_segments(
    log: PartitionLog, segments: list[Segment], evidence: Evidence, began: Beginning, *, clean: bool, notes: list[str]
) -> list[Range]:
    """What the manifest claims and the files have not. A file that is longer than claimed is cut back, and what was
    behind kept aside."""
    manifest = log.manifest.latest
    # What was not synced is read through, if the stop was not clean (`repair`).
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
    _set_strangers_aside(log, segments, manifest, notes)
    by_base = {segment.base_offset: segment for segment in segments}
    found = list(manifest.missing)
    claims = [*manifest.segments, *([manifest.active] if manifest.active is not None else [])]
    for claim in claims:
        if not claim.size:
            continue
        segment = by_base.get(claim.base_offset)
        if segment is not None and segment.size and claim.end_offset > evidence.recovery_point and not clean:
            continue  # it is read through, and what is not whole is named
        if segment is None or segment.size < claim.size:
            end, size = (claim.base_offset, 0) if segment is None else whole_end(segment)
            if end < claim.end_offset:
                found.append((end, claim.end_offset))
                notes.append(_wrong(log, claim, segment))
            if segment is not None and size < segment.size:
                _cut_back(log, segment, size, notes)  # part of a batch: nothing may follow it
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
    """Offsets between the end of a segment and the next one, where the log was not compacted. Of segments that the
    manifest claims it is known that there are none, or that they were given up: only the others are looked at, which
    are those that another release wrote, and those whose manifest is lost. `orphans`: of a log that was not closed
    cleanly and has no manifest, the segments of which only indexes are there."""
    if log.config.cleanup_compact or log.cleaned:
        if orphans is not None:
            sealed = {segment.base_offset: whole_end(segment)[0] for segment in segments[:-1]}
            return lost_from_killed(segments, sealed, orphans)
        ends = {segment.base_offset: whole_end(segment)[0] for segment in segments} if ours else {}
        return lost_from_compacted(log, segments, ends) if ours else []
    found = []
    for segment, following in pairwise(segments):
        if segment.base_offset in claims:
            continue
        end = last_end(segment)
        if end < following.base_offset:
            found.append((end, following.base_offset))
            notes.append(f"{segment.log.path} ends at offset {end}, and the next one begins at {following.base_offset}")
            if (size := whole_end(segment)[1]) < segment.size:
                _cut_back(log, segment, size, notes)  # part of a batch: nothing may follow it
    return found


def _set_strangers_aside(log: PartitionLog, segments: list[Segment], manifest: Manifest, notes: list[str]) -> None:
    """Files that are another segment than their names say. Looked at only where the size is not what is claimed: the
    others are the scrub's."""
    for segment in list(segments):
        claim = manifest.claim(segment.base_offset)
        if claim is None or segment.size in (0, claim.size):
            continue
        grows = claim is manifest.active
        if not begins_elsewhere(segment, segment.base_offset + RELATIVE_OFFSET_MAX if grows else claim.end_offset):
            continue
        notes.append(f"{segment.log.path} is another segment: set aside as {keep_whole(log.disk, segment.log.path)}")
        segments.remove(segment)


def last_end(segment: Segment) -> int:
    """Where a segment ends, by its last batches: from the last entry of its index on."""
    start = segment.offsets.peek_last_position(segment.size)
    try:
        for position, header in headers(segment.log, start, segment.size):
            if position + header.size == segment.size:
                return header.next_offset
    except Refused:
        pass
    finally:
        segment.close()
    return whole_end(segment)[0]


def _wrong(log: PartitionLog, claim: SegmentClaim, segment: Segment | None) -> str:
    has = "is missing" if segment is None else f"has {segment.size} bytes instead of {claim.size}"
    return f"{log.path}/{claim.base_offset:020d}.log {has}"


def whole_end(segment: Segment) -> tuple[int, int]:
    """Where the whole batches of a segment end, by their headers: offset and position."""
    end, size = segment.base_offset, 0
    try:
        for position, header in headers(segment.log, 0, segment.size):
            if header.base_offset < end:
                break
            end, size = header.next_offset, position + header.size
    except Refused:
        pass
    finally:
        segment.close()
    return end, size


def _cut_back(log: PartitionLog, segment: Segment, size: int, notes: list[str]) -> None:
    """What is behind the end of a sealed segment, or behind its last whole batch, is not the log's."""
    aside = keep(log.disk, segment.log, size, segment.size)
    notes.append(f"{segment.log.path} was cut back to {size} of {segment.size} bytes; the rest is in {aside}")
    segment.log.truncate(size)
    segment.log.sync()
    segment.log.close()
    segment.size = size


def derived_ends(log: PartitionLog) -> dict[str, int]:
    """What files of the partition say of the end of its log. To be asked before anything is truncated."""
    return {
        "a producer snapshot": max(log.snapshots.offsets, default=0),
        "a leader epoch": max((start for _, start in log.epochs.entries), default=0),
    }


def ends_told(manifest: Manifest, evidence: Evidence, derived: Mapping[str, int], *, clean: bool) -> dict[str, int]:
    """Who proves which end of the log, besides the manifest. A truncation that the manifest tells of is no damage."""
    told = {"the recovery point": evidence.recovery_point, "the high watermark": evidence.high_watermark}
    if clean or evidence.alone:
        told.update(derived)
    if manifest.cut != NO_CUT:
        told = {what: min(offset, manifest.cut) for what, offset in told.items()}
    if clean:
        told["the mark of the clean stop"] = evidence.closed_end
    return told


def closed_there(manifest: Manifest, evidence: Evidence, log_end: int, *, clean: bool) -> bool:
    """Whether the log ends where a clean stop left it, beyond doubt: a checkpoint that says more is wrong itself."""
    known = clean and manifest.active is not None and not manifest.missing
    return known and manifest.end_offset == log_end == evidence.closed_end


def proven_end(
    log: PartitionLog, evidence: Evidence, derived: Mapping[str, int], *, clean: bool, notes: list[str]
) -> int:
    """The highest end of the log that anything proves."""
    manifest, log_end = log.manifest.latest or Manifest(), log.log_end
    told = ends_told(manifest, evidence, derived, clean=clean)
    more = [f"{what} says {offset}" for what, offset in told.items() if offset > log_end]
    if closed_there(manifest, evidence, log_end, clean=clean):
        if more:
            notes.append(f"the log ends at {log_end}, as its manifest proves; {', '.join(more)}: rebuilt")
        return log_end
    if more:
        notes.append(f"the log ends at {log_end}; {', '.join(more)}")
    return max(manifest.end_offset, log_end, *told.values())


def lose(log: PartitionLog, ranges: Sequence[Range], ends: Ends) -> None:
    """Write down what is missing. Durable on return."""
    log.manifest.lose(
        ranges,
        log_start=log.log_start,
        topic_id=log.topic_id,
        aborted=ends.aborted,
        undecided=ends.undecided,
        decided=ends.decided,
        unproven=log.given_up,
    )
    undecided.take_up(log)


def go_on_behind(log: PartitionLog, missing: tuple[Range, ...], end: int, ends: Ends, now_ms: int) -> None:
    """The log has lost these offsets, and goes on where the highest proof says that it ended. The manifest has the loss
    before anything is written that looks like a log that has always begun there."""
    ends_early = log.log_end < end or not log.disk.exists(log.path)
    if ends_early:
        log.make_directory()
    lose(log, missing, ends)
    if ends_early:
        kept = [segment for segment in log.segments if segment.size]
        fresh = Segment(log.disk, log.path, end, created_ms=now_ms)
        fresh.create()
        for empty in log.segments:
            if not empty.size and empty.base_offset != end:
                log.disk.remove(empty.log.path)
        log.adopt([*kept, fresh])
        log.made_files = True
        log.log_end = end
    log.damage = Damage(log.path, missing, log.epochs.latest, log.log_end) if missing else None


def set_directories_aside(disk: Disk, path: str) -> list[str]:
    """Directories where files of a log should be. Says what was done."""
    told = []
    for name in disk.listdir(path):
        if disk.is_directory(f"{path}/{name}") and not name.endswith(DAMAGED_SUFFIX):
            taken = set(disk.listdir(path))
            aside = next(each for at in count(1) if (each := f"{name}.{at}{DAMAGED_SUFFIX}") not in taken)
            disk.rename(f"{path}/{name}", f"{path}/{aside}")
            told.append(f"{path}/{name} is a directory: set aside as {aside}")
    return told
