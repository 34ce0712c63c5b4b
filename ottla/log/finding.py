"""Finding the next whole batch behind bytes of a file that are none.

A batch is whole if its checksum is right and its offsets may stand there. Bytes of a record may look like one, as a
client may send what it likes: so where nothing else tells that a batch begins (the damaged one may: it says how long it
is), the file has to go on behind it as a log does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from crc32c import crc32c

from ottla.errors import Refused
from ottla.wire.batch import CRC_FROM, HEADER_BYTES, MAGIC, BatchHeader, read_header

SEARCH_BYTES: Final = 1024 * 1024
_MAGIC_AT: Final = 16
_OFFSET_BYTES: Final = 8
_FOLLOWING_MAX: Final = 100
"""So many batches in a row are a log."""

Read = Callable[[int, int], bytes]
"""Length and position, as `File.pread`."""


class Bounds(NamedTuple):
    """Where batches may be: in the first so many bytes of the file, with these offsets (half-open)."""

    size: int
    first: int
    end: int
    epoch: int = -1
    """The earliest leader epoch."""

    def admit(self, header: BatchHeader, position: int) -> bool:
        within = self.first <= header.base_offset <= header.last_offset < self.end and header.last_offset_delta >= 0
        return within and header.leader_epoch >= self.epoch and header.size <= self.size - position


def whole_at(read: Read, position: int, bounds: Bounds) -> BatchHeader | None:
    """The header of the whole batch at `position`, if there is one."""
    try:
        header = read_header(read(HEADER_BYTES, position))
    except Refused:
        return None
    if not bounds.admit(header, position):
        return None
    crc, start, end = 0, position + CRC_FROM, position + header.size
    while start < end and (piece := read(min(SEARCH_BYTES, end - start), start)):
        crc, start = crc32c(piece, crc), start + len(piece)
    return header if crc == header.crc else None


def search(read: Read, start: int, bounds: Bounds, *, goes_on: bool = False) -> tuple[int, int] | None:
    """Position and base offset of the first whole batch that begins at `start` or behind it. `goes_on`: only one behind
    which the file goes on as a log does."""
    while bounds.size - start >= HEADER_BYTES:
        chunk = read(min(SEARCH_BYTES, bounds.size - start), start)
        at = chunk.find(MAGIC, _MAGIC_AT)
        while at >= 0:
            offset = int.from_bytes(chunk[at - _MAGIC_AT : at - _MAGIC_AT + _OFFSET_BYTES], "big", signed=True)
            if bounds.first <= offset < bounds.end:
                position = start + at - _MAGIC_AT
                header = whole_at(read, position, bounds)
                known = header is not None and not _contradicted(read, position, header, bounds)
                if header is not None and known and (not goes_on or _goes_on(read, position, header, bounds)):
                    return position, offset
            at = chunk.find(MAGIC, at + 1)
        if len(chunk) <= _MAGIC_AT:
            break
        start += len(chunk) - _MAGIC_AT
    return None


def _contradicted(read: Read, position: int, header: BatchHeader, bounds: Bounds) -> bool:
    """Whether the batch behind it is whole and has an earlier offset: no checksum covers the offset of this one."""
    following = whole_at(read, position + header.size, bounds)
    return following is not None and following.base_offset < header.next_offset


def _goes_on(read: Read, position: int, header: BatchHeader, bounds: Bounds) -> bool:
    """Whole batches follow up to the end of the file, or up to one that was not written to its end."""
    for _ in range(_FOLLOWING_MAX):
        position += header.size
        data = read(HEADER_BYTES, position) if position < bounds.size else b""
        if len(data) < HEADER_BYTES:
            return True
        behind = bounds._replace(first=header.next_offset, epoch=header.leader_epoch)
        following = whole_at(read, position, behind)
        if following is None:
            try:
                torn = read_header(data)
            except Refused:
                return False
            return torn.base_offset == header.next_offset and torn.size > bounds.size - position
        header = following
    return True
