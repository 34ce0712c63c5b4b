"""From batches to columns, with the names and types of Spark's Kafka connector.

Inconsistent records are refused as in `ottla.wire.records`. Positions only rise from field to field, so fields that end
exactly where their record ends lie within it. Headers are decoded only if their column is requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.runtime import Buffer
from ottla.wire.batch import BatchHeader
from ottla.wire.columns.varints import LONG_BYTES_MAX, Bytes, Ints, read_varints
from ottla.wire.records import invalid, read_varint, view_batch

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS: Final = pa.list_(pa.field("element", HEADER))

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
"""Of `timestampType`."""

_TYPES: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP,
    "timestampType": pa.int32(),
    "headers": HEADERS,
}

COLUMNS: Final = tuple(name for name in _TYPES if name != "headers")
"""The default columns: headers cost more, and few records have any."""

OFFSET_MAX: Final = 2**63 - 1
TIMESTAMP_MS_MAX: Final = (2**63 - 1) // 1000
"""The largest that fits into microseconds."""


def schema_of(columns: Iterable[str] = COLUMNS) -> pa.Schema:
    """The schema with these columns, in this order. ValueError for an unknown name."""
    names = list(columns)
    for name in names:
        if name not in _TYPES:
            raise ValueError(f"there is no column {name!r}; there are {', '.join(_TYPES)}")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"columns are named once each, at least one; not {', '.join(names) or 'none'}")
    return pa.schema([pa.field(name, _TYPES[name]) for name in names])


class _Fields(NamedTuple):
    """Of each record: its numbers, and the positions of key and value. A length of -1 is null."""

    offset: Ints
    timestamp: Ints
    log_append: npt.NDArray[np.bool_]
    key_at: Ints
    key_size: Ints
    value_at: Ints
    value_size: Ints
    header_count: Ints
    headers_at: Ints
    stop: Ints

    def part(self, start: int, stop: int) -> _Fields:
        """The records whose offsets lie in this range."""
        if not len(self.offset) or (start <= self.offset[0] and self.offset[-1] < stop):
            return self
        first, last = np.searchsorted(self.offset, (start, stop))
        return _Fields._make(array[first:last] for array in self)


def record_batch(
    batches: Sequence[Buffer],
    schema: pa.Schema,
    *,
    topic: str,
    partition: int,
    start: int = 0,
    stop: int = OFFSET_MAX,
    bytes_max: int,
) -> pa.RecordBatch:
    """The records of these batches of one partition, in their order, as far as their offsets lie in [start, stop).

    The schema is one of `schema_of`. Refused if one batch is damaged, or all together expand beyond `bytes_max`.
    """
    opened: list[tuple[BatchHeader, Buffer]] = []
    for batch in batches:
        opened.append(view_batch(batch, bytes_max))
        bytes_max -= len(opened[-1][1])
    plain = b"".join([data for _, data in opened])
    try:
        fields = _read(opened, plain).part(start, stop)
        columns = [_column(name, fields, plain, topic, partition) for name in schema.names]
    except IndexError:
        raise invalid("a record is longer than its batch") from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def walk(plain: bytes, pos: int, count: int, starts: list[int]) -> int:
    """Note where each of so many records begins; the end of the last one."""
    note = starts.append
    for _ in range(count):
        note(pos)
        size = plain[pos]
        if size < 0x80:
            pos += 1 + (size >> 1)
        elif (second := plain[pos + 1]) < 0x80:
            pos += 2 + ((size & 0x7F | second << 7) >> 1)
        else:
            size, pos = read_varint(plain, pos)
            if size < 0:
                raise invalid("a length in a record is negative")
            pos += size
    return pos


def _read(opened: Sequence[tuple[BatchHeader, Buffer]], plain: bytes) -> _Fields:
    starts: list[int] = []
    end = 0
    for header, records in opened:
        limit = end + len(records)
        end = walk(plain, end, header.record_count, starts)
        if end != limit:
            raise invalid("the records are not as long as the batch")
    starts.append(end)
    bounds = np.array(starts, np.int64)
    data = np.frombuffer(plain, np.uint8)
    stop = bounds[1:]
    size, at = read_varints(data, bounds[:-1])
    if ((size < 0) | (at + size != stop)).any():
        raise invalid("a length in a record is negative")
    timestamp_delta, at = read_varints(data, at + 1, LONG_BYTES_MAX)
    offset_delta, at = read_varints(data, at)
    key_size, key_at = read_varints(data, at)
    value_size, value_at = read_varints(data, _behind(key_at, key_size))
    header_count, headers_at = read_varints(data, _behind(value_at, value_size))
    if not np.array_equal(headers_at, stop):
        left = stop - headers_at
        # What is left for headers: two bytes for each at least, and nothing where there are none.
        if ((header_count < 0) | (left < 2 * header_count) | ((header_count == 0) & (left != 0))).any():
            raise invalid("a record is not as long as it says")
    elif header_count.any():
        raise invalid("a record counts more headers than it can hold")
    headers = [header for header, _ in opened]
    offset = _offsets(headers, offset_delta)
    timestamp, log_append = _timestamps(headers, timestamp_delta)
    return _Fields(
        offset, timestamp, log_append, key_at, key_size, value_at, value_size, header_count, headers_at, stop
    )


def _behind(at: Ints, size: Ints) -> Ints:
    lowest = int(size.min(initial=0))
    if lowest < -1:
        raise invalid("a length in a record is negative")
    return at + size if lowest == 0 else at + np.maximum(size, 0)


def _each(headers: Sequence[BatchHeader], values: Sequence[int]) -> Ints:
    """A value of each batch, repeated for its records."""
    return np.repeat(np.array(values, np.int64), [header.record_count for header in headers])


def _offsets(headers: Sequence[BatchHeader], delta: Ints) -> Ints:
    offset = _each(headers, [header.base_offset for header in headers]) + delta
    last = _each(headers, [header.last_offset_delta for header in headers])
    if ((delta < 0) | (delta > last)).any() or (offset[1:] <= offset[:-1]).any():
        raise invalid("the offsets of the records do not rise within the batch")
    return offset


def _timestamps(headers: Sequence[BatchHeader], delta: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    timestamp = _each(headers, [header.base_timestamp for header in headers]) + delta
    if not any(header.is_log_append_time for header in headers):
        return timestamp, np.zeros(len(delta), np.bool_)
    log_append = _each(headers, [header.is_log_append_time for header in headers]).astype(np.bool_)
    appended = _each(headers, [header.max_timestamp for header in headers])
    return np.where(log_append, appended, timestamp), log_append


def _column(name: str, fields: _Fields, plain: bytes, topic: str, partition: int) -> pa.Array:
    count = len(fields.offset)
    if name == "key":
        return _binary(plain, fields.key_at, fields.key_size)
    if name == "value":
        return _binary(plain, fields.value_at, fields.value_size)
    if name == "topic":
        return _same(topic, max(count, 1).bit_length()).slice(0, count)
    if name == "partition":
        return pa.array(np.full(count, partition, np.int32))
    if name == "offset":
        return pa.array(fields.offset)
    if name == "timestamp":
        micros = np.clip(fields.timestamp, -TIMESTAMP_MS_MAX, TIMESTAMP_MS_MAX) * 1000
        return pa.Array.from_buffers(TIMESTAMP, count, [None, pa.py_buffer(micros)])
    if name == "timestampType":
        return pa.array(np.where(fields.log_append, LOG_APPEND_TIME, CREATE_TIME).astype(np.int32))
    assert name == "headers", "schema_of knows all columns"
    return _headers(plain, fields)


@lru_cache(maxsize=32)
def _same(text: str, bits: int) -> pa.Array:
    """The same text repeated; columns are slices of one such array."""
    return pa.repeat(pa.scalar(text, pa.string()), 1 << bits)


def _binary(plain: bytes, at: Ints, size: Ints) -> pa.Array:
    """The bytes at these positions. The whole buffer is one Arrow array, of wanted bytes and bytes between them in
    turn; every other element of it is taken."""
    count = len(at)
    bounds = np.zeros(2 * count + 1, np.int32)
    bounds[0:-1:2] = at
    bounds[1::2] = _behind(at, size)
    if count:
        bounds[-1] = bounds[-2]
    everything = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(plain)])
    missing = size < 0
    return everything.take(pa.array(np.arange(0, 2 * count, 2), mask=missing if missing.any() else None))


def _headers(plain: bytes, fields: _Fields) -> pa.Array:
    """Round by round: the first header of every record that has one, then the second, and so on."""
    data: Bytes = np.frombuffer(plain, np.uint8)
    counts = fields.header_count
    owner = np.flatnonzero(counts)
    at, left = fields.headers_at[owner], counts[owner]
    iterations: list[tuple[Ints, ...]] = []
    while owner.size:
        key_size, key_at = read_varints(data, at)
        if (key_size < 0).any():
            raise invalid("a header has no key")
        value_size, value_at = read_varints(data, key_at + key_size)
        at = _behind(value_at, value_size)
        iterations.append((owner, key_at, key_size, value_at, value_size))
        left = left - 1
        more = left > 0
        if (at[~more] != fields.stop[owner[~more]]).any():
            raise invalid("a record is not as long as it says")
        owner, at, left = owner[more], at[more], left[more]
    if not iterations:
        return pa.nulls(len(counts), HEADERS)
    owners, key_at, key_size, value_at, value_size = (np.concatenate(each) for each in zip(*iterations, strict=True))
    order = np.argsort(owners, kind="stable")
    names = _text(_binary(plain, key_at[order], key_size[order]))
    contents = _binary(plain, value_at[order], value_size[order])
    entries = pa.StructArray.from_arrays([names, contents], fields=list(HEADER))
    bounds = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=bounds[1:])
    # Null for a record without headers, as in Spark's connector.
    return pa.ListArray.from_arrays(pa.array(bounds), entries, type=HEADERS, mask=pa.array(counts == 0))


def _text(names: pa.Array) -> pa.Array:
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:  # not all of it is UTF-8: rare enough to go name by name
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()], pa.string())
