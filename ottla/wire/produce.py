"""Produce codec, written by hand: requests become tuples instead of a message tree.

Records are views of the receive buffer. The handler appends them before it returns, so they are not copied.
Versions 3 to 13; flexible from 9, topics by id from 13.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from ottla.errors import BadFrame, ErrorCode
from ottla.wire.primitives import compact_string, pack_uvarint, skip_tags, string, uvarint

FLEXIBLE_FROM = 9
TOPIC_IDS_FROM = 13
PARTITIONS_MAX = 100_000
"""A limit on what a frame of tiny entries can allocate."""

_ACKS_TIMEOUT_COUNT = struct.Struct(">hii")
_ACKS_TIMEOUT = struct.Struct(">hi")
_INT = struct.Struct(">i")
_INT_INT = struct.Struct(">ii")

Topic = str | bytes
"""A name, or from version 13 on an id of 16 bytes."""


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[Topic, list[tuple[int, memoryview | None]]]]


class PartitionProduced(NamedTuple):
    """One partition of the response."""

    partition: int
    error: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start: int = -1
    message: str | None = None
    leader_id: int = -1
    leader_epoch: int = -1
    record_errors: Sequence[tuple[int, str]] = ()
    """The records that caused the error: index in the batch, and message (KIP-467)."""


class OneBatch(NamedTuple):
    """The usual request: one batch for one partition, without a transactional id."""

    acks: int
    topic: Topic
    topic_bytes: memoryview
    """The topic as encoded in the request and in the response."""
    partition: int
    records: memoryview
    timeout_ms: int


def decode_one(view: memoryview, pos: int, version: int) -> OneBatch | None:
    """Fast path for the usual request of a flexible version; None: use `decode`."""
    try:
        if view[pos] or view[pos + 7] != 2:  # a transactional id, or not one topic
            return None
        acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(view, pos + 1)
        start = pos + 8
        topic: Topic
        if version >= TOPIC_IDS_FROM:
            pos = start + 16
            topic = bytes(view[start:pos])
        else:
            size = view[start]
            if not 1 < size < 0x80:
                return None
            pos = start + size
            topic = str(view[start + 1 : pos], "utf-8")
        if view[pos] != 2:  # not one partition
            return None
        (partition,) = _INT.unpack_from(view, pos + 1)
        size, records_start = uvarint(view, pos + 5)
        end = records_start + size - 1
        if not size or view[end] or view[end + 1] or view[end + 2]:  # no records, or tagged fields
            return None
        return OneBatch(acks, topic, view[start:pos], partition, view[records_start:end], timeout_ms)
    except (struct.error, IndexError, UnicodeDecodeError, BadFrame):
        return None


_ONE = struct.Struct(">bihqqq9s")
# No record errors, no message; no tags of partition and topic; throttle time 0; no tags.
_ONE_END = b"\x01\0" + b"\0\0" + b"\0\0\0\0" + b"\0"


def encode_one(topic: memoryview, partition: int, base_offset: int, log_append_time_ms: int, log_start: int) -> bytes:
    """The body of the response to a `OneBatch` that was appended."""
    return b"".join((b"\x02", topic, _ONE.pack(2, partition, 0, base_offset, log_append_time_ms, log_start, _ONE_END)))


def decode(view: memoryview, pos: int, version: int) -> ProduceRequest:
    try:
        return _decode_flexible(view, pos, version) if version >= FLEXIBLE_FROM else _decode_plain(view, pos)
    except (struct.error, IndexError, UnicodeDecodeError) as failure:
        raise BadFrame(f"not a Produce request: {failure}") from None


def _decode_plain(view: memoryview, pos: int) -> ProduceRequest:
    transactional_id, pos = string(view, pos)
    acks, timeout_ms, topic_count = _ACKS_TIMEOUT_COUNT.unpack_from(view, pos)
    pos += 10
    end = len(view)
    seen = 0
    topics: list[tuple[Topic, list[tuple[int, memoryview | None]]]] = []
    for _ in range(topic_count):
        name, pos = string(view, pos)
        if name is None:
            raise BadFrame("a topic without a name")
        (count,) = _INT.unpack_from(view, pos)
        pos += 4
        seen += max(count, 0) + 1
        if seen > PARTITIONS_MAX:
            raise BadFrame(f"more than {PARTITIONS_MAX} partitions in one request")
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(count):
            index, size = _INT_INT.unpack_from(view, pos)
            pos += 8
            if size < 0:
                partitions.append((index, None))
                continue
            if size > end - pos:
                raise BadFrame("records longer than the frame")
            partitions.append((index, view[pos : pos + size]))
            pos += size
        topics.append((name, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _decode_flexible(view: memoryview, pos: int, version: int) -> ProduceRequest:
    transactional_id, pos = compact_string(view, pos)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(view, pos)
    topic_count, pos = uvarint(view, pos + 6)
    end = len(view)
    seen = 0
    topics: list[tuple[Topic, list[tuple[int, memoryview | None]]]] = []
    for _ in range(topic_count - 1):
        topic: Topic | None
        if version >= TOPIC_IDS_FROM:
            topic = bytes(view[pos : pos + 16])
            pos += 16
        else:
            topic, pos = compact_string(view, pos)
            if topic is None:
                raise BadFrame("a topic without a name")
        count, pos = uvarint(view, pos)
        seen += count + 1
        if seen > PARTITIONS_MAX:
            raise BadFrame(f"more than {PARTITIONS_MAX} partitions in one request")
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(count - 1):
            (index,) = _INT.unpack_from(view, pos)
            size, pos = uvarint(view, pos + 4)
            if size == 0:
                partitions.append((index, None))
            else:
                start = pos
                pos += size - 1
                if pos > end:
                    raise BadFrame("records longer than the frame")
                partitions.append((index, view[start:pos]))
            pos = pos + 1 if view[pos] == 0 else skip_tags(view, pos)
        topics.append((topic, partitions))
        pos = pos + 1 if view[pos] == 0 else skip_tags(view, pos)
    skip_tags(view, pos)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


_RESULT_3 = struct.Struct(">ihqq")
_RESULT_5 = struct.Struct(">ihqqq")
_RESULT_8 = struct.Struct(">ihqqqi")  # ends in the number of record errors
_LEADER_TAG = struct.Struct(">bbbiib")
_NOT_LEADER = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)


def encode_response(version: int, topics: list[tuple[Topic, list[PartitionProduced]]]) -> bytes:
    """The body of the response."""
    if version >= FLEXIBLE_FROM:
        return _encode_flexible(version, topics)
    parts = [_INT.pack(len(topics))]
    for topic, results in topics:
        name = topic.encode() if isinstance(topic, str) else topic
        parts.append(struct.pack(">h", len(name)))
        parts.append(name)
        parts.append(_INT.pack(len(results)))
        for result in results:
            if version >= 8:
                parts.append(_RESULT_8.pack(*result[:5], len(result.record_errors)))
                for at, why in result.record_errors:
                    text = why.encode()
                    parts.append(struct.pack(">ih", at, len(text)) + text)
                if result.message is None:
                    parts.append(b"\xff\xff")
                else:
                    text = result.message.encode()
                    parts.append(struct.pack(">h", len(text)))
                    parts.append(text)
            elif version >= 5:
                parts.append(_RESULT_5.pack(*result[:5]))
            else:
                parts.append(_RESULT_3.pack(*result[:4]))
    parts.append(b"\0\0\0\0")  # throttle time
    return b"".join(parts)


def _encode_flexible(version: int, topics: list[tuple[Topic, list[PartitionProduced]]]) -> bytes:
    parts = [pack_uvarint(len(topics) + 1)]
    for topic, results in topics:
        if isinstance(topic, str):
            name = topic.encode()
            parts.append(pack_uvarint(len(name) + 1))
            parts.append(name)
        else:
            parts.append(topic)
        parts.append(pack_uvarint(len(results) + 1))
        for result in results:
            parts.append(_RESULT_5.pack(*result[:5]))
            if result.error == 0:
                parts.append(b"\x01\x00\x00")  # no record errors, no message, no tags
                continue
            parts.append(pack_uvarint(len(result.record_errors) + 1))
            for at, why in result.record_errors:
                text = why.encode()
                parts.append(_INT.pack(at) + pack_uvarint(len(text) + 1) + text + b"\x00")
            text = (result.message or "").encode()
            parts.append(pack_uvarint(len(text) + 1) + text if text else b"\x00")
            if version >= 10 and result.leader_epoch >= 0 and result.error in _NOT_LEADER:
                # KIP-951: the current leader, for a client with outdated metadata.
                parts.append(_LEADER_TAG.pack(1, 0, 9, result.leader_id, result.leader_epoch, 0))
            else:
                parts.append(b"\x00")
        parts.append(b"\x00")
    parts.append(b"\0\0\0\0\0")  # throttle time, no tags
    return b"".join(parts)
