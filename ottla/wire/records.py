"""The records of a batch, format v2. A broker decodes them only where it must; clients always do.

    length | attributes:1 timestamp_delta offset_delta key value header_count (header_key header_value)*

All but the attributes (unused) are zigzag varints, or bytes behind their length as a varint, -1 for null. Deltas are
relative to base offset and base timestamp of the batch header; with LogAppendTime every record has the timestamp of the
header. Compression covers all records together.

Records come from clients, and checking the header does not cover them: inconsistent records are refused with
INVALID_RECORD, and those that cannot be decompressed with CORRUPT_MESSAGE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from ottla.errors import ErrorCode, Refused
from ottla.runtime import Buffer
from ottla.wire.batch import (
    CODEC_MASK,
    CODECS,
    CONTROL,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    NO_PRODUCER,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    read_header,
)
from ottla.wire.compression import compress, decompress
from ottla.wire.primitives import pack_uvarint

Headers = Sequence[tuple[str, bytes | None]]

NEEDS_KEY = "a record of a compacted topic needs a key"

RECORD_ERRORS_MAX = 1000
"""How many invalid records of a batch are named."""

RECORD_BYTES_MIN = 7
"""A length, attributes, two deltas, no key, no value, no headers."""


class Record(NamedTuple):
    offset: int = 0
    timestamp: int = NO_TIMESTAMP
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


class RecordsRefused(Refused):
    """Some records of a batch are invalid, so the whole batch is refused (KIP-467)."""

    def __init__(self, indexes: Sequence[int], why: str) -> None:
        super().__init__(ErrorCode.invalid_record, f"{why}: {len(indexes)} of the batch have none")
        self.record_errors = [(index, why) for index in indexes[:RECORD_ERRORS_MAX]]


def build_batch(
    records: Sequence[Record],
    *,
    by_index: bool = False,
    codec: str = "none",
    level: int | None = None,
    base_offset: int | None = None,
    last_offset: int | None = None,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    log_append_time_ms: int | None = None,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """A whole batch. Offsets may leave gaps; `base_offset` and `last_offset` leave them at both ends.

    A batch without records, which keeps its offsets and its producer's sequence in a compacted log, needs both.
    `by_index`: the offset of each record is its index in the batch, as clients send it.
    """
    first = records[0].offset if base_offset is None else base_offset
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    if by_index:
        last = len(records) - 1
        plain = b"".join([_pack(record, -index, base_timestamp) for index, record in enumerate(records)])
    else:
        last = records[-1].offset if last_offset is None else last_offset
        plain = b"".join([_pack(record, first, base_timestamp) for record in records])
    max_timestamp = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    attributes = CODECS.index(codec) | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    if log_append_time_ms is not None:
        attributes |= LOG_APPEND_TIME
        max_timestamp = log_append_time_ms
    header = BatchHeader(
        base_offset=first,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=last - first,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return seal(header, compress(codec, plain, level) if records else b"")


def iterate(batch: Buffer, *, bytes_max: int) -> Iterator[Record]:
    """The records of the batch at the start of the buffer; Refused if they expand beyond `bytes_max`."""
    header, data = open_batch(batch, bytes_max)
    pos = 0
    end = len(data)
    delta_before = -1
    for _ in range(header.record_count):
        record, pos = _read(data, pos, end, header)
        delta = record.offset - header.base_offset
        if not delta_before < delta <= header.last_offset_delta:
            raise invalid("the offsets of the records do not rise within the batch")
        delta_before = delta
        yield record
    if pos != end:
        raise invalid("there are more records than the batch says")


def validate(batch: Buffer, *, bytes_max: int, keys_required: bool = False) -> None:
    """Refuse a produced batch whose records do not fit its header, or have gaps."""
    header = read_header(batch)
    offset = header.base_offset
    keyless: list[int] = []
    for record in iterate(batch, bytes_max=bytes_max):
        if record.offset != offset:
            raise invalid("the offsets of the records leave a gap")
        if keys_required and record.key is None:
            keyless.append(offset - header.base_offset)
        offset += 1
    if offset != header.next_offset:
        raise invalid("the record count and the last offset of the batch disagree")
    if keyless:
        raise RecordsRefused(keyless, NEEDS_KEY)


def check_keys(batch: Buffer, *, bytes_max: int) -> None:
    """Refuse a produced batch that cannot be compacted: records without a key, or with wrong offsets.

    Runs on the loop for every record of a compacted topic. So only fields that compaction needs are decoded, and short
    varints, which most are, are used as they are encoded: doubled.
    """
    header, data = open_batch(batch, bytes_max)
    keyless: list[int] = []
    pos = doubled_index = 0
    try:
        for _ in range(header.record_count):
            size = data[pos]
            pos += 1
            if size >= 0x80:
                size += (data[pos] - 1) << 7
                pos += 1
                if size >= 0x4000:
                    size, pos = read_varint(data, pos - 2)
                    size += size
            if size & 1 or size < 0:
                raise invalid("a length in a record is negative")
            stop = pos + (size >> 1)
            pos += 1
            while data[pos] >= 0x80:  # its time
                pos += 1
            pos += 1
            if data[pos] == doubled_index < 0x80:
                pos += 1
            else:
                delta, pos = read_varint(data, pos)
                if delta + delta != doubled_index:
                    raise invalid("the offsets of the records leave a gap")
            doubled_index += 2
            size = data[pos]
            if size & 0x81:  # long, or null
                size, pos = read_varint(data, pos)
                if size < 0:
                    keyless.append(doubled_index // 2 - 1)
                    size = 0
                pos += size
            else:
                pos += 1 + (size >> 1)
            if pos >= stop:
                raise invalid("a key is longer than its record")
            pos = stop
    except IndexError:
        raise invalid("a record is longer than its batch") from None
    if pos != len(data) or header.record_count != header.last_offset_delta + 1:
        raise invalid("the records and the header of the batch disagree")
    if keyless:
        raise RecordsRefused(keyless, NEEDS_KEY)


def recompress(batch: Buffer, codec: str, *, level: int | None = None, bytes_max: int) -> bytes:
    """The same records under another codec; they are not decoded."""
    header, data = open_batch(batch, bytes_max)
    attributes = header.attributes & ~CODEC_MASK | CODECS.index(codec)
    return seal(header._replace(attributes=attributes), compress(codec, data, level) if data else b"")


def invalid(message: str) -> Refused:
    return Refused(ErrorCode.invalid_record, message)


def open_batch(batch: Buffer, bytes_max: int) -> tuple[BatchHeader, bytes]:
    """Header and uncompressed records; the record count is plausible."""
    header, data = view_batch(batch, bytes_max)
    return header, bytes(data)


def view_batch(batch: Buffer, bytes_max: int) -> tuple[BatchHeader, Buffer]:
    """Like `open_batch`, without a copy if the records are not compressed."""
    header = read_header(batch)
    if header.size > len(batch):
        raise Refused(ErrorCode.corrupt_message, "the batch is longer than the data that holds it")
    if header.codec >= len(CODECS):
        raise Refused(ErrorCode.unsupported_compression_type, f"compression type {header.codec}")
    data: Buffer = memoryview(batch)[HEADER_BYTES : header.size]
    if header.codec and data:
        data = decompress(CODECS[header.codec], data, bytes_max)
    if not 0 <= header.record_count <= len(data) // RECORD_BYTES_MIN:
        raise invalid("there are fewer records than the batch says")
    return header, data


def seal(header: BatchHeader, records: Buffer) -> bytes:
    """The batch with its length and CRC."""
    length = HEADER_BYTES + len(records) - LENGTH_OVERHEAD
    front = HEADER.pack(*header._replace(length=length, crc=0))
    crc = crc32c(records, crc32c(front[CRC_FROM:]))
    return HEADER.pack(*header._replace(length=length, crc=crc)) + records


def pack_varint(value: int) -> bytes:
    if 0 <= value < SHORT_VARINTS:
        return _SHORT_VARINTS[value]
    return pack_uvarint((value << 1) ^ (value >> 63))


SHORT_VARINTS = 0x2000
"""Cached: all varints of up to two bytes that are not negative, nearly all in records."""
_SHORT_VARINTS = tuple(pack_uvarint(value << 1) for value in range(SHORT_VARINTS))


def _pack_bytes(value: bytes | None) -> bytes:
    return b"\x01" if value is None else pack_varint(len(value)) + value


def _pack(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    """Called for every record that a client writes: fast without headers."""
    offset, timestamp, key, value, headers = record
    body = b"%b%b%b%b" % (
        pack_varint(timestamp - base_timestamp),
        pack_varint(offset - base_offset),
        b"\x01" if key is None else pack_varint(len(key)) + key,
        b"\x01" if value is None else pack_varint(len(value)) + value,
    )
    if not headers:
        return b"%b\0%b\0" % (pack_varint(len(body) + 2), body)
    parts = [b"\0", body, pack_varint(len(headers))]
    for name, content in headers:
        parts += (_pack_bytes(name.encode("utf-8", "surrogateescape")), _pack_bytes(content))
    packed = b"".join(parts)
    return pack_varint(len(packed)) + packed


def read_varint(data: bytes, pos: int, bytes_max: int = 5) -> tuple[int, int]:
    byte = data[pos]
    pos += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos
    value = byte & 0x7F
    shift = 7
    for _ in range(bytes_max - 1):
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), pos
        shift += 7
    raise invalid("a number in a record does not end")


def _read_bytes(data: bytes, pos: int, end: int) -> tuple[bytes | None, int]:
    size = data[pos]
    if size & 0x81:
        size, pos = read_varint(data, pos)
    else:
        size, pos = size >> 1, pos + 1
    if size < 0:
        if size != -1:
            raise invalid("a length in a record is negative")
        return None, pos
    stop = pos + size
    if stop > end:
        raise invalid("a key, value or header is longer than its record")
    return data[pos:stop], stop


def _read(data: bytes, pos: int, end: int, header: BatchHeader) -> tuple[Record, int]:
    """The record at `pos`, and where it ends. Short varints, which most are, are decoded in place: doubled, and odd if
    negative."""
    try:
        size = data[pos]
        if size & 0x81:
            size, pos = read_varint(data, pos)
        else:
            size, pos = size >> 1, pos + 1
        stop = pos + size
        if size < 0 or stop > end:
            raise invalid("a record is longer than its batch")
        timestamp_delta = data[pos + 1]
        if timestamp_delta & 0x81:
            timestamp_delta, pos = read_varint(data, pos + 1, 10)
        else:
            timestamp_delta, pos = timestamp_delta >> 1, pos + 2
        offset_delta = data[pos]
        if offset_delta & 0x81:
            offset_delta, pos = read_varint(data, pos)
        else:
            offset_delta, pos = offset_delta >> 1, pos + 1
        key, pos = _read_bytes(data, pos, stop)
        value, pos = _read_bytes(data, pos, stop)
        if data[pos]:
            headers, pos = _read_headers(data, pos, stop)
        else:
            headers, pos = (), pos + 1
    except IndexError:
        raise invalid("a record is longer than its batch") from None
    if pos != stop:
        raise invalid("a record is not as long as it says")
    append_time = header.attributes & LOG_APPEND_TIME
    timestamp = header.max_timestamp if append_time else header.base_timestamp + timestamp_delta
    return _new_record(Record, (header.base_offset + offset_delta, timestamp, key, value, headers)), pos


_new_record: Callable[[type[Record], tuple[object, ...]], Record] = tuple.__new__


def _read_headers(data: bytes, pos: int, stop: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, pos = read_varint(data, pos)
    if not 0 <= count <= (stop - pos) // 2:
        raise invalid("a record counts more headers than it can hold")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, pos = _read_bytes(data, pos, stop)
        if name is None:
            raise invalid("a header has no key")
        content, pos = _read_bytes(data, pos, stop)
        headers.append((str(name, "utf-8", "surrogateescape"), content))
    return tuple(headers), pos
