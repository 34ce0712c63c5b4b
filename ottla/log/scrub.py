"""Scrub of one segment: reads and checks every batch, a chunk at a time.

    checksum        of every batch
    base offset     no checksum covers it: batches follow each other, within the segment and up to the next one. A gap
                    that compaction has left is no damage; a batch whose offset was changed within a gap is found by
                    the next batch, which continues without the gap
    leader epoch    no checksum covers it either: it is compared with the leader epoch cache
    end             the file ends with a whole batch, where the next segment begins

After damage the scan continues at the next whole batch: where the damaged batch ends according to its length, if a
batch begins there, otherwise wherever one is found. Of the active segment only the part below the recovery point is
read.

The bytes come from the page cache or the device. The caller reads damaged bytes again to see whether they are really
damaged and still part of the log: files are deleted, truncated and replaced meanwhile.

Damaged bytes become a missing range (`damage`), and the rest of the segment stays readable: the bytes are copied to a
`.damaged` file, the range is written to the manifest, and then the bytes are overwritten by one empty batch of the same
length, which has their offsets. So every scan over the file works, no later byte moves, and no reader skips the range:
reads end before a missing range. When the loss is accepted, the segment is rewritten without the empty batch
(`accept_loss`). A crash between these steps leaves a range in the manifest, and bytes that the next scrub finds again.
If the leader has the missing offsets, the replica is copied again later (`truncation.quarantine`).

Indexes that differ from the manifest are rebuilt from the batches, which have just been checked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from ottla.errors import Refused
from ottla.log import damage, transaction_recovery
from ottla.log.epochs import NO_EPOCH
from ottla.log.index import OffsetIndex, TimeIndex
from ottla.log.manifest import NO_CRC, Range, SegmentClaim, claim_of, file_crc
from ottla.log.quarantine import pieces, quarantine_bytes
from ottla.log.scan import BAD_CHECKSUM, Bounds, search, whole_at
from ottla.log.segment import Segment, file_stem
from ottla.log.transaction_index import SUFFIX as TXNINDEX_SUFFIX
from ottla.wire.batch import (
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    NO_PRODUCER,
    NO_TIMESTAMP,
    BatchHeader,
    read_header,
)

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog

CHUNK_BYTES: Final = 64 * 1024
"""The size of one read in a thread: the event loop waits for the interpreter lock no longer than a chunk of small
batches takes."""
FOUND_MAX: Final = 20
"""The limit of findings in one segment."""
_OFFSET_BYTES: Final = 8


class Found(NamedTuple):
    """Damage in a file: these bytes of it, which should be the batches of these offsets."""

    start: int
    end: int
    offsets: Range
    problem: str


class _Epochs:
    """A copy of the leader epoch cache, for a thread."""

    def __init__(self, log: PartitionLog) -> None:
        entries = log.epochs.entries
        self._epochs = [epoch for epoch, _ in entries]
        self._starts = [start for _, start in entries]

    def contradict(self, header: BatchHeader, log_start: int) -> bool:
        at = bisect_right(self._starts, header.base_offset) - 1
        if header.leader_epoch == NO_EPOCH or header.base_offset < log_start or at < 0:
            return False
        return self._epochs[at] != header.leader_epoch


class SegmentScrub:
    """One scan over a segment. Created on the event loop; `step` runs in a thread until `done`."""

    def __init__(self, log: PartitionLog, segment: Segment, *, again: bool = False) -> None:
        """`again`: read through the log's own file handle, which stays at this file even if it is renamed."""
        following = log.segment_after(segment)
        self.log = log
        self.segment = segment
        self.active = following is None
        self.end_offset = log.log_end if following is None else following.base_offset
        self.found: list[Found] = []
        self.done = not segment.size
        self.read_bytes = 0
        self.batches = 0
        self._until = log.recovery_point if following is None else self.end_offset
        self._size = segment.size
        self._file = segment.log if again else log.disk.open(segment.log.path)
        self._read: Callable[[int, int], bytes] = self._file.pread if again else self._file.pread_once
        self._own = not again
        self._log_start = log.log_start
        self._truncations = log.truncations
        self._epochs = _Epochs(log)
        self._position = 0
        self._next_offset = segment.base_offset
        self._large: tuple[BatchHeader, int, int] | None = None  # its checksum so far, and up to where

    @property
    def current(self) -> bool:
        """Whether the segment is still part of the log. On the event loop."""
        log, segment = self.log, self.segment
        unchanged = log.truncations == self._truncations and not log.dropped and not segment.deleted
        return unchanged and any(each is segment for each in log.segments)

    def step(self) -> int:
        """Read and check one more chunk. How many bytes it was. Blocks."""
        before = self.read_bytes
        if self._large is not None:
            self._go_on(*self._large)
        else:
            self._chunk()
        if self._position >= self._size or self._next_offset >= self._until or len(self.found) >= FOUND_MAX:
            self.done = True
        return self.read_bytes - before

    def close(self) -> None:
        if self._own:
            self._file.close()

    def _pread(self, length: int, position: int) -> bytes:
        data = self._read(length, position)
        self.read_bytes += len(data)
        return data

    def _chunk(self) -> None:
        start = self._position
        chunk = self._pread(min(CHUNK_BYTES, self._size - start), start)
        view = memoryview(chunk)
        at = 0
        while start + at < self._size and self._next_offset < self._until:
            if len(chunk) - at < HEADER_BYTES:
                if at and start + len(chunk) < self._size:
                    break
                self._damaged(start + at, None, f"{self._size - start - at} bytes at its end are no whole batch")
                return
            try:
                header = read_header(chunk, at)
            except Refused as refused:
                self._damaged(start + at, None, str(refused))
                return
            if header.size > self._size - start - at or header.last_offset_delta < 0:
                self._damaged(start + at, None, "a batch reaches behind the end of the file")
                return
            if at + header.size > len(chunk):
                if not at:
                    self._large = header, crc32c(view[CRC_FROM:]), start + len(chunk)
                break
            if not self._checked(start + at, header, crc32c(view[at + CRC_FROM : at + header.size])):
                return
            at += header.size

    def _go_on(self, header: BatchHeader, crc: int, position: int) -> None:
        """With a batch that is larger than a chunk."""
        end = self._position + header.size
        piece = self._pread(min(CHUNK_BYTES, end - position), position)
        crc, position = crc32c(piece, crc), position + len(piece)
        self._large = header, crc, position
        if position >= end or not piece:
            self._large = None
            self._checked(self._position, header, crc)

    def _checked(self, position: int, header: BatchHeader, crc: int) -> bool:
        """Whether the batch is good; then the scan continues after it."""
        problem = BAD_CHECKSUM if crc != header.crc else self._misplaced(position, header)
        if problem:
            self._damaged(position, header, problem)
            return False
        self.batches += 1
        self._position = position + header.size
        self._next_offset = header.next_offset
        return True

    def _misplaced(self, position: int, header: BatchHeader) -> str:
        if not self._next_offset <= header.base_offset <= header.last_offset < self.end_offset or (
            header.base_offset > self._next_offset and self._moved(position, header)
        ):
            return f"offset {header.base_offset} stands where {self._next_offset} was expected"
        if self._epochs.contradict(header, self._log_start):
            return f"leader epoch {header.leader_epoch} of a batch is not the one of offset {header.base_offset}"
        return ""

    def _moved(self, position: int, header: BatchHeader) -> bool:
        """Whether the batches after it continue as if there were no gap before it."""
        without_gap = self._next_offset + header.last_offset_delta + 1
        behind = position + header.size
        if behind >= self._size:
            return without_gap == self.end_offset
        return int.from_bytes(self._pread(_OFFSET_BYTES, behind), "big", signed=True) == without_gap

    # -- behind damage ---------------------------------------------------------------------------------------

    def _damaged(self, position: int, header: BatchHeader | None, problem: str) -> None:
        """Note the damage, and continue at the next whole batch."""
        end, offset = self._size, self.end_offset
        stated = position + header.size if header is not None else position
        bounds = Bounds(self._size, self._next_offset, self.end_offset)
        if header is not None and stated < self._size and (behind := whole_at(self._pread, stated, bounds)) is not None:
            end, offset = stated, behind.base_offset
        elif stated < self._size:
            later = bounds._replace(first=self._next_offset + 1)
            end, offset = search(self._pread, position + 1, later) or (end, offset)
        self.found.append(Found(position, end, (self._next_offset, offset), problem))
        self._position, self._next_offset = end, offset


# -- repair -----------------------------------------------------------------------------------------------------


class Patch(NamedTuple):
    """Bytes that overwrite others in a file of batches."""

    position: int
    data: bytes


def prepare(log: PartitionLog, segment: Segment, found: Sequence[Found]) -> list[Patch]:
    """Quarantine the damaged bytes, and write their offsets to the manifest as missing: durable on return. Returns the
    headers that replace them. Blocks; for a thread."""
    patches = []
    for each in found:
        if each.end - each.start >= HEADER_BYTES:
            quarantine_bytes(log.disk, segment.log, each.start, each.end)
            patches.append(Patch(each.start, _empty_batch(log, segment, each)))
    name(log, found)
    return patches


def name(log: PartitionLog, found: Sequence[Found]) -> None:
    """Write the damaged offsets to the manifest as missing. Durable on return."""
    ranges = [each.offsets for each in found if each.offsets[0] < each.offsets[1]]
    log.manifest.lose(log, ranges)


def _empty_batch(log: PartitionLog, segment: Segment, found: Found) -> bytes:
    """The header of an empty batch with the length and the offsets of the damaged bytes."""
    first, end = found.offsets
    length = found.end - found.start - LENGTH_OVERHEAD
    behind_crc = (0, end - first - 1, NO_TIMESTAMP, NO_TIMESTAMP, NO_PRODUCER, -1, -1, 0)
    before_crc = (first, length, log.epochs.epoch_of(first), MAGIC)
    crc = crc32c(HEADER.pack(*before_crc, 0, *behind_crc)[CRC_FROM:])
    for piece in pieces(segment.log, found.start + HEADER_BYTES, found.end):
        crc = crc32c(piece, crc)
    return HEADER.pack(*before_crc, crc, *behind_crc)


def apply(log: PartitionLog, segment: Segment, found: Sequence[Found], patches: Sequence[Patch]) -> None:
    """Make the damaged bytes unreadable. On the event loop, if the segment is still part of the log."""
    damage.mark_missing(log, [each.offsets for each in found])
    for patch in patches:
        log.disk.overwrite(segment.log.path, patch.data, patch.position)


# -- derived files -----------------------------------------------------------------------------------------------


def derived_damage(log: PartitionLog, claim: SegmentClaim) -> list[str]:
    """The derived files of a closed segment that differ from the manifest. Blocks; for a thread."""
    stem = file_stem(log.path, claim.base_offset)
    recorded = [(".index", claim.index_crc), (".timeindex", claim.timeindex_crc)]
    wrong = [stem + kind for kind, crc in recorded if crc != NO_CRC and file_crc(log.disk, stem + kind) != crc]
    if file_crc(log.disk, stem + TXNINDEX_SUFFIX) != claim.txnindex_crc:
        wrong.append(stem + TXNINDEX_SUFFIX)
    return wrong


def rebuild_derived(log: PartitionLog, segment: Segment, wrong: Sequence[str], truncations: int) -> None:
    """Rebuild them from the batches, and claim the new ones. Blocks; for a thread."""
    if any(not path.endswith(TXNINDEX_SUFFIX) for path in wrong):
        _rebuild_indexes(log, segment)
    if any(path.endswith(TXNINDEX_SUFFIX) for path in wrong):
        transaction_recovery.rewrite_index(log, segment.base_offset)
    following = log.segment_after(segment)
    if following is None:
        return
    claim = claim_of(log.disk, log.path, segment.base_offset, following.base_offset, segment.size)
    log.manifest.add(log, [claim], lambda: log.truncations == truncations and not log.dropped and not segment.deleted)


def _rebuild_indexes(log: PartitionLog, segment: Segment) -> None:
    builder = segment.build_indexes(log.config.index_interval_bytes)
    offsets, times = OffsetIndex(log.disk, segment.offsets.path), TimeIndex(log.disk, segment.times.path)
    offsets.replace(builder.offsets, builder.positions)
    times.replace(builder.timestamps, builder.timestamp_offsets)
    log.disk.write_atomic(offsets.path, offsets.encode(0))
    log.disk.write_atomic(times.path, times.encode(0))


def take_up(log: PartitionLog, segment: Segment, wrong: Sequence[str]) -> None:
    """Derived files were rebuilt: drop the loaded ones. On the event loop."""
    segment.drop_indexes()
    segment.offsets.close()
    segment.times.close()
    if any(path.endswith(TXNINDEX_SUFFIX) for path in wrong):
        log.transactions.look_for(segment.base_offset)
