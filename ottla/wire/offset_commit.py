"""OffsetCommit fast path: the most frequent request of groups, decoded without an object for each partition.

Nearly all commits have no metadata, no retention time and no tagged fields. Then all entries of a topic have one size
and stay bytes, in which every field is a column:

    partition:4 offset:8 [leader_epoch:4, from version 6 on] no metadata:2, or from version 8 on :1 and no tags:1

The bytes before the entries, topic and number of partitions, are the same in the response and are copied. Versions 2 to
10; flexible from 8, topics by id from 10. All other commits become message trees.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from ottla.errors import BadFrame
from ottla.runtime import Buffer
from ottla.wire.primitives import compact_string, string, uvarint

THROTTLES_FROM: Final = 3
RETENTION_UNTIL: Final = 4
EPOCHS_FROM: Final = 6
INSTANCES_FROM: Final = 7
FLEXIBLE_FROM: Final = 8
TOPIC_IDS_FROM: Final = 10

COUNT_MAX: Final = 8192
"""Larger commits become message trees."""
PARTITION_BYTES: Final = 4
_SIZE_BEFORE_EPOCHS: Final = 14
_SIZE: Final = 18
_UUID_BYTES: Final = 16

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_NO_RETENTION: Final = b"\xff" * 8
_THROTTLE: Final = b"\0\0\0\0"

_NO_PARTITION: Final = bytes(PARTITION_BYTES)
_DONE: Final = b"\0\0"
_DONE_FLEXIBLE: Final = b"\0\0\0"  # no error, no tags


class TopicOffsets(NamedTuple):
    topic: str | bytes
    """A name, or from version 10 on an id of 16 bytes."""
    head: bytes
    """The bytes before the entries, in the request and in the response."""
    entry_count: int
    entries: bytes
    entry_bytes: int

    @property
    def has_epochs(self) -> bool:
        return self.entry_bytes == _SIZE


class Commit(NamedTuple):
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    topics: list[TopicOffsets]


def decode(view: memoryview, pos: int, version: int) -> Commit | None:
    """The commit, or None if it needs the message tree or is malformed."""
    try:
        read = _decode_flexible if version >= FLEXIBLE_FROM else _decode_plain
        commit = read(bytes(view), pos, version)  # most is copied anyway, and bytes are sliced faster than views
    except (struct.error, IndexError, UnicodeDecodeError, BadFrame):
        return None
    if commit is None or (len(commit.topics) > 1 and sum(topic.entry_count for topic in commit.topics) > COUNT_MAX):
        return None
    return commit


def _compact_string(data: bytes, pos: int) -> tuple[str | None, int]:
    """Fast for strings of fewer than 127 bytes. A string beyond the data is cut: then the field behind it is
    missing."""
    size = data[pos]
    if not 0 < size < 0x80:
        return compact_string(memoryview(data), pos)
    end = pos + size
    return data[pos + 1 : end].decode(), end


class _Front(NamedTuple):
    """Everything before the entries of the first topic."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    topic_count: int
    topic: str | bytes
    head: bytes
    entry_count: int


def _decode_flexible(data: bytes, pos: int, version: int) -> Commit | None:
    front, at = _find_front(data, pos, version)
    group_id, generation, member_id, instance_id, topics_left, topic, head, count = front
    topics = []
    while True:
        end = at + count * _SIZE
        entries = data[at:end]
        if entries[16::_SIZE].strip(b"\0\1") or entries[17::_SIZE].strip(b"\0") or data[end]:
            return None  # metadata, or tagged fields
        topics.append(TopicOffsets(topic, head, count, entries, _SIZE))
        end += 1
        topics_left -= 1
        if not topics_left:
            break
        topic, count, at = _read_topic(data, end, version)
        head = data[end:at]
    return None if data[end] else Commit(group_id, generation, member_id, instance_id, topics)


def _find_front(data: bytes, pos: int, version: int) -> tuple[_Front, int]:
    """The front, and where it ends. It is cached, for it is the same in all commits of one member. Where it ends is
    first guessed, with all lengths of one byte."""
    try:
        end = pos + data[pos] + 4  # the group, and the generation
        end += data[end]  # the member
        end += data[end] or 1  # its instance id, or null
        end += 1  # the number of topics
        end += _UUID_BYTES if version >= TOPIC_IDS_FROM else data[end]
        end += 1  # the number of entries
    except IndexError:  # the guess is beyond the frame
        return _read_front(data, pos, version)
    front = _cached_front(data[pos:end], version)
    return _read_front(data, pos, version) if front is None else (front, end)


@lru_cache(maxsize=4096)
def _cached_front(data: bytes, version: int) -> _Front | None:
    """None: the guess is wrong."""
    try:
        front, end = _read_front(data, 0, version)
    except (struct.error, IndexError, UnicodeDecodeError, BadFrame):
        return None
    return front if end == len(data) else None


def _read_front(data: bytes, pos: int, version: int) -> tuple[_Front, int]:
    group_id, pos = _compact_string(data, pos)
    (generation,) = _INT.unpack_from(data, pos)
    member_id, pos = _compact_string(data, pos + 4)
    instance_id, start = _compact_string(data, pos)
    topic_count, pos = uvarint(data, start)
    if group_id is None or member_id is None or topic_count < 2:
        raise BadFrame("no group, no member id, or no topics")
    topic, entry_count, pos = _read_topic(data, pos, version)
    head = data[start:pos]
    return _Front(group_id, generation, member_id, instance_id, topic_count - 1, topic, head, entry_count), pos


def _read_topic(data: bytes, pos: int, version: int) -> tuple[str | bytes, int, int]:
    """The topic, the number of its entries, and where they begin."""
    topic: str | bytes | None
    if version >= TOPIC_IDS_FROM:
        topic = data[pos : pos + _UUID_BYTES]
        pos += _UUID_BYTES
    else:
        topic, pos = _compact_string(data, pos)
    count, pos = uvarint(data, pos)
    if topic is None or not 0 < count - 1 <= COUNT_MAX:
        raise BadFrame("a topic without a name, or with no or too many partitions")
    return topic, count - 1, pos


def _decode_plain(data: bytes, pos: int, version: int) -> Commit | None:
    group_id, pos = string(data, pos)
    (generation,) = _INT.unpack_from(data, pos)
    member_id, pos = string(data, pos + 4)
    instance_id = None
    if version >= INSTANCES_FROM:
        instance_id, pos = string(data, pos)
    elif version <= RETENTION_UNTIL:
        if data[pos : pos + 8] != _NO_RETENTION:
            return None
        pos += 8
    if group_id is None or member_id is None:
        return None
    size = _SIZE if version >= EPOCHS_FROM else _SIZE_BEFORE_EPOCHS
    start = pos
    (topic_count,) = _INT.unpack_from(data, pos)
    pos += 4
    topics = []
    for _ in range(topic_count):
        topic, pos = string(data, pos)
        (count,) = _INT.unpack_from(data, pos)
        pos += 4
        if topic is None or not 0 < count <= COUNT_MAX:
            return None
        head = data[start:pos]
        start = pos + count * size
        entries = data[pos:start]
        if len(entries) != count * size:
            return None
        metadata = entries[size - 2 :: size]  # the length of no metadata is 0 or -1
        if metadata != entries[size - 1 :: size] or metadata.strip(b"\0\xff"):
            return None
        pos = start
        topics.append(TopicOffsets(topic, head, count, entries, size))
    return Commit(group_id, generation, member_id, instance_id, topics) if topics else None


def encode(version: int, topics: Sequence[TopicOffsets], codes: Sequence[int]) -> bytes:
    """The body of the response, with one error code for each topic."""
    flexible = version >= FLEXIBLE_FROM
    done = _DONE_FLEXIBLE if flexible else _DONE
    parts: list[Buffer] = [_THROTTLE] if version >= THROTTLES_FROM else []
    for (_, head, count, entries, size), code in zip(topics, codes, strict=True):
        result = done
        if code:
            result = _SHORT.pack(code) + done[2:]
        if count == 1:
            parts += (head, entries[:PARTITION_BYTES], result)
        else:
            row = _NO_PARTITION + result
            rows = bytearray(row * count)
            for column in range(PARTITION_BYTES):
                rows[column :: len(row)] = entries[column::size]
            parts += (head, rows)
        if flexible:
            parts.append(b"\0")
    if flexible:
        parts.append(b"\0")
    return b"".join(parts)
