"""Record batch header, format v2: 61 bytes; the broker does not decode the records behind it.

    base_offset:8 length:4 leader_epoch:4 magic:1 crc:4 | attributes:2 last_offset_delta:4 base_timestamp:8
    max_timestamp:8 producer_id:8 producer_epoch:2 base_sequence:4 record_count:4 | records

The CRC covers everything after itself. Base offset and leader epoch are before it, so the leader sets them in the
received buffer without a new CRC; the append time is behind it, so setting that needs a new CRC.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from ottla.errors import ErrorCode, Refused
from ottla.runtime import Buffer

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_OVERHEAD = 12
"""Base offset and length, which `length` does not count."""

CRC_FROM = 21
MAGIC = 2

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

NO_PRODUCER = -1
NO_TIMESTAMP = -1
SEQUENCE_MAX = 2**31 - 1

_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP_AT = 35


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return self.length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def last_sequence(self) -> int:
        """Sequences wrap from 2^31-1 to 0."""
        if self.base_sequence < 0:
            return self.base_sequence
        last = self.base_sequence + self.last_offset_delta
        return last if last <= SEQUENCE_MAX else last - SEQUENCE_MAX - 1


def read_header(data: Buffer, pos: int = 0) -> BatchHeader:
    """The header at `pos`; only its size and format are checked."""
    if len(data) - pos < HEADER_BYTES:
        raise Refused(ErrorCode.corrupt_message, "the batch is shorter than a batch header")
    header = BatchHeader._make(HEADER.unpack_from(data, pos))
    if header.magic != MAGIC:
        raise Refused(ErrorCode.corrupt_message, f"record format {header.magic} is not supported, only 2 is")
    if header.length < HEADER_BYTES - LENGTH_OVERHEAD:
        raise Refused(ErrorCode.corrupt_message, f"a batch length of {header.length} bytes is too short")
    return header


def check(data: Buffer, pos: int = 0) -> BatchHeader:
    """The header of a whole and undamaged batch at `pos`."""
    header = read_header(data, pos)
    end = pos + header.length + LENGTH_OVERHEAD
    if end > len(data):
        raise Refused(ErrorCode.corrupt_message, "the batch is longer than the data that holds it")
    if crc32c(memoryview(data)[pos + CRC_FROM : end]) != header.crc:
        raise Refused(ErrorCode.corrupt_message, "the checksum of the batch is wrong")
    return header


def check_produced(view: memoryview) -> BatchHeader:
    """The header of the one batch that a producer may send for a partition, completely checked."""
    size = len(view)
    if size < HEADER_BYTES:
        raise Refused(ErrorCode.invalid_record, "there is no whole record batch")
    header = BatchHeader._make(HEADER.unpack_from(view))
    if header.magic != MAGIC:
        raise Refused(ErrorCode.corrupt_message, f"record format {header.magic} is not supported, only 2 is")
    if header.length + LENGTH_OVERHEAD != size:
        raise Refused(ErrorCode.invalid_record, "exactly one record batch is expected, as long as it says it is")
    if crc32c(view[CRC_FROM:]) != header.crc:
        raise Refused(ErrorCode.corrupt_message, "the checksum of the batch is wrong")
    count = header.record_count
    if count <= 0 or header.last_offset_delta != count - 1:
        raise Refused(ErrorCode.invalid_record, "the record count and the last offset of the batch disagree")
    if header.base_offset != 0:
        raise Refused(ErrorCode.invalid_record, "a produced batch starts at offset 0")
    attributes = header.attributes
    if attributes & CONTROL:
        raise Refused(ErrorCode.invalid_record, "clients may not write control batches")
    if attributes & CODEC_MASK >= len(CODECS):
        raise Refused(ErrorCode.unsupported_compression_type, f"compression type {attributes & CODEC_MASK}")
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise Refused(ErrorCode.invalid_record, "a producer id needs an epoch and a sequence")
    if attributes & TRANSACTIONAL and header.producer_id < 0:
        raise Refused(ErrorCode.invalid_record, "a transactional batch needs a producer id")
    return header


def batches(data: Buffer, pos: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each whole batch; a partial one at the end is left out."""
    end = len(data)
    while end - pos >= HEADER_BYTES:
        header = read_header(data, pos)
        if pos + header.size > end:
            return
        yield pos, header
        pos += header.size


def stamp(view: memoryview | bytearray, base_offset: int, leader_epoch: int, pos: int = 0) -> None:
    """Set base offset and leader epoch, in place. The CRC stays valid."""
    _OFFSET.pack_into(view, pos, base_offset)
    _EPOCH.pack_into(view, pos + 12, leader_epoch)


def stamp_log_append_time(view: memoryview | bytearray, now_ms: int, pos: int = 0) -> BatchHeader:
    """Set LogAppendTime, in place, with a new CRC."""
    header = BatchHeader._make(HEADER.unpack_from(view, pos))
    _ATTRIBUTES.pack_into(view, pos + CRC_FROM, header.attributes | LOG_APPEND_TIME)
    _OFFSET.pack_into(view, pos + _MAX_TIMESTAMP_AT, now_ms)
    _rehash(view, pos, header.size)
    return BatchHeader._make(HEADER.unpack_from(view, pos))


def _rehash(view: memoryview | bytearray, pos: int, size: int) -> None:
    _CRC.pack_into(view, pos + CRC_FROM - 4, crc32c(memoryview(view)[pos + CRC_FROM : pos + size]))
