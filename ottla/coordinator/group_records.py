"""Keys and values of `__consumer_offsets` in Kafka's formats: Kafka's tools read our log, and we read Kafka's.

A key begins with two bytes for the type of record, a value with two bytes for its version. Keys never change (new types
are added, never new versions); values evolve by tagged fields. Unknown types (share groups and others) are skipped when
a log is loaded. The committed offset is by far the most frequent record and is coded by hand; the other values use the
compiled codecs of `wire.messages` (`group_record_values`).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from ottla.coordinator.group_record_values import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataValue,
)
from ottla.errors import BadFrame, Fault
from ottla.wire import messages
from ottla.wire.primitives import pack_uvarint, uvarint
from ottla.wire.tree import ZERO_UUID, Message

NO_EPOCH = -1
NO_TIMESTAMP = -1


# Keys. Two kinds of key with the same fields compare equal: never mix them in one dictionary.


class OffsetCommitKey(NamedTuple):
    group_id: str
    topic: str
    partition: int


class GroupMetadataKey(NamedTuple):
    """A group of the classic protocol."""

    group_id: str


class ConsumerGroupMetadataKey(NamedTuple):
    group_id: str


class ConsumerGroupPartitionMetadataKey(NamedTuple):
    """Not written since Kafka 4.1, which keeps a hash in the group's metadata; read, and deleted by a tombstone."""

    group_id: str


class ConsumerGroupMemberMetadataKey(NamedTuple):
    group_id: str
    member_id: str


class ConsumerGroupTargetAssignmentMetadataKey(NamedTuple):
    group_id: str


class ConsumerGroupTargetAssignmentMemberKey(NamedTuple):
    group_id: str
    member_id: str


class ConsumerGroupCurrentMemberAssignmentKey(NamedTuple):
    group_id: str
    member_id: str


class ConsumerGroupRegularExpressionKey(NamedTuple):
    group_id: str
    regular_expression: str


class OffsetCommitValue(NamedTuple):
    """A committed offset, in the log and in memory."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = NO_TIMESTAMP
    expire_timestamp_ms: int = NO_TIMESTAMP
    """Set by old clients with a retention time in OffsetCommit."""
    topic_id: bytes = ZERO_UUID


Committed: TypeAlias = tuple[int, int, str, int, int, bytes]
"""The same as a plain tuple, for where there are very many."""

Key: TypeAlias = (
    OffsetCommitKey
    | GroupMetadataKey
    | ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
Value: TypeAlias = OffsetCommitValue | Message


class _Kind(NamedTuple):
    number: int
    key: type[Key]
    value: type[Message]
    written_version: int


OFFSET_COMMIT = 1
_OFFSET_COMMIT_OLD = 0  # the same key, from the time when there were no groups

# Version 3 of a group's metadata is the last that is not flexible, and what Kafka 4.2 writes.
_KINDS = (
    _Kind(2, GroupMetadataKey, GroupMetadataValue, 3),
    _Kind(3, ConsumerGroupMetadataKey, ConsumerGroupMetadataValue, 0),
    _Kind(4, ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue, 0),
    _Kind(5, ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue, 0),
    _Kind(6, ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue, 0),
    _Kind(7, ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue, 0),
    _Kind(8, ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue, 0),
    _Kind(16, ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue, 0),
)
_BY_NUMBER = {kind.number: kind for kind in _KINDS}
_BY_TYPE: dict[type[object], _Kind] = {kind.key: kind for kind in _KINDS}
_BY_VALUE = {kind.value: kind for kind in _KINDS}

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_VALUE_FROM_3 = struct.Struct(">hqi")
_VALUE_BEFORE_3 = struct.Struct(">hq")
_LONG = struct.Struct(">q")
_TIME_AND_TAGS = struct.Struct(">qBBB16s")
_TIME_AND_NO_TAGS = struct.Struct(">qB")
_FLEXIBLE = 4
_SIZES = tuple(pack_uvarint(size) for size in range(128))


def encode_key(key: tuple[object, ...]) -> bytes:
    if type(key) is OffsetCommitKey:
        group_id, topic, partition = key
        return _commit_key_start(group_id, topic) + _INT.pack(partition)
    parts = [_SHORT.pack(_BY_TYPE[type(key)].number)]
    for text in key:
        assert isinstance(text, str)
        data = text.encode()
        parts += (_SHORT.pack(len(data)), data)
    return b"".join(parts)


@lru_cache(maxsize=4096)
def _commit_key_start(group_id: str, topic: str) -> bytes:
    """The key without the partition. Cached, for groups commit the same topics again and again."""
    group, name = group_id.encode(), topic.encode()
    return b"".join((_SHORT.pack(OFFSET_COMMIT), _SHORT.pack(len(group)), group, _SHORT.pack(len(name)), name))


def encode_value(value: object) -> bytes:
    if type(value) is OffsetCommitValue:
        return _encode_commit(value)
    assert isinstance(value, Message)
    version = _BY_VALUE[type(value)].written_version
    return _SHORT.pack(version) + messages.encode(value, version)


def _encode_commit(value: OffsetCommitValue) -> bytes:
    offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms, topic_id = value
    note = metadata.encode()
    if expire_timestamp_ms != NO_TIMESTAMP:  # only version 1 has it
        head = _VALUE_BEFORE_3.pack(1, offset) + _SHORT.pack(len(note)) + note
        return head + _LONG.pack(commit_timestamp_ms) + _LONG.pack(expire_timestamp_ms)
    size = len(note) + 1
    head = _VALUE_FROM_3.pack(_FLEXIBLE, offset, leader_epoch) + (
        _SIZES[size] if size < 128 else pack_uvarint(size)
    ) + note  # fmt: skip
    if topic_id == ZERO_UUID:
        return head + _TIME_AND_NO_TAGS.pack(commit_timestamp_ms, 0)
    return head + _TIME_AND_TAGS.pack(commit_timestamp_ms, 1, 0, 16, topic_id)


def decode_key(data: bytes) -> Key | None:
    """The key, or None for an unknown type of record."""
    try:
        number, pos = _SHORT.unpack_from(data)[0], 2
        if number in (OFFSET_COMMIT, _OFFSET_COMMIT_OLD):
            group_id, pos = _read_string(data, pos)
            topic, pos = _read_string(data, pos)
            return OffsetCommitKey(group_id, topic, _INT.unpack_from(data, pos)[0])
        kind = _BY_NUMBER.get(number)
        if kind is None:
            return None
        texts = []
        for _ in kind.key._fields:
            text, pos = _read_string(data, pos)
            texts.append(text)
        return kind.key(*texts)  # type: ignore[arg-type]
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise Fault(f"a key in the log is damaged: {error}") from error


def _read_string(data: bytes, pos: int) -> tuple[str, int]:
    end = pos + 2 + _SHORT.unpack_from(data, pos)[0]
    if not pos + 2 <= end <= len(data):
        raise IndexError("a text is longer than what holds it")
    return str(data[pos + 2 : end], "utf-8"), end


def decode_value(key: object, data: bytes) -> Value:
    try:
        version = _SHORT.unpack_from(data)[0]
        if type(key) is OffsetCommitKey:
            return _decode_commit(version, data)
        return messages.decode(_BY_TYPE[type(key)].value, version, data, 2, whole=False)
    except (struct.error, UnicodeDecodeError, IndexError, BadFrame) as error:
        raise Fault(f"the value of {key} in the log is damaged: {error}") from error


def _decode_commit(version: int, data: bytes) -> OffsetCommitValue:
    leader_epoch = NO_EPOCH
    if version >= 3:
        _, offset, leader_epoch = _VALUE_FROM_3.unpack_from(data)
        pos = 14
    else:
        _, offset = _VALUE_BEFORE_3.unpack_from(data)
        pos = 10
    if version < _FLEXIBLE:
        metadata, pos = _read_string(data, pos)
    else:
        size, pos = uvarint(data, pos)
        metadata = str(data[pos : pos + size - 1], "utf-8")
        pos += size - 1
    (commit_timestamp_ms,) = _LONG.unpack_from(data, pos)
    expire_timestamp_ms = _LONG.unpack_from(data, pos + 8)[0] if version == 1 else NO_TIMESTAMP
    topic_id = _read_topic_id(data, pos + 8) if version >= _FLEXIBLE else ZERO_UUID
    return OffsetCommitValue(offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms, topic_id)


def _read_topic_id(data: bytes, pos: int) -> bytes:
    """The first tagged field; other tags, of newer releases, are skipped."""
    count, pos = uvarint(data, pos)
    for _ in range(count):
        tag, pos = uvarint(data, pos)
        size, pos = uvarint(data, pos)
        if tag == 0 and size == 16:
            return data[pos : pos + 16]
        pos += size
    return ZERO_UUID
