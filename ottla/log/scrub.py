"""The scrub of one segment: every batch is read and checked, a chunk at a time, before anybody asks for it.

    checksum        of every batch
    base offset     no checksum covers it: batches follow each other, within the segment and up to the next one. A gap,
                    as compaction leaves it, is no damage; a batch that moved into one is known by the batch behind it,
                    which goes on as if there were none
    leader epoch    no checksum covers it either: it is held against what the log knows of its epochs
    end             the file ends with a whole batch, where the next segment begins

Behind damage the walk goes on at the next whole batch: by the length that the damaged one tells if a batch stands
there, else wherever one is found. Of the active segment only what is below the recovery point is read.

What is read is whatever the page cache or the device gives; whether it is really damaged, and still the log's, is for
the caller to say, who reads it again: files are deleted, truncated and replaced meanwhile.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from ottla.errors import Refused
from ottla.log.epochs import NO_EPOCH
from ottla.log.manifest import Range
from ottla.wire.batch import CRC_FROM, HEADER_BYTES, MAGIC, BatchHeader, read_header

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog
    from ottla.log.segment import Segment

CHUNK_BYTES: Final = 64 * 1024
"""Read at a time, in a thread: the loop waits for the interpreter no longer than a chunk of small batches takes."""
SEARCH_BYTES: Final = 1024 * 1024
FOUND_MAX: Final = 20
"""Of one segment: a file full of noise is damaged once."""
_MAGIC_AT: Final = 16
_OFFSET_BYTES: Final = 8


class Found(NamedTuple):
    """Damage in a file: these bytes of it, which should be the batches of these offsets."""

    start: int
    end: int
    offsets: Range
    problem: str


class _Epochs:
    """A copy of what a log knows of its leader epochs, for a thread."""

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
    """One walk. Made on the loop; `step` runs in a thread until `done`."""

    def __init__(self, log: PartitionLog, segment: Segment, *, again: bool = False) -> None:
        """`again`: read through the log's own handle, which keeps to the segment's file whatever takes its name."""
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
        """Whether the log still has what is read: on the loop."""
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
        """Whether the batch is good; then the walk goes on behind it."""
        problem = "the checksum of a batch is wrong" if crc != header.crc else self._misplaced(position, header)
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
        """Whether what is behind a batch goes on as if there were no gap before it."""
        without_gap = self._next_offset + header.last_offset_delta + 1
        behind = position + header.size
        if behind >= self._size:
            return without_gap == self.end_offset
        return int.from_bytes(self._pread(_OFFSET_BYTES, behind), "big", signed=True) == without_gap

    # -- behind damage ---------------------------------------------------------------------------------------

    def _damaged(self, position: int, header: BatchHeader | None, problem: str) -> None:
        """Note it, and go on at the next whole batch."""
        end, offset = self._size, self.end_offset
        told = position + header.size if header is not None else position
        if header is not None and told < self._size and (told_offset := self._whole_at(told)) is not None:
            end, offset = told, told_offset
        elif told < self._size:
            end, offset = self._search(position)
        self.found.append(Found(position, end, (self._next_offset, offset), problem))
        self._position, self._next_offset = end, offset

    def _whole_at(self, position: int) -> int | None:
        """The base offset of the whole batch at `position`, if there is one."""
        try:
            header = read_header(self._pread(HEADER_BYTES, position))
        except Refused:
            return None
        fits = self._next_offset <= header.base_offset <= header.last_offset < self.end_offset
        if not fits or header.last_offset_delta < 0 or header.size > self._size - position:
            return None
        crc = 0
        for piece in self._pieces(position + CRC_FROM, position + header.size):
            crc = crc32c(piece, crc)
        return header.base_offset if crc == header.crc else None

    def _search(self, position: int) -> tuple[int, int]:
        """The next whole batch behind `position`, and its offset; the end of the file if there is none."""
        start = position + 1
        while self._size - start >= HEADER_BYTES:
            chunk = self._pread(min(SEARCH_BYTES, self._size - start), start)
            at = chunk.find(MAGIC, _MAGIC_AT)
            while at >= 0:
                offset = int.from_bytes(chunk[at - _MAGIC_AT : at - _MAGIC_AT + _OFFSET_BYTES], "big", signed=True)
                if self._next_offset < offset < self.end_offset:
                    candidate = start + at - _MAGIC_AT
                    if self._whole_at(candidate) is not None:
                        return candidate, offset
                at = chunk.find(MAGIC, at + 1)
            if len(chunk) <= _MAGIC_AT:
                break
            start += len(chunk) - _MAGIC_AT
        return self._size, self.end_offset

    def _pieces(self, start: int, end: int) -> Iterator[bytes]:
        while start < end:
            piece = self._pread(min(SEARCH_BYTES, end - start), start)
            if not piece:
                return
            yield piece
            start += len(piece)
