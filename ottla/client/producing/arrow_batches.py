"""Arrow columns to record batches: a partition for each row, and the rows of a partition as batches.

Keys go where every client of Kafka sends them, so all keys of a column are hashed, word by word and all rows at once.
Needs numpy and pyarrow, so it is imported only when columns are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ottla.client.core.metadata import TopicMetadata
from ottla.client.errors import BadSetting, ClientError
from ottla.client.producing.partitioners import partition_of_key
from ottla.client.values import TopicPartition
from ottla.errors import ErrorCode
from ottla.wire.columns.varints import Ints
from ottla.wire.columns.writing import ROWS_BYTES_MAX, Rows, RowsBatch, bounds_of, cut

BATCH_BYTES: Final = 512 * 1024
"""The least size of a batch of columns, however small batch_size is: they do not wait to fill."""
ROWS_MAX: Final = 1 << 17

_MULTIPLIER: Final = np.uint32(0x5BD1E995)
_SEED: Final = np.uint32(0x9747B28C)
_FIRST_BYTES: Final = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)


@dataclass(frozen=True, slots=True)
class Names:
    """Which columns of a table are what; None: there is none."""

    value: str | None = "value"
    key: str | None = None
    headers: str | None = None
    partition: str | None = None
    timestamp: str | None = None

    def check(self, schema: pa.Schema) -> None:
        for name in (self.value, self.key, self.headers, self.partition, self.timestamp):
            if name is not None and name not in schema.names:
                raise BadSetting(f"there is no column {name!r}; there are {', '.join(schema.names)}")


class RowPartitioner:
    """The partition of each row; counters continue from table to table."""

    def __init__(self, how: str, seed: int) -> None:
        self._how = how
        self._counter = seed & 0xFFFF
        self._random = np.random.default_rng(seed)

    def partitions(self, rows: Rows, topic: TopicMetadata, sizes: Ints, batch_bytes: int) -> Ints:
        if self._how not in ("sticky", "round_robin", "random", "hash"):
            raise BadSetting(f"partitioner {self._how} wants records one by one; name a column with partitions instead")
        count = len(topic.leaders)
        if rows.key is None:
            return self._without_key(topic, sizes, batch_bytes)
        chosen: Ints = ((murmur2(rows.key) & np.uint32(0x7FFFFFFF)) % np.uint32(count)).astype(np.int64)
        if rows.key.null_count:
            keyless = rows.key.is_null().to_numpy(zero_copy_only=False)
            chosen[keyless] = self._without_key(topic, sizes[keyless], batch_bytes)
        return chosen

    def _without_key(self, topic: TopicMetadata, sizes: Ints, batch_bytes: int) -> Ints:
        choice: Ints = np.array(topic.available or sorted(topic.leaders), np.int64)
        if self._how == "hash":
            return np.full(len(sizes), partition_of_key(b"", len(topic.leaders)), np.int64)
        if self._how == "random":
            return choice[self._random.integers(len(choice), size=len(sizes))]
        if self._how == "round_robin":
            turns: Ints = np.arange(len(sizes))
        else:  # as much as fills a batch to one partition, then to the next
            turns = (np.cumsum(sizes) - 1) // batch_bytes
        turns = turns + self._counter
        if len(turns):
            self._counter = int(turns[-1]) + 1
        return choice[turns % len(choice)]


def murmur2(keys: pa.Array) -> Any:
    """Of each key, unsigned; of a null it is anything."""
    bounds = bounds_of(keys).astype(np.int64)
    data = np.frombuffer(keys.buffers()[2] or b"", np.uint8)[bounds[0] : bounds[-1]]
    padded = np.concatenate((data, np.zeros(4, np.uint8)))
    word_at = np.ndarray(len(data) + 1, "<u4", padded, strides=(1,))  # at any byte, also behind the last one
    start, size = bounds[:-1] - bounds[0], np.diff(bounds)
    words = size >> 2
    value = _SEED ^ size.astype(np.uint32)
    everyone = int(words.min()) if len(keys) else 0
    for at in range(everyone):
        value = value * _MULTIPLIER ^ _mixed(word_at[start + 4 * at])
    rows = np.flatnonzero(words > everyone)
    for at in range(everyone, int(words.max(initial=0))):
        rows = rows[words[rows] > at]
        value[rows] = value[rows] * _MULTIPLIER ^ _mixed(word_at[start[rows] + 4 * at])
    left = size & 3
    value = np.where(left, (value ^ (word_at[start + 4 * words] & _FIRST_BYTES[left])) * _MULTIPLIER, value)
    value = (value ^ (value >> np.uint32(13))) * _MULTIPLIER
    return value ^ (value >> np.uint32(15))


def _mixed(word: Any) -> Any:
    word = word * _MULTIPLIER
    return (word ^ (word >> np.uint32(24))) * _MULTIPLIER


@dataclass(frozen=True, slots=True)
class RowsContent:
    """One batch, with the rows it was made of in case it has to be split."""

    rows: Rows
    batch: RowsBatch

    @property
    def count(self) -> int:
        return self.batch.count

    @property
    def size(self) -> int:
        return len(self.batch.plain)

    @property
    def base_timestamp(self) -> int:
        return self.batch.base_timestamp

    def encode(self, **how: Any) -> bytes:
        return self.batch.encode(**how)

    def halves(self) -> Sequence[RowsContent]:
        middle = self.count // 2
        parts = [self.rows.part(0, middle), self.rows.part(middle, self.count)]
        return [RowsContent(part, next(part.batches([0, len(part)]))) for part in parts]


def contents(
    table: pa.RecordBatch, names: Names, topic: TopicMetadata, deal: RowPartitioner, *, now_ms: int, batch_bytes: int
) -> Iterator[tuple[TopicPartition, RowsContent]]:
    """All rows in batches for their partitions. Rows of one partition keep their order."""
    for some in _parts(table):
        rows = _rows(some, names, now_ms)
        sizes = rows.sizes()
        chosen = _given(some, names, topic, partial(deal.partitions, rows, topic, sizes, batch_bytes))
        order = np.argsort(chosen.astype(np.uint16) if len(topic.leaders) <= 1 << 16 else chosen, kind="stable")
        if (np.diff(order) != 1).any():
            rows, sizes, chosen = rows.take(order), sizes[order], chosen[order]
        edges = (np.flatnonzero(np.diff(chosen)) + 1).tolist()
        bounds = cut(sizes, batch_bytes, edges)
        for batch in rows.batches(bounds):
            tp = TopicPartition(topic.name, int(chosen[batch.first]))
            yield tp, RowsContent(rows.part(batch.first, batch.first + batch.count), batch)


def _parts(table: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """As many rows at once as Arrow can join, and as fit a cache."""
    rows = len(table)
    if rows:
        fit = max(1, rows * ROWS_BYTES_MAX // max(1, 2 * table.nbytes))
        step = min(ROWS_MAX, fit)
        for start in range(0, rows, step):
            yield table.slice(start, step)


def _rows(part: pa.RecordBatch, names: Names, now_ms: int) -> Rows:
    def column(name: str | None) -> pa.Array | None:
        return None if name is None else part.column(name)

    try:
        return Rows(
            column(names.value),
            key=column(names.key),
            headers=column(names.headers),
            timestamps=_times(column(names.timestamp), len(part), now_ms),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:
        raise ClientError(f"keys and values are bytes or text: {problem}", code=ErrorCode.invalid_record) from None


def _times(column: pa.Array | None, count: int, now_ms: int) -> Ints:
    if column is None:
        return np.full(count, now_ms, np.int64)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    times: Ints = column.cast(pa.int64()).fill_null(now_ms).to_numpy()
    return times


def _given(part: pa.RecordBatch, names: Names, topic: TopicMetadata, dealt: Callable[[], Ints]) -> Ints:
    """The partitions that a column names, where it does."""
    if names.partition is None:
        return dealt()
    column = part.column(names.partition).cast(pa.int64())
    if column.null_count:
        chosen: Ints = np.where(
            column.is_null().to_numpy(zero_copy_only=False), dealt(), column.fill_null(0).to_numpy()
        )
    else:
        chosen = column.to_numpy()
    unknown = ~np.isin(chosen, np.array(sorted(topic.leaders)))
    if unknown.any():
        first = int(chosen[unknown][0])
        raise ClientError(f"topic {topic.name} has no partition {first}", code=ErrorCode.unknown_topic_or_partition)
    return chosen
