"""Record filter of compaction: removes records from a batch and copies the others unchanged.

A batch keeps its offsets, producer, sequence and codec. Records have offsets and timestamps relative to the batch
header, so while base offset and base timestamp stay, the bytes of a kept record stay the same. Only the delete horizon
(KIP-534) moves the base: the header then carries, in span of the base timestamp, the time from which tombstones and
markers of the batch may be removed, and the timestamps of its records are relative to that.

A batch without records may have to stay for the sequence or epoch in its header: then only the header is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ottla.wire.batch import CODECS, CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, NO_TIMESTAMP, TRANSACTIONAL, BatchHeader
from ottla.wire.compression import compress
from ottla.wire.records import invalid, pack_varint, read_varint, seal

NULL = 1
"""The length -1 of a null, as a zigzag varint."""


class RecordSpan(NamedTuple):
    """A record in the uncompressed bytes of its batch: its position, and what compaction needs of it."""

    start: int
    rest: int
    """The position behind the timestamp."""
    stop: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    has_value: bool


def record_spans(header: BatchHeader, data: bytes) -> Iterator[tuple[int, int, int, int, int, bytes | None, bool]]:
    """The fields of a `RecordSpan` for each record; the object itself is not made, for speed."""
    pos, end = 0, len(data)
    delta_before, delta_max = -1, header.last_offset_delta
    try:
        for _ in range(header.record_count):
            start = pos
            size, pos = read_varint(data, pos)
            stop = pos + size
            timestamp_delta, rest = read_varint(data, pos + 1, 10)
            offset_delta, pos = read_varint(data, rest)
            if not delta_before < offset_delta <= delta_max:
                raise invalid("the offsets of the records do not rise within the batch")
            delta_before = offset_delta
            size, pos = read_varint(data, pos)
            key = None
            if size >= 0:
                key = data[pos : pos + size]
                pos += size
            if pos >= stop or stop > end:
                raise invalid("a record is longer than its batch, or a key longer than its record")
            yield start, rest, stop, timestamp_delta, offset_delta, key, data[pos] != NULL
            pos = stop
    except IndexError:
        raise invalid("a record is longer than its batch") from None
    if pos != end:
        raise invalid("there are more records than the batch says")


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """From when on tombstones and markers of the batch may be removed; None: not set yet."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def keep(header: BatchHeader, data: bytes, kept: Sequence[RecordSpan], *, horizon_ms: int | None = None) -> bytes:
    """The batch with these of its records, under its own codec; with a delete horizon, if one is given."""
    assert kept
    max_timestamp = header.max_timestamp
    if not header.attributes & LOG_APPEND_TIME:
        max_timestamp = header.base_timestamp + max(span.timestamp_delta for span in kept)
    if horizon_ms is None:
        plain = b"".join([data[span.start : span.stop] for span in kept])
    else:
        shift = header.base_timestamp - horizon_ms
        plain = b"".join([_moved(data, span, shift) for span in kept])
        header = header._replace(attributes=header.attributes | DELETE_HORIZON, base_timestamp=horizon_ms)
    header = header._replace(max_timestamp=max_timestamp, record_count=len(kept))
    return seal(header, compress(CODECS[header.codec], plain))


def _moved(data: bytes, span: RecordSpan, shift_ms: int) -> bytes:
    """The record with its timestamp relative to another base."""
    body = b"\0" + pack_varint(span.timestamp_delta + shift_ms) + data[span.rest : span.stop]
    return pack_varint(len(body)) + body


def keep_header(header: BatchHeader) -> bytes:
    """The batch without records: its offsets and its producer's last sequence."""
    attributes = header.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL)
    return seal(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b"")
