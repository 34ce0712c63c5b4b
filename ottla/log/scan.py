"""Walks over the batches in a file, in large reads: by header alone, or with every batch checked."""

from __future__ import annotations

from collections.abc import Iterator

from crc32c import crc32c

from ottla.errors import ErrorCode, Refused
from ottla.runtime import File
from ottla.wire.batch import CRC_FROM, HEADER_BYTES, LENGTH_OVERHEAD, BatchHeader, check, read_header

_HEADERS_CHUNK_BYTES = 64 * 1024
_CHECK_CHUNK_BYTES = 1024 * 1024


def headers(file: File, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch within `start..end`; bodies are skipped where possible.

    Refused(corrupt_message) where no batch header stands.
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
            return  # the file is shorter than it was said to be
        position += at


def whole(file: File, start: int, end: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """As `headers`, with the batch itself, its checksum verified before it is handed out."""
    position = start
    wanted = _CHECK_CHUNK_BYTES
    while end - position >= HEADER_BYTES:
        chunk = file.pread(min(wanted, end - position), position)
        view = memoryview(chunk)
        wanted = _CHECK_CHUNK_BYTES
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
                raise Refused(ErrorCode.corrupt_message, "the checksum of a batch is wrong")
            yield position + at, header, batch
            at += size
        if at == 0 and wanted == _CHECK_CHUNK_BYTES:
            return  # the file is shorter than it was said to be
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
