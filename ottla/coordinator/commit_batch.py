"""OffsetCommit fast path: the batch of one commit, without an object for each offset.

All records of one topic differ in four fields only: the index in the batch, the partition, the offset with its leader
epoch, and the timestamp. So one record is encoded (`group_records`, `log_batch`) and split at these fields: the
template. A few records are joined from its pieces. For many records the template is repeated, and the fields are copied
into it column by column from the request, which has them in the same byte order (`wire.offset_commit`). The bytes are
the same as for records that are encoded one by one.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.coordinator import group_records, log_batch
from ottla.coordinator.group_records import NO_EPOCH, NO_TIMESTAMP, Committed, OffsetCommitKey, OffsetCommitValue
from ottla.runtime import Buffer
from ottla.wire.batch import BatchHeader
from ottla.wire.offset_commit import COUNT_MAX, PARTITION_BYTES, TopicOffsets

if TYPE_CHECKING:
    from ottla.coordinator.group_machine import GroupMachine

# The index of a record is a varint of its double: one byte below 64, two below 8192.
_NARROW: Final = 64
_INDEXES: Final = tuple(bytes((index << 1,)) for index in range(_NARROW))
_INDEX_COLUMN: Final = b"".join(_INDEXES)
_INDEX_LOW_COLUMN: Final = bytes(index << 1 & 0x7F | 0x80 for index in range(COUNT_MAX))
_INDEX_HIGH_COLUMN: Final = bytes(index >> 6 for index in range(COUNT_MAX))
assert COUNT_MAX <= 8192

_FEW: Final = 6
_OFFSET_BYTES: Final = 8
_OFFSET_AND_EPOCH_BYTES: Final = 12
_TIME_BYTES: Final = 8
_OFFSET_IN_VALUE: Final = 2
_TIME_IN_VALUE: Final = 15
_NO_METADATA_BYTES: Final = 2

_TIME = struct.Struct(">q")
_ENTRY = struct.Struct(">iqi2x")
_ENTRY_BEFORE_EPOCHS = struct.Struct(">iq2x")


class TopicCommit(NamedTuple):
    """A topic that exists, and the offsets that are committed for it."""

    name: str
    id: bytes
    offsets: TopicOffsets


class CommitBatch:
    """Implements `decision.PreEncoded`."""

    __slots__ = ("_group_id", "_now_ms", "_topics", "data", "header")

    def __init__(self, group_id: str, topics: list[TopicCommit], now_ms: int) -> None:
        self._group_id = group_id
        self._topics = topics
        self._now_ms = now_ms
        time = _TIME.pack(now_ms)
        parts: list[Buffer] = []
        index = 0
        for name, topic_id, offsets in topics:
            count = offsets.entry_count
            if count < _FEW and index + count <= _NARROW:
                parts += _by_pieces(_template(group_id, name, topic_id, 0), offsets, index, time)
            else:
                narrow = min(max(_NARROW - index, 0), count)
                if narrow:
                    parts.append(_by_columns(_template(group_id, name, topic_id, 0), offsets, 0, narrow, index, time))
                if narrow < count:
                    wide = _template(group_id, name, topic_id, _NARROW)
                    parts.append(_by_columns(wide, offsets, narrow, count, index + narrow, time))
            index += count
        self.data: bytearray
        self.header: BatchHeader
        self.data, self.header = log_batch.build_encoded(parts, index, now_ms)

    def replay_into(self, machine: GroupMachine) -> None:
        for name, topic_id, offsets in self._topics:
            machine.replay_offsets(self._group_id, name, _committed(offsets, topic_id, self._now_ms))


def _committed(offsets: TopicOffsets, topic_id: bytes, now_ms: int) -> dict[int, Committed]:
    """The values that decoding the records would give."""
    if offsets.has_epochs:
        return {
            index: (offset, epoch, "", now_ms, NO_TIMESTAMP, topic_id)
            for index, offset, epoch in _ENTRY.iter_unpack(offsets.entries)
        }
    return {
        index: (offset, NO_EPOCH, "", now_ms, NO_TIMESTAMP, topic_id)
        for index, offset in _ENTRY_BEFORE_EPOCHS.iter_unpack(offsets.entries)
    }


class _Template(NamedTuple):
    """A record without the fields that differ: between the pieces are the index in the batch, the partition, the offset
    (with the leader epoch, or `no_epoch` for versions that have none), and the timestamp."""

    to_index: bytes
    to_partition: bytes
    to_offset: bytes
    no_epoch: bytes
    to_time: bytes
    to_end: bytes


@lru_cache(maxsize=4096)
def _template(group_id: str, topic: str, topic_id: bytes, index: int) -> _Template:
    """Cached, for groups commit the same topics again and again. `index`: any one of the same encoded size."""
    key = group_records.encode_key(OffsetCommitKey(group_id, topic, 0))
    value = group_records.encode_value(OffsetCommitValue(0, NO_EPOCH, "", 0, NO_TIMESTAMP, topic_id))
    record = log_batch.record(index, key, value)
    index_at = record.index(0) + 2  # behind attributes and time, both 0; the length before them has no 0 in it
    value_at = len(record) - 1 - len(value)
    partition_at = value_at - 1 - PARTITION_BYTES
    assert len(value) < _NARROW, "so that its length takes one byte"
    offset_at = value_at + _OFFSET_IN_VALUE
    epoch_at, metadata_at = offset_at + _OFFSET_BYTES, offset_at + _OFFSET_AND_EPOCH_BYTES
    time_at = value_at + _TIME_IN_VALUE
    return _Template(
        to_index=record[:index_at],
        to_partition=record[index_at + (1 if index < _NARROW else 2) : partition_at],
        to_offset=record[partition_at + PARTITION_BYTES : offset_at],
        no_epoch=record[epoch_at:metadata_at],
        to_time=record[metadata_at:time_at],
        to_end=record[time_at + _TIME_BYTES :],
    )


def _by_pieces(template: _Template, offsets: TopicOffsets, index: int, time: bytes) -> list[Buffer]:
    to_index, to_partition, to_offset, no_epoch, to_time, to_end = template
    if not offsets.has_epochs:
        to_time = no_epoch + to_time
    entries, size = offsets.entries, offsets.entry_bytes
    pieces: list[Buffer] = []
    for at in range(0, len(entries), size):
        offset_at = at + PARTITION_BYTES
        partition, offset = entries[at:offset_at], entries[offset_at : at + size - _NO_METADATA_BYTES]
        pieces += (to_index, _INDEXES[index], to_partition, partition, to_offset, offset, to_time, time, to_end)
        index += 1
    return pieces


def _by_columns(template: _Template, offsets: TopicOffsets, first: int, end: int, index: int, time: bytes) -> bytearray:
    """The entries from `first` to `end`, all of which have an index of the same width."""
    to_index, to_partition, to_offset, no_epoch, to_time, to_end = template
    no_index = b"\0" if index < _NARROW else b"\0\0"
    no_partition, no_offset = bytes(PARTITION_BYTES), bytes(_OFFSET_BYTES)
    record = b"".join(
        (to_index, no_index, to_partition, no_partition, to_offset, no_offset, no_epoch, to_time, time, to_end)
    )
    count, step = end - first, len(record)
    rows = bytearray(record * count)
    at = len(to_index)
    if index < _NARROW:
        rows[at::step] = _INDEX_COLUMN[index : index + count]
    else:
        rows[at::step] = _INDEX_LOW_COLUMN[index : index + count]
        rows[at + 1 :: step] = _INDEX_HIGH_COLUMN[index : index + count]
    at += len(no_index) + len(to_partition)
    size = offsets.entry_bytes
    entries = offsets.entries[first * size : end * size]
    for column in range(PARTITION_BYTES):
        rows[at + column :: step] = entries[column::size]
    at += len(to_offset)  # the partition lies before both the offset in the request and what precedes it in the record
    for column in range(PARTITION_BYTES, size - _NO_METADATA_BYTES):
        rows[at + column :: step] = entries[column::size]
    return rows
