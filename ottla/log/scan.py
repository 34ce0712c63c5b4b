"""Scans over the batches of a file, in large reads: headers only, or with checksums, or after damaged bytes.

`search` finds the next whole batch after bytes that are no batch. A batch is whole if its checksum is right and its
offsets are possible there. A client may send any bytes, so a record may contain bytes that look like a batch: unless
something else shows that a batch begins there (such as the length of the damaged batch), the file must continue after
it as a log does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from ottla.errors import ErrorCode, Refused
from ottla.runtime import File
from ottla.wire.batch import CRC_FROM, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, BatchHeader, check, read_header

BAD_CHECKSUM: Final = "the checksum of a batch is wrong"
_HEADERS_CHUNK_BYTES: Final = 64 * 1024
_CHUNK_BYTES: Final = 1024 * 1024
_MAGIC_AT: Final = 16
_OFFSET_BYTES: Final = 8
_FOLLOWING_MAX: Final = 100
"""So many batches in a row are a log."""

Read = Callable[[int, int], bytes]
"""Length and position, as `File.pread`."""


def headers(file: File, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch within `start..end`; bodies are skipped where possible.

    Refused(corrupt_message) at a position without a batch header.
    """
    position = start
    while end - position >= HEADER_BYTES:
        chunk = file.pread(min(_HEADERS_CHUNK_BYTES, end - position), position)
        at = 0
        while len(chunk) - at >= HEADER_BYTES:
            header = read_header(chunk, at)
            if position + at + header.size > end:
                return
            yield position + at, header
            at += header.size
        if at == 0:
            return  # the file is shorter than expected
        position += at


def whole(file: File, start: int, end: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """As `headers`, with the batch itself, its checksum verified before it is handed out."""
    position = start
    wanted = _CHUNK_BYTES
    while end - position >= HEADER_BYTES:
        chunk = file.pread(min(wanted, end - position), position)
        view = memoryview(chunk)
        wanted = _CHUNK_BYTES
        at = 0
        while len(chunk) - at >= HEADER_BYTES:
            header = read_header(chunk, at)
            size = header.length + LENGTH_OVERHEAD
            if position + at + size > end:
                return
            if at + size > len(chunk):
                wanted = max(wanted, size)  # it lies within the file, so it may be read whole
                break
            batch = view[at : at + size]
            if crc32c(batch[CRC_FROM:]) != header.crc:
                raise Refused(ErrorCode.corrupt_message, BAD_CHECKSUM)
            yield position + at, header, batch
            at += size
        if at == 0 and wanted == _CHUNK_BYTES:
            return  # the file is shorter than expected
        position += at


def checked(data: memoryview, position: int, next_offset: int) -> BatchHeader:
    """The header of a batch that a leader sent, if it is whole and may follow. Refused if not."""
    header = check(data, position)
    if header.base_offset < next_offset:
        raise Refused(
            ErrorCode.corrupt_message,
            f"the leader sent offset {header.base_offset} where {next_offset} or later was expected",
        )
    return header


def batches(file: File, end: int, read: Callable[[int], object]) -> Iterator[tuple[int, BatchHeader, str]]:
    """Position and header of each batch that begins within the file, and its error, if any: a damaged batch does not
    end the scan. The scan ends at bytes that are no header, or at a header with an end after the file's. `read` gets
    the number of bytes read."""
    position = 0
    chunk = memoryview(b"")
    start = 0  # of the chunk in the file
    while end - position >= HEADER_BYTES:
        if position + HEADER_BYTES > start + len(chunk):
            start, chunk = position, memoryview(file.pread(min(_CHUNK_BYTES, end - position), position))
            read(len(chunk))
        try:
            header = read_header(chunk, position - start)
        except Refused:
            return
        if header.size > end - position or header.last_offset_delta < 0:
            return
        inside = chunk[position - start :][: header.size]
        if len(inside) == header.size:
            crc = crc32c(inside[CRC_FROM:])
        else:
            crc = _crc(file.pread, position + CRC_FROM, position + header.size)
        yield position, header, "" if crc == header.crc else BAD_CHECKSUM
        position += header.size


def _crc(read: Read, start: int, end: int) -> int:
    """Of a batch that may be larger than one wants to hold."""
    crc = 0
    while start < end and (piece := read(min(_CHUNK_BYTES, end - start), start)):
        crc, start = crc32c(piece, crc), start + len(piece)
    return crc


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
    return header if _crc(read, position + CRC_FROM, position + header.size) == header.crc else None


def search(read: Read, start: int, bounds: Bounds, *, goes_on: bool = False) -> tuple[int, int] | None:
    """Position and base offset of the first whole batch at `start` or later. `goes_on`: only one after which the file
    continues as a log."""
    while bounds.size - start >= HEADER_BYTES:
        chunk = read(min(_CHUNK_BYTES, bounds.size - start), start)
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
