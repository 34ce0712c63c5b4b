"""Leaving records out of a batch, as compaction does: what stays is copied, not made anew.

A batch keeps its offsets, its producer and its sequence whatever it loses, and its own codec. Records count their
offsets and times from the batch header, so as long as its base offset and base timestamp stay, a kept record is the
same bytes as before. Only the delete horizon (KIP-534) moves the base: the header then carries, in place of the base
timestamp, the time from which tombstones and markers in the batch may go, and the records' own times count from there.

A batch that lost all its records may have to stay for what its header says; then it is a header alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ottla.wire.batch import (
    CODECS,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
)
from ottla.wire.compression import compress
from ottla.wire.records import lie, pack_varint, read_varint, seal

NULL = 1
"""The length of what is not there, -1, as it is written."""


class RecordSpan(NamedTuple):
    """Where a record lies in its batch's uncompressed bytes, and what compaction asks about it."""

    start: int
    rest: int
    """Behind its timestamp."""
    stop: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    has_value: bool


def record_spans(header: BatchHeader, data: bytes) -> Iterator[tuple[int, int, int, int, int, bytes | None, bool]]:
    """The records in a batch's uncompressed bytes, each as a `RecordSpan`, which is not made for the sake of speed."""
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
                raise lie("the offsets of the records do not rise within the batch")
            delta_before = offset_delta
            size, pos = read_varint(data, pos)
            key = None
            if size >= 0:
                key = data[pos : pos + size]
                pos += size
            if pos >= stop or stop > end:
                raise lie("a record is longer than its batch, or a key longer than its record")
            yield start, rest, stop, timestamp_delta, offset_delta, key, data[pos] != NULL
            pos = stop
    except IndexError:
        raise lie("a record is longer than its batch") from None
    if pos != end:
        raise lie("there are more records than the batch says")


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """From when on tombstones and markers in the batch may go; None: nobody has set that yet."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def keep(header: BatchHeader, data: bytes, kept: Sequence[RecordSpan], *, horizon_ms: int | None = None) -> bytes:
    """The batch with these of its records, under its own codec; with a delete horizon, if one is given."""
    assert kept
    max_timestamp = header.max_timestamp
    if not header.attributes & LOG_APPEND_TIME:
        max_timestamp = header.base_timestamp + max(place.timestamp_delta for place in kept)
    if horizon_ms is None:
        plain = b"".join([data[place.start : place.stop] for place in kept])
    else:
        shift = header.base_timestamp - horizon_ms
        plain = b"".join([_moved(data, place, shift) for place in kept])
        header = header._replace(
            attributes=header.attributes | DELETE_HORIZON,
            base_timestamp=horizon_ms,
        )
    header = header._replace(max_timestamp=max_timestamp, record_count=len(kept))
    return seal(header, compress(CODECS[header.codec], plain))


def _moved(data: bytes, place: RecordSpan, shift_ms: int) -> bytes:
    """The record with its time counted from another base."""
    body = b"\0" + pack_varint(place.timestamp_delta + shift_ms) + data[place.rest : place.stop]
    return pack_varint(len(body)) + body


def keep_header(header: BatchHeader) -> bytes:
    """The batch without any record: its place in the log and its producer's last sequence."""
    attributes = header.attributes & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL)
    return seal(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b"")
