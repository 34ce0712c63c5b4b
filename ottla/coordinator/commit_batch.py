"""A bare commit as one batch, without an object for every offset in it.

All records of one topic are alike but for four things: their place in the batch, the partition, the offset with its
leader epoch, and the time. So one is made as any other is (`records`, `log_batch`) and taken apart there: the mould.
Few records are put together piece by piece; many are repeated as they are, and what differs is copied into them in
columns, from the request, where it stands in the same byte order (`wire.offset_commit`). What is appended is byte for
byte what the same commit would be if its records were made one by one.
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

# The place of a record is a varint of its double: one byte below 64, two below 8192.
_NARROW: Final = 64
_PLACES: Final = tuple(bytes((place << 1,)) for place in range(_NARROW))
_PLACE_COLUMN: Final = b"".join(_PLACES)
_PLACE_LOW_COLUMN: Final = bytes(place << 1 & 0x7F | 0x80 for place in range(COUNT_MAX))
_PLACE_HIGH_COLUMN: Final = bytes(place >> 6 for place in range(COUNT_MAX))
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


class Known(NamedTuple):
    """A topic that is there, and what is committed of it."""

    name: str
    id: bytes
    offsets: TopicOffsets


class CommitBatch:
    """What `decision.Sealed` asks for."""

    __slots__ = ("_group_id", "_now_ms", "_topics", "data", "header")

    def __init__(self, group_id: str, topics: list[Known], now_ms: int) -> None:
        self._group_id = group_id
        self._topics = topics
        self._now_ms = now_ms
        time = _TIME.pack(now_ms)
        parts: list[Buffer] = []
        place = 0
        for name, topic_id, offsets in topics:
            count = offsets.entry_count
            if count < _FEW and place + count <= _NARROW:
                parts += _by_pieces(_mould(group_id, name, topic_id, 0), offsets, place, time)
            else:
                narrow = min(max(_NARROW - place, 0), count)
                if narrow:
                    parts.append(_by_columns(_mould(group_id, name, topic_id, 0), offsets, 0, narrow, place, time))
                if narrow < count:
                    wide = _mould(group_id, name, topic_id, _NARROW)
                    parts.append(_by_columns(wide, offsets, narrow, count, place + narrow, time))
            place += count
        self.data: bytearray
        self.header: BatchHeader
        self.data, self.header = log_batch.seal(parts, place, now_ms)

    def replay_into(self, machine: GroupMachine) -> None:
        for name, topic_id, offsets in self._topics:
            machine.replay_offsets(self._group_id, name, _committed(offsets, topic_id, self._now_ms))


def _committed(offsets: TopicOffsets, topic_id: bytes, now_ms: int) -> dict[int, Committed]:
    """What decoding the records would give."""
    if offsets.tells_epochs:
        return {
            index: (offset, epoch, "", now_ms, NO_TIMESTAMP, topic_id)
            for index, offset, epoch in _ENTRY.iter_unpack(offsets.entries)
        }
    return {
        index: (offset, NO_EPOCH, "", now_ms, NO_TIMESTAMP, topic_id)
        for index, offset in _ENTRY_BEFORE_EPOCHS.iter_unpack(offsets.entries)
    }


class _Mould(NamedTuple):
    """A record without what differs. Between two pieces stand its place in the batch, the partition, the offset (and
    then the leader epoch, which is among the pieces for those who do not tell it), and the time."""

    to_place: bytes
    to_partition: bytes
    to_offset: bytes
    no_epoch: bytes
    to_time: bytes
    to_end: bytes


@lru_cache(maxsize=4096)
def _mould(group_id: str, topic: str, topic_id: bytes, place: int) -> _Mould:
    """Groups commit the same topics again and again. `place` is one for all that take as many bytes."""
    key = group_records.encode_key(OffsetCommitKey(group_id, topic, 0))
    value = group_records.encode_value(OffsetCommitValue(0, NO_EPOCH, "", 0, NO_TIMESTAMP, topic_id))
    record = log_batch.record(place, key, value)
    place_at = record.index(0) + 2  # behind attributes and time, both 0; the length before them has no 0 in it
    value_at = len(record) - 1 - len(value)
    partition_at = value_at - 1 - PARTITION_BYTES
    assert len(value) < _NARROW, "so that its length takes one byte"
    offset_at = value_at + _OFFSET_IN_VALUE
    epoch_at, metadata_at = offset_at + _OFFSET_BYTES, offset_at + _OFFSET_AND_EPOCH_BYTES
    time_at = value_at + _TIME_IN_VALUE
    return _Mould(
        to_place=record[:place_at],
        to_partition=record[place_at + (1 if place < _NARROW else 2) : partition_at],
        to_offset=record[partition_at + PARTITION_BYTES : offset_at],
        no_epoch=record[epoch_at:metadata_at],
        to_time=record[metadata_at:time_at],
        to_end=record[time_at + _TIME_BYTES :],
    )


def _by_pieces(mould: _Mould, offsets: TopicOffsets, place: int, time: bytes) -> list[Buffer]:
    to_place, to_partition, to_offset, no_epoch, to_time, to_end = mould
    if not offsets.tells_epochs:
        to_time = no_epoch + to_time
    entries, size = offsets.entries, offsets.entry_bytes
    pieces: list[Buffer] = []
    for at in range(0, len(entries), size):
        offset_at = at + PARTITION_BYTES
        partition, told = entries[at:offset_at], entries[offset_at : at + size - _NO_METADATA_BYTES]
        pieces += (to_place, _PLACES[place], to_partition, partition, to_offset, told, to_time, time, to_end)
        place += 1
    return pieces


def _by_columns(mould: _Mould, offsets: TopicOffsets, first: int, end: int, place: int, time: bytes) -> bytearray:
    """The entries from `first` to `end`, all of which have a place of the same width."""
    to_place, to_partition, to_offset, no_epoch, to_time, to_end = mould
    no_place = b"\0" if place < _NARROW else b"\0\0"
    no_partition, no_offset = bytes(PARTITION_BYTES), bytes(_OFFSET_BYTES)
    record = b"".join(
        (to_place, no_place, to_partition, no_partition, to_offset, no_offset, no_epoch, to_time, time, to_end)
    )
    count, step = end - first, len(record)
    rows = bytearray(record * count)
    at = len(to_place)
    if place < _NARROW:
        rows[at::step] = _PLACE_COLUMN[place : place + count]
    else:
        rows[at::step] = _PLACE_LOW_COLUMN[place : place + count]
        rows[at + 1 :: step] = _PLACE_HIGH_COLUMN[place : place + count]
    at += len(no_place) + len(to_partition)
    size = offsets.entry_bytes
    entries = offsets.entries[first * size : end * size]
    for column in range(PARTITION_BYTES):
        rows[at + column :: step] = entries[column::size]
    at += len(to_offset)  # the partition lies before both the offset in the request and what precedes it in the record
    for column in range(PARTITION_BYTES, size - _NO_METADATA_BYTES):
        rows[at + column :: step] = entries[column::size]
    return rows
