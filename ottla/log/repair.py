"""Repair of a log that was not closed cleanly: reads it from the segment with the recovery point on, with checksums.

    bad bytes, and whole batches after them   damage, in closed segments and in the active one: a torn write has
                                              nothing after it. The bytes are quarantined, their offsets are
                                              missing, and whole batches on both sides stay
    a segment that ends before the next one
    begins, and whole batches after it        the same, for offsets that are in no file
    bad bytes, and no whole batch after them  what a crash may leave: quarantined, unless they are zeros, and
                                              truncated. Segments with only such bytes are quarantined

So no offset of a whole batch is assigned again. Other proofs that the log was longer are checked later (`damage`).

What is durable: copies are on the device before the manifest names a range, and the manifest is before the file is
changed. A crash in between leaves a range that is named, and bytes that the next repair finds again.

No checksum covers the base offset of a batch: it is compared with the batches before and after it, the next segment,
and the end in the manifest. Indexes, leader epochs and producer state are rebuilt from the headers at the same time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ottla.errors import Refused
from ottla.log import manifest, scrub, transaction_recovery
from ottla.log.index import RELATIVE_OFFSET_MAX, IndexBuilder
from ottla.log.manifest import Range
from ottla.log.quarantine import pieces, quarantine_bytes
from ottla.log.scan import Bounds, search, whole, whole_at
from ottla.log.scrub import Found
from ottla.log.segment import Segment
from ottla.log.transaction_recovery import load_producers
from ottla.wire.batch import HEADER_BYTES, BatchHeader, read_header

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog

_OFFSET_MAX = 2**63 - 1
_OFFSET_BYTES = 8  # a batch begins with its base offset
_UNFINISHED = ".tmp"


class Repaired(NamedTuple):
    checked_bytes: int
    cut_bytes: int
    missing: tuple[Range, ...]
    """Offsets of bytes that are no batches any more, with whole ones behind them."""


class Repair:
    def __init__(
        self, log: PartitionLog, recovery_point: int, now_ms: int, notes: list[str], indexes: dict[int, bytes]
    ) -> None:
        self._log = log
        self._indexes = indexes
        self._recovery_point = recovery_point
        self._now_ms = now_ms
        self._notes = notes
        self._next_offset = 0
        claimed = log.manifest.latest
        self._claimed = None if claimed is None else claimed.active
        self._gaps = transaction_recovery.gaps_of(log)
        if claimed is not None:
            self._gaps = manifest.merged([*self._gaps, *claimed.missing, *claimed.given_up])
        self._recorded_epochs: dict[int, int] = {}
        self._missing: list[Range] = []
        self._checked_bytes = 0
        self._cut_bytes = 0

    def run(self) -> Repaired:
        log = self._log
        segments = log.segments
        first = max(bisect_right(segments, self._recovery_point, key=_base_offset) - 1, 0)
        self._begin(segments[first].base_offset)
        held = first  # the last segment that belongs to the log for certain
        for at in range(first, len(segments)):
            segment = segments[at]
            following = segments[at + 1].base_offset if at + 1 < len(segments) else _OFFSET_MAX
            joined = self._join(segment)
            if joined and at > first:
                log.snapshots.write(segment.base_offset, log.producers)
            found = self._check(segment, following)
            segment.close()
            if found or joined:
                held = at
        self._leave_out(segments, first, held)
        log.log_end = max(self._next_offset, log.active.base_offset)
        return Repaired(self._checked_bytes, self._cut_bytes, manifest.merged(self._missing))

    def _begin(self, start: int) -> None:
        """Epochs and producers as they were at `start`; what follows comes from the batches."""
        log = self._log
        self._next_offset = start
        self._recorded_epochs = dict(log.epochs.entries)
        log.epochs.truncate_from_end(start)
        load_producers(log, log.producers, log.transactions, start, self._now_ms)
        log.snapshots.truncate(start)

    def _join(self, segment: Segment) -> bool:
        """Whether a segment continues where the previous one ends, or the range between them is known. If not, it
        belongs to the log only if a whole batch is in it or after it."""
        base = segment.base_offset
        hole = base - max(self._next_offset, self._recovery_point)
        known = self._known_gap(base)
        # A larger one is a follower's: no segment can span it. And one may be known, and named.
        if 0 < hole <= RELATIVE_OFFSET_MAX and not known:
            return False
        if known:
            self._cross()
        self._next_offset = max(self._next_offset, base)
        return True

    def _known_gap(self, end: int) -> bool:
        """Whether the missing range before this offset is in the manifest."""
        gaps = self._gaps if self._next_offset < end else ()
        return any(first <= self._next_offset and last >= end for first, last in gaps)

    def _cross(self) -> None:
        """A transaction that was open before a gap is not open after it (`transaction_recovery`)."""
        self._log.producers.close_transactions()
        self._log.transactions.load()

    # One segment.

    def _check(self, segment: Segment, following: int) -> bool:
        """Read one segment through, and mend it. Whether there is a whole batch in it."""
        log = self._log
        following = min(following, segment.base_offset + RELATIVE_OFFSET_MAX + 1)  # no checksum covers an offset
        if (index := transaction_recovery.read_index(log.disk, log.path, segment.base_offset)) is not None:
            self._indexes[segment.base_offset] = index
        builder = IndexBuilder(segment.base_offset, log.config.index_interval_bytes)
        log.transactions.begin_again(segment.base_offset)
        damaged: list[Found] = []
        end, problem = self._walk(segment, 0, following, builder)
        while end < segment.size:
            behind = self._find(segment, end, following)
            if behind is not None and self._misnumbered(segment, end, behind, following):
                behind = self._find(segment, behind[0], following)
            if behind is None:
                break
            position, offset = behind
            # A segment begins at the offset of its name: offsets before its first batch are a hole between segments.
            first = self._next_offset if end else max(self._next_offset, segment.base_offset)
            damaged.append(Found(end, position, (first, offset), problem))
            self._lose(offset)
            end, problem = self._walk(segment, position, following, builder)
        self._checked_bytes += end
        if end < segment.size:
            self._cut(segment, end, problem)
        if damaged:
            self._mend(segment, damaged)
        segment.adopt(builder) if not damaged else segment.rebuild_indexes()
        segment.renew_indexes()
        log.transactions.finish(segment.base_offset)
        return end > 0

    def _walk(self, segment: Segment, position: int, following: int, builder: IndexBuilder) -> tuple[int, str]:
        """From batch to batch, as long as they are whole. Where that ends, and why."""
        claimed_size, claimed_end = self._claim(segment)
        try:
            for at, header, batch in whole(segment.log, position, segment.size):
                limit = min(following, claimed_end) if at < claimed_size else following
                expected = max(self._next_offset, segment.base_offset)
                fits = expected <= header.base_offset <= header.last_offset < limit
                behind_gap = header.base_offset > expected
                if not fits or (behind_gap and self._moved(segment, at, header, expected, limit)):
                    return position, f"offset {header.base_offset} stands where {expected} was expected"
                if self._next_offset < segment.base_offset:
                    if segment.base_offset > self._log.log_start:
                        hole = f"offsets {self._next_offset}..{segment.base_offset - 1} before it are missing"
                        self._notes.append(f"{segment.log.path}: {hole}")
                    self._lose(segment.base_offset)  # now it is known that the log continues here
                builder.add(at, header)
                self._note(segment, header, batch)
                position = at + header.size
        except Refused as refused:
            return position, str(refused)
        return position, "the last batch is not whole"

    def _find(self, segment: Segment, end: int, following: int) -> tuple[int, int] | None:
        """The next whole batch after a position without one: position and offset."""
        first = max(self._next_offset, segment.base_offset)
        bounds = Bounds(segment.size, first, following)
        torn = False
        try:
            header = read_header(segment.log.pread(HEADER_BYTES, end))
        except Refused:
            pass
        else:
            stated_end = end + header.size
            if stated_end < segment.size and (behind := whole_at(segment.log.pread, stated_end, bounds)) is not None:
                return stated_end, behind.base_offset
            # It may be a torn write, and the batch that is found may be a part of its records.
            torn = stated_end > segment.size and header.base_offset == first
            bounds = bounds._replace(epoch=self._log.epochs.latest if torn else bounds.epoch)
        return search(segment.log.pread, end + 1, bounds, goes_on=torn)

    def _misnumbered(self, segment: Segment, end: int, found: tuple[int, int], following: int) -> bool:
        """Whether the base offset of the batch after a damaged range is damaged, too: it begins as if no batch was
        before it, although the range is long enough for one, and the batch after it does not continue at its end. Zeros
        are a valid offset."""
        position, offset = found
        if position - end < HEADER_BYTES or offset > max(self._next_offset, segment.base_offset):
            return False
        header = read_header(segment.log.pread(HEADER_BYTES, position))
        bounds = Bounds(segment.size, header.next_offset, following)
        behind = whole_at(segment.log.pread, position + header.size, bounds)
        return behind is not None and behind.base_offset > header.next_offset

    def _lose(self, offset: int) -> None:
        """The range before this offset is missing, and the log continues there."""
        if self._next_offset < offset:
            self._missing.append((self._next_offset, offset))
            self._cross()
        self._next_offset = max(self._next_offset, offset)

    def _cut(self, segment: Segment, end: int, problem: str) -> None:
        """Nothing whole is behind `end` in this file."""
        note = f"{segment.log.path} was cut at {end} of {segment.size} bytes: {problem}"
        if any(piece.count(0) < len(piece) for piece in pieces(segment.log, end, segment.size)):
            note += f"; the rest is in {quarantine_bytes(self._log.disk, segment.log, end, segment.size)}"
        self._notes.append(note)
        self._cut_bytes += segment.size - end
        segment.log.truncate(end)
        segment.size = end
        segment.log.sync()

    def _mend(self, segment: Segment, damaged: Sequence[Found]) -> None:
        """Damaged bytes are quarantined and reported; then every scan of the file works."""
        log = self._log
        for each in damaged:
            (start, end), file = each.offsets, segment.log.path
            self._notes.append(f"{file}: {each.problem} at byte {each.start}: offsets {start}..{end - 1} are missing")
        if all(each.offsets[0] < each.offsets[1] and each.end - each.start >= HEADER_BYTES for each in damaged):
            for patch in scrub.prepare(log, segment, damaged):
                log.disk.overwrite(segment.log.path, patch.data, patch.position)
            return
        for each in damaged:
            quarantine_bytes(log.disk, segment.log, each.start, each.end)
        scrub.name(log, damaged)
        self._write_without(segment, damaged)

    def _write_without(self, segment: Segment, damaged: Sequence[Found]) -> None:
        """A stretch is too short for the header of a batch, or holds no offset."""
        disk, path = self._log.disk, segment.log.path
        fresh = disk.open(path + _UNFINISHED, create=True)
        fresh.truncate(0)
        starts = [0, *(each.end for each in damaged)]
        ends = [*(each.start for each in damaged), segment.size]
        for start, end in zip(starts, ends, strict=True):
            for piece in pieces(segment.log, start, end):
                fresh.append(piece)
        fresh.sync()
        fresh.close()
        segment.log.close()
        self._log.manifest.replacing({segment.base_offset})
        self._log.manifest.replaced()
        disk.rename(path + _UNFINISHED, path)
        disk.sync_dir(self._log.path)
        segment.size = segment.log.size()

    def _claim(self, segment: Segment) -> tuple[int, int]:
        """The number of bytes that the manifest claims for the active segment, and the offset at which they end. A
        closed segment ends where the next one begins."""
        claimed = self._claimed
        if claimed is None or claimed.base_offset != segment.base_offset:
            return 0, 0
        return claimed.size, claimed.end_offset

    def _moved(self, segment: Segment, position: int, header: BatchHeader, expected: int, limit: int) -> bool:
        """Whether a batch after a gap has a wrong base offset. Compaction leaves gaps; but the next batch continues
        without the gap, or there is no next batch, no compaction and no other evidence of such a high log end: then a
        leader appended it at the end of the previous batch, and a follower copies it again."""
        behind = position + header.size
        following = segment.log.pread(_OFFSET_BYTES, behind)
        without_gap = expected + header.next_offset - header.base_offset
        if len(following) == _OFFSET_BYTES and int.from_bytes(following, "big", signed=True) == without_gap:
            return True
        log = self._log
        proven = max(self._recovery_point, log.checkpointed_end) >= header.next_offset or self._known_gap(
            header.base_offset
        )
        if proven or log.config.cleanup_compact or log.cleaned or segment is not log.segments[-1]:
            return False
        return whole_at(segment.log.pread, behind, Bounds(segment.size, header.next_offset, limit)) is None

    def _note(self, segment: Segment, header: BatchHeader, batch: memoryview) -> None:
        log = self._log
        if header.leader_epoch > log.epochs.latest:
            log.epochs.assign(header.leader_epoch, self._epoch_start(header))
        if header.producer_id >= 0:
            log.transactions.record(header, batch, header.base_offset, self._now_ms, segment_base=segment.base_offset)
        self._next_offset = header.next_offset

    def _epoch_start(self, header: BatchHeader) -> int:
        """Where its epoch began: before it, if compaction took the first batches and the checkpoint knows of them."""
        recorded = self._recorded_epochs.get(header.leader_epoch, header.base_offset)
        return recorded if self._next_offset <= recorded <= header.base_offset else header.base_offset

    # The rest.

    def _leave_out(self, segments: list[Segment], first: int, held: int) -> None:
        """Segments after the last whole batch that do not continue at the log end, and segments without a batch before
        it."""
        log = self._log
        kept = [each for at, each in enumerate(segments) if at < first or at == held or (at < held and each.size)]
        left_out = [segment for segment in segments if segment not in kept]
        for segment in reversed(left_out):
            segment.close()
            log.disk.remove(segment.log.path)
            log.disk.remove(segment.offsets.path)
            log.disk.remove(segment.times.path)
            self._notes.append(f"{segment.log.path}: nothing is left in it")
        if left_out:
            log.adopt(kept)
            log.disk.sync_dir(log.path)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
