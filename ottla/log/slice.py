"""Slice: the result of a read, a range of whole batches in one segment. Its bytes are loaded later.

Finding the position needs an index and often a few headers; loading needs the bytes. If both are in memory, everything
runs on the event loop (`load_nowait`). If not, `load_nowait` returns None, and the reader calls `load` in a thread. A
large slice is a `Source`: part of a response that is loaded in chunks as the client reads it (`read_into`, `read`).

Meanwhile the segment may be deleted: the file is renamed, and removed later (`hold` keeps it for the reader). Or the
log may be truncated, or deleted with its topic: then the reader gets an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ottla.errors import ErrorCode, Refused, StorageFault
from ottla.log.segment import COLD, NOT_HERE, Segment
from ottla.runtime import Buffer, File

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog

T = TypeVar("T")

BASE_OFFSET_BYTES = 8
"""A batch begins with its base offset."""
SMALL_BYTES_MAX = 4096
"""Up to this size, the next base offset is read together with the slice: a second read would cost as much again."""


class Slice:
    """The batches from `offset` on, of any source of reads: local segments, or remote ones. `position` and `length` are
    final once `located`. It is a `ResponseSource` (`read_into`, `read`, `hold`)."""

    __slots__ = ("__weakref__", "length", "offset", "position")
    offset: int
    position: int
    length: int

    def __len__(self) -> int:
        return self.length

    @property
    def located(self) -> bool:
        return self.position >= 0

    @property
    def may_wait(self) -> bool:
        """Whether it may be added to a response before it is loaded. Not after a read error of the device: then the
        client gets an error, instead of losing its connection repeatedly."""
        raise NotImplementedError

    def leave_out(self) -> None:
        """The response has no room for this slice."""
        self.position = self.length = 0

    def fit(self, bytes_max: int, *, whole_first_batch: bool) -> int:
        """Find the bytes, waiting for the device, and keep to a limit that was not known when the slice was made: what
        comes before it may have turned out larger or smaller. Returns how many they are. May run in a thread."""
        raise NotImplementedError

    def end_offset(self) -> int:
        """The next offset after the last batch, without reading the batches; in a compacted log it may be that of the
        next batch. On the event loop only."""
        raise NotImplementedError

    def check(self) -> None:
        """Refused if the log was truncated or replaced at its position."""
        raise NotImplementedError

    def load_nowait(self) -> Buffer | None:
        """The bytes if they are in memory; None: offload `load`."""
        raise NotImplementedError

    def load(self) -> Buffer:
        """The bytes, waiting for the device. May run in a thread."""
        raise NotImplementedError

    def read_into(self, start: int, buffer: memoryview) -> int | None:
        raise NotImplementedError

    def read(self, start: int, size: int) -> Buffer:
        raise NotImplementedError

    def hold(self) -> None:
        raise NotImplementedError


class SegmentSlice(Slice):
    """A slice of a segment of the local log."""

    __slots__ = (
        "_bytes_max", "_end_offset", "_limit", "_log", "_tail", "_tail_bytes", "_truncations", "_whole_first_batch",
        "kept", "reaches_limit", "segment",
    )  # fmt: skip

    def __init__(
        self, log: PartitionLog, segment: Segment, offset: int, bytes_max: int, limit: int, whole_first_batch: bool
    ) -> None:
        self._log = log
        self.segment = segment
        self.kept: File | None = None
        self.offset = offset
        self.position = -1
        self.length = 0
        self.reaches_limit = False
        self._bytes_max = max(bytes_max, 0)
        self._limit = limit
        self._end_offset = -1
        self._whole_first_batch = whole_first_batch
        # Where the log ended when the slice was made: appends that come later are not for this reader.
        self._tail = log.active
        self._tail_bytes = log.active.size if limit == log.log_end else -1
        self._truncations = log.truncations

    def locate(self, start_hint: int = -1, end_hint: int = -1, *, wait: bool = False) -> bool:
        """Find the position and length. False: that needs a read from the device. Hints are for the active segment."""
        position = start_hint if start_hint >= 0 else self._find_start(wait)
        if position < 0:
            return False
        end = end_hint if end_hint >= 0 and self.segment is self._tail else self._find_end(self.segment, wait)
        if end < 0:
            return False
        self.reaches_limit = end - position <= self._bytes_max
        if not self.reaches_limit:
            end = self._cut(position, wait)
            if end < 0:
                return False
        self.length = max(end - position, 0)
        self.position = position
        self._end_offset = -1
        return True

    def _find_start(self, wait: bool) -> int:
        while True:
            position = self.segment.find(self.offset, wait=wait)
            if position != NOT_HERE:
                return position
            following = self._log.segment_after(self.segment)  # offsets may be missing at the end of a segment
            if following is None:
                if not self.segment.size:
                    return 0  # nothing was written yet behind a loss that was accepted
                raise self._lost()
            self.segment = following

    def _find_end(self, segment: Segment, wait: bool) -> int:
        if segment is self._tail and self._tail_bytes >= 0:
            return self._tail_bytes
        following = self._log.segment_after(segment)
        if following is not None and following.base_offset <= self._limit:
            return segment.size
        position = segment.find(self._limit, wait=wait)
        return segment.size if position == NOT_HERE else position

    def _cut(self, position: int, wait: bool) -> int:
        """The end of the slice if not everything may be sent: the end of a batch. `position` if not even the first
        batch fits, unless the first one must be sent whole."""
        segment = self.segment
        if not segment.offsets.loaded:
            if not wait:
                return COLD
            segment.load_indexes()
        end = segment.offsets.floor_position(position + self._bytes_max)
        if end > position:
            return end
        return segment.end_of_batches(position, self._bytes_max, whole_first=self._whole_first_batch, wait=wait)

    def fit(self, bytes_max: int, *, whole_first_batch: bool) -> int:
        bytes_max = max(bytes_max, 0)
        if self.position < 0 or self.length > bytes_max:
            self._bytes_max = bytes_max
            self._whole_first_batch = whole_first_batch
            self._though_deleted(lambda: self.locate(wait=True))
        return self.length

    def end_offset(self) -> int:
        if self._end_offset >= 0:
            return self._end_offset
        if self.reaches_limit and self.segment is self._tail:
            return self._limit
        end = self.position + self.length
        if not self.reaches_limit and end < self.segment.size:
            head = self._file.pread_nowait(BASE_OFFSET_BYTES, end)
            if head is not None and self.offset < (found := int.from_bytes(head, "big")) <= self._limit:
                return found
            behind = self.segment.offsets.offset_behind(end) if self.segment.offsets.loaded else None
            if behind is not None:
                return min(self.segment.base_offset + behind, self._limit)
        following = self._log.segment_after(self.segment)
        return self._limit if following is None else min(following.base_offset, self._limit)

    # -- all at once -----------------------------------------------------------------------------------------

    def load_nowait(self) -> Buffer | None:
        self.check()
        if self.position < 0 and not self.locate():
            return None
        length = self.length
        more = length + BASE_OFFSET_BYTES
        if self.reaches_limit or length > SMALL_BYTES_MAX or self.position + more > self.segment.size:
            return self._file.pread_nowait(length, self.position)
        data = self._file.pread_nowait(more, self.position)
        if data is None or len(data) < more:
            return self._file.pread_nowait(length, self.position)
        behind = int.from_bytes(data[length:], "big")
        if self.offset < behind <= self._limit:
            self._end_offset = behind
        return data[:length]

    def load(self) -> Buffer:
        data = self._though_deleted(self._read)
        self.check()
        return data

    def _read(self) -> Buffer:
        if self.position < 0:
            self.locate(wait=True)
        return self._file.pread(self.length, self.position)

    # -- in chunks -------------------------------------------------------------------------------------------

    @property
    def may_wait(self) -> bool:
        return not self.segment.read_failed

    def read_into(self, start: int, buffer: memoryview) -> int | None:
        self.check()
        try:
            return self._file.pread_into(buffer, self.position + start)
        except StorageFault:
            return None  # `read` knows what to do

    def read(self, start: int, size: int) -> Buffer:
        try:
            data = self._though_deleted(lambda: self._file.pread(size, self.position + start))
        except StorageFault:
            self.segment.read_failed = True
            raise
        self.check()
        return data

    def hold(self) -> None:
        self.segment.hold(self)

    # -- concurrent changes ------------------------------------------------------------------------------------

    @property
    def _file(self) -> File:
        return self.segment.log if self.kept is None else self.kept

    def check(self) -> None:
        if self._log.truncations != self._truncations or self._log.dropped:
            raise self._lost()

    def _though_deleted(self, read: Callable[[], T]) -> T:
        """Read, and once more if the segment was renamed because it is being deleted."""
        while True:
            file = self._file
            try:
                return read()
            except (Refused, StorageFault):
                self.check()
                if not self.segment.deleted:
                    raise
                if self._file is file:
                    raise self._lost() from None

    def _lost(self) -> Refused:
        if self.offset < self._log.log_start:
            return Refused(ErrorCode.offset_out_of_range, f"offset {self.offset} was deleted meanwhile")
        if self._log.dropped:
            return Refused(ErrorCode.not_leader_or_follower, "the partition was removed meanwhile")
        return Refused(ErrorCode.not_leader_or_follower, "the log was truncated meanwhile: ask again")
