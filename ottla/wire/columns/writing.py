"""From columns to batches: all records are encoded at once, and then split into batches.

A record is a few varints, its key, a varint, its value, its headers. numpy encodes the varints of all records, and
Arrow takes them row by row with keys and values: the bytes of that column are the records one after another. Rows that
were brought into another order (`Rows.take`) are copied there, and not before. Offset and timestamp of a record are
relative to its batch, so the batches are planned before (`cut`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.wire.batch import CODECS, HEADER_BYTES, MAGIC, NO_PRODUCER, TRANSACTIONAL, BatchHeader
from ottla.wire.columns.varints import Ints, Varints, packed
from ottla.wire.compression import compress
from ottla.wire.records import seal

NUMBERS_BYTES_MAX: Final = 22
"""The largest record without key, value and headers: five varints and the attributes. Timestamps more than 34 years
apart in one batch may take five more."""
ROWS_BYTES_MAX: Final = 2**30
"""How much is joined at once: an Arrow column of bytes holds twice that."""


@dataclass(frozen=True, slots=True)
class RowsBatch:
    """The encoded records of one batch, before compression and without a header."""

    first: int
    """Its first row."""
    count: int
    base_timestamp: int
    max_timestamp: int
    plain: memoryview

    def encode(
        self,
        *,
        codec: str = "none",
        level: int | None = None,
        base_offset: int = 0,
        producer_id: int = NO_PRODUCER,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> bytes:
        header = BatchHeader(
            base_offset=base_offset,
            length=0,
            leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=CODECS.index(codec) | (TRANSACTIONAL if transactional else 0),
            last_offset_delta=self.count - 1,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=self.count,
        )
        return seal(header, self.plain if codec == "none" else compress(codec, self.plain, level))


class Rows:
    """Records to be written, as columns of equal length: bytes or text, and times in ms."""

    def __init__(
        self, value: pa.Array | None, *, key: pa.Array | None = None, headers: pa.Array | None = None, timestamps: Ints
    ) -> None:
        self.key = None if key is None else _binary(key)
        self.value = None if value is None else _binary(value)
        self.headers = None if headers is None or headers.null_count == len(headers) else headers
        self.timestamps = timestamps
        self._order: Ints | None = None  # which row of the columns each is, if not the one at its own place

    def __len__(self) -> int:
        return len(self.timestamps)

    def part(self, start: int, stop: int) -> Rows:
        """Some of the rows; nothing is copied."""
        part = Rows.__new__(Rows)
        part.key, part.value, part.headers, part._order = self.key, self.value, self.headers, None
        if self._order is not None:
            part._order = self._order[start:stop]
        else:
            part.key, part.value, part.headers = (
                None if column is None else column.slice(start, stop - start)
                for column in (self.key, self.value, self.headers)
            )
        part.timestamps = self.timestamps[start:stop]
        return part

    def take(self, order: Ints) -> Rows:
        """The rows in another order; no key, value or header is copied."""
        taken = Rows.__new__(Rows)
        taken.key, taken.value, taken.headers = self.key, self.value, self.headers
        taken.timestamps = self.timestamps[order]
        taken._order = order if self._order is None else self._order[order]
        return taken

    def sizes(self) -> Ints:
        """An upper bound for the size of each record."""
        size = np.full(len(self), NUMBERS_BYTES_MAX, np.int64)
        for column in (self.key, self.value):
            if column is not None:
                size += np.maximum(self._lengths(column), 0)
        if self.headers is not None:
            size += self._lengths(self._tails())
        return size

    def batches(self, bounds: Sequence[int]) -> Iterator[RowsBatch]:
        """One batch from each bound to the next; the last is the end."""
        starts: Ints = np.array(bounds[:-1], np.int64)
        counts: Ints = np.array(bounds[1:], np.int64) - starts
        assert (counts > 0).all(), "a batch has records"
        base = self.timestamps[starts]
        highest = np.maximum.reduceat(self.timestamps, starts)
        time_deltas = self.timestamps - np.repeat(base, counts)
        data, ends = self._joined(time_deltas, np.arange(len(self)) - np.repeat(starts, counts))
        for at, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
            plain = data[ends[start] : ends[start + count]]
            yield RowsBatch(start, count, int(base[at]), int(highest[at]), plain)

    def _joined(self, timestamp_delta: Ints, offset_delta: Ints) -> tuple[memoryview, Any]:
        """All records one after another, and where each begins; the last is the end."""
        count = len(self)
        key_size = np.full(count, -1) if self.key is None else self._lengths(self.key)
        value_size = np.full(count, -1) if self.value is None else self._lengths(self.value)
        time, offset, key, value = map(Varints, (timestamp_delta, offset_delta, key_size, value_size))
        body = 1 + time.sizes + offset.sizes + key.sizes + value.sizes
        body += np.maximum(key_size, 0) + np.maximum(value_size, 0)
        if self.headers is None:
            tails = pa.array([b"\0"])
            body += 1
        else:
            tails = self._tails()
            body += self._lengths(tails)
        numbers: list[Varints | int] = [Varints(body), 0, time, offset, key]
        here, there = np.arange(count), np.arange(count) if self._order is None else self._order
        parts: list[tuple[pa.Array, Any]]
        if self.key is None:
            parts = [(_cut_up(*packed([*numbers, value])), here)]
        else:
            parts = [(_cut_up(*packed(numbers)), here), (self.key, there), (_cut_up(*packed([value])), here)]
        if self.value is not None:
            parts.append((self.value, there))
        parts.append((tails, 0 if self.headers is None else there))
        return _interleaved(parts, count)

    def _lengths(self, column: pa.Array) -> Ints:
        lengths = _lengths(column)
        return lengths if self._order is None else lengths[self._order]

    def _tails(self) -> pa.Array:
        """The end of each record: the number of headers, and the headers."""
        assert self.headers is not None
        bounds = _list_bounds(self.headers)
        entries = self.headers.values.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))
        names = _binary(pc.struct_field(entries, "key"))
        contents = _binary(pc.struct_field(entries, "value"))
        if names.null_count:
            raise ValueError("a header needs a key")
        name_sizes = _cut_up(*packed([Varints(_lengths(names))]))
        content_sizes = _cut_up(*packed([Varints(_lengths(contents))]))
        flat = pc.binary_join_element_wise(
            name_sizes, names, content_sizes, contents, b"", null_handling="replace", null_replacement=b""
        )
        ends = bounds_of(flat)[bounds - bounds[0]]
        blobs = pa.Array.from_buffers(pa.binary(), len(self.headers), [None, pa.py_buffer(ends), flat.buffers()[2]])
        counts = _cut_up(*packed([Varints(np.diff(bounds.astype(np.int64)))]))
        return pc.binary_join_element_wise(counts, blobs, b"")


def cut(sizes: Ints, bytes_max: int, edges: Sequence[int] = ()) -> list[int]:
    """Bounds of batches of at most so many bytes, each with one row at least. Nothing goes across an edge."""
    ends = np.cumsum(sizes)
    bounds = [0]
    for edge in (*edges, len(sizes)):
        while (start := bounds[-1]) < edge:
            before = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, before + bytes_max - HEADER_BYTES, side="right"))
            bounds.append(min(max(stop, start + 1), edge))
    return bounds


def _binary(column: pa.Array) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column if column.type == pa.binary() else column.cast(pa.binary())


def bounds_of(column: pa.Array) -> Any:
    """Where each element begins in the column's bytes, and where the last one ends."""
    if not len(column):
        return np.zeros(1, np.int32)
    return np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]


def _list_bounds(column: pa.Array) -> Any:
    """The same of lists; a null is an empty one (and may hide elements, so that it is not enough to look there)."""
    bounds = bounds_of(column)
    if column.null_count:
        hidden = (np.diff(bounds) > 0) & column.is_null().to_numpy(zero_copy_only=False)
        if hidden.any():
            raise ValueError("a list of headers that is null has elements")
    return bounds


def _lengths(column: pa.Array) -> Ints:
    lengths: Ints = np.diff(bounds_of(column)).astype(np.int64)
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
    return lengths


def _interleaved(parts: Sequence[tuple[pa.Array, Any]], count: int) -> tuple[memoryview, Any]:
    """Row by row one element of each column, by its index there: their bytes, and where each row begins."""
    index = np.empty((count, len(parts)), np.int64)
    before = 0
    for at, (column, rows) in enumerate(parts):
        np.add(rows, before, out=index[:, at])
        before += len(column)
    joined = pa.concat_arrays([column for column, _ in parts]).take(pa.array(index.reshape(-1)))
    return memoryview(joined.buffers()[2] or b""), bounds_of(joined)[:: len(parts)]


def _cut_up(data: Any, lengths: Ints) -> pa.Array:
    """Bytes as a column of pieces of these lengths."""
    bounds = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=bounds[1:])
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(bounds), pa.py_buffer(data)])
