"""The batches of a file as `ottla log verify` reads them: each is checked, and behind a damaged one it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from crc32c import crc32c

from ottla.errors import Refused
from ottla.runtime import File
from ottla.wire.batch import CRC_FROM, HEADER_BYTES, BatchHeader, read_header

CHUNK_BYTES: Final = 1024 * 1024


def batches(file: File, end: int, read: Callable[[int], object]) -> Iterator[tuple[int, BatchHeader, str]]:
    """Position and header of each batch that begins within the file, and what is wrong with it. Ends where no header
    stands, or one that points behind the end."""
    position = 0
    chunk = memoryview(b"")
    start = 0  # of the chunk in the file
    while end - position >= HEADER_BYTES:
        if position + HEADER_BYTES > start + len(chunk):
            start, chunk = position, memoryview(file.pread(min(CHUNK_BYTES, end - position), position))
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
            crc = _crc(file, position + CRC_FROM, position + header.size)
        yield position, header, "" if crc == header.crc else "the checksum of a batch is wrong"
        position += header.size


def _crc(file: File, start: int, end: int) -> int:
    """Of a batch that may be larger than one wants to hold."""
    crc = 0
    while start < end:
        piece = file.pread(min(CHUNK_BYTES, end - start), start)
        if not piece:
            break
        crc = crc32c(piece, crc)
        start += len(piece)
    return crc
