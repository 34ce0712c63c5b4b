"""What a reader gets from a log: a run of batches in one segment, placed exactly and loaded when wanted.

Placing needs an index and often a few headers, loading the bytes themselves. Both may be in memory, then all
happens on the loop (`load_nowait`); or on the device, then `load_nowait` says None and the reader offloads
`load`. By then the segment may have been deleted, which only changes its file's name, or the log truncated,
which is told to the reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.errors import ErrorCode, Refused, StorageFault
from ottla.log.segment import COLD, NOT_HERE, Segment
from ottla.runtime import Buffer
from ottla.wire.batch import HEADER_BYTES, read_header

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog


class Slice:
    """From the batch that holds `offset` on; `position` and `length` are final once `placed`."""

    __slots__ = (
        "_bytes_max",
        "_limit",
        "_log",
        "_tail",
        "_tail_bytes",
        "_truncations",
        "_whole_first_batch",
        "length",
        "offset",
        "position",
        "reaches_limit",
        "segment",
    )

    def __init__(
        self,
        log: PartitionLog,
        segment: Segment,
        offset: int,
        bytes_max: int,
        limit: int,
        whole_first_batch: bool,
    ) -> None:
        self._log = log
        self.segment = segment
        self.offset = offset
        self.position = -1
        self.length = 0
        self.reaches_limit = False
        self._bytes_max = bytes_max
        self._limit = limit
        self._whole_first_batch = whole_first_batch
        # Where the log ended when the slice was made: appends that come later are not for this reader.
        self._tail = log.active
        self._tail_bytes = log.active.size if limit == log.log_end else -1
        self._truncations = log.truncations

    @property
    def placed(self) -> bool:
        return self.position >= 0

    def place(self, start_hint: int = -1, end_hint: int = -1, *, wait: bool = False) -> bool:
        """Find the bytes. False when that would take waiting for the device. Hints are about the active segment."""
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
        return True

    def _find_start(self, wait: bool) -> int:
        while True:
            position = self.segment.find(self.offset, wait=wait)
            if position != NOT_HERE:
                return position
            following = self._log.segment_after(self.segment)  # offsets may be missing at the end of a segment
            if following is None:
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
        """Where to end when not all may be sent: at a batch the index knows of, so that none is sent in part."""
        segment = self.segment
        if not segment.offsets.loaded:
            if not wait:
                return COLD
            segment.load_indexes()
        end = segment.offsets.floor_position(position + self._bytes_max)
        if end > position:
            return end
        if not self._whole_first_batch:
            return position + self._bytes_max
        read = segment.log.pread if wait else segment.log.pread_nowait
        head = read(HEADER_BYTES, position)
        if head is None:
            return COLD
        return position + max(self._bytes_max, read_header(head).size)

    def load_nowait(self) -> Buffer | None:
        """The bytes if they are in memory; None: offload `load`."""
        if self._log.truncations != self._truncations:
            raise self._lost()
        if self.position < 0 and not self.place():
            return None
        return self.segment.log.pread_nowait(self.length, self.position)

    def load(self) -> Buffer:
        """The bytes, waiting for the device. May run in a thread."""
        while True:
            file = self.segment.log
            try:
                data = self._read()
                break
            except StorageFault:
                if not self.segment.deleted:
                    raise
                if self.segment.log is file:
                    raise self._lost() from None
                # Deleted between our looking at it and reading it: for a while the file goes by another name.
        if self._log.truncations != self._truncations:
            raise self._lost()
        return data

    def _read(self) -> Buffer:
        if self.position < 0:
            self.place(wait=True)
        return self.segment.log.pread(self.length, self.position)

    def _lost(self) -> Refused:
        if self.offset < self._log.log_start:
            return Refused(ErrorCode.offset_out_of_range, f"offset {self.offset} was deleted meanwhile")
        return Refused(ErrorCode.not_leader_or_follower, "the log was truncated meanwhile: ask again")
