"""Fetch codec, written by hand: requests become tuples, responses a list of buffers; records are never copied.

Versions 4 to 18: sessions from 7, leader epochs from 9, rack from 11, flexible from 12, topics by id from 13, the
replica's identity in a tagged field from 15.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ottla.errors import BadFrame
from ottla.runtime import Buffer, ResponseSource
from ottla.wire.primitives import compact_string, pack_uvarint, skip_tags, string, tags, uvarint

FLEXIBLE_FROM = 12
TOPIC_IDS_FROM = 13
PARTITIONS_MAX = 200_000

_INT = struct.Struct(">i")
_START = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
_REPLICA_STATE = struct.Struct(">iq")
_PARTITION_4 = struct.Struct(">iqi")
_PARTITION_5 = struct.Struct(">iqqi")
_PARTITION_9 = struct.Struct(">iiqqi")
_PARTITION_12 = struct.Struct(">iiqiqi")
_REPLICA_STATE_TAG = 1

Topic = str | bytes


class FetchPartition(NamedTuple):
    partition: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start: int
    bytes_max: int


class FetchRequest(NamedTuple):
    replica_id: int
    replica_epoch: int
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[tuple[Topic, list[FetchPartition]]]
    forgotten: list[tuple[Topic, list[int]]]
    rack: str


class PartitionFetched(NamedTuple):
    """One partition of the response. `records` is a buffer from the log, or a source that is read when it is sent."""

    partition: int
    error: int = 0
    high_watermark: int = -1
    last_stable: int = -1
    log_start: int = -1
    aborted: list[tuple[int, int]] | None = None
    preferred_replica: int = -1
    records: Buffer | ResponseSource = b""
    leader_id: int = -1
    leader_epoch: int = -1
    diverging: tuple[int, int] | None = None
    missing: tuple[int, int, bool] | None = None
    """For followers, Ottla's own: the leader has lost these offsets, or (true) they were given up."""


def decode(view: memoryview, pos: int, version: int) -> FetchRequest:
    try:
        return _decode(view, pos, version)
    except (struct.error, IndexError, UnicodeDecodeError) as failure:
        raise BadFrame(f"not a Fetch request: {failure}") from None


def _decode(view: memoryview, pos: int, version: int) -> FetchRequest:
    replica_id = replica_epoch = -1
    if version < 15:
        (replica_id,) = _INT.unpack_from(view, pos)
        pos += 4
    wait_ms_max, bytes_min, bytes_max, isolation = _START.unpack_from(view, pos)
    pos += 13
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(view, pos)
        pos += 8
    flexible = version >= FLEXIBLE_FROM
    topics, pos = _topics_flexible(view, pos, version) if flexible else _topics_plain(view, pos, version)
    forgotten: list[tuple[Topic, list[int]]] = []
    if version >= 7:
        forgotten, pos = _forgotten(view, pos, version)
    rack: str | None = ""
    if version >= 11:
        rack, pos = compact_string(view, pos) if flexible else string(view, pos)
    if flexible:
        found, pos = tags(view, pos, (_REPLICA_STATE_TAG,))
        if version >= 15 and _REPLICA_STATE_TAG in found:
            replica_id, replica_epoch = _REPLICA_STATE.unpack_from(found[_REPLICA_STATE_TAG])
    return FetchRequest(
        replica_id, replica_epoch, wait_ms_max, bytes_min, bytes_max, isolation,
        session_id, session_epoch, topics, forgotten, rack or "",
    )  # fmt: skip


def _topics_plain(view: memoryview, pos: int, version: int) -> tuple[list[tuple[Topic, list[FetchPartition]]], int]:
    (topic_count,) = _INT.unpack_from(view, pos)
    pos += 4
    seen = 0
    topics: list[tuple[Topic, list[FetchPartition]]] = []
    for _ in range(topic_count):
        name, pos = string(view, pos)
        if name is None:
            raise BadFrame("a topic without a name")
        (count,) = _INT.unpack_from(view, pos)
        pos += 4
        seen = _bounded(seen, count)
        partitions = []
        for _ in range(count):
            if version >= 9:
                index, epoch, offset, start, size = _PARTITION_9.unpack_from(view, pos)
                pos += 28
            elif version >= 5:
                index, offset, start, size = _PARTITION_5.unpack_from(view, pos)
                epoch = -1
                pos += 24
            else:
                index, offset, size = _PARTITION_4.unpack_from(view, pos)
                epoch = start = -1
                pos += 16
            partitions.append(FetchPartition(index, epoch, offset, -1, start, size))
        topics.append((name, partitions))
    return topics, pos


def _topics_flexible(view: memoryview, pos: int, version: int) -> tuple[list[tuple[Topic, list[FetchPartition]]], int]:
    topic_count, pos = uvarint(view, pos)
    seen = 0
    topics: list[tuple[Topic, list[FetchPartition]]] = []
    unpack = _PARTITION_12.unpack_from
    for _ in range(topic_count - 1):
        topic, pos = _topic(view, pos, version)
        count, pos = uvarint(view, pos)
        seen = _bounded(seen, count)
        partitions = []
        for _ in range(count - 1):
            partitions.append(FetchPartition._make(unpack(view, pos)))
            pos += 32
            pos = pos + 1 if view[pos] == 0 else skip_tags(view, pos)
        topics.append((topic, partitions))
        pos = skip_tags(view, pos)
    return topics, pos


def _forgotten(view: memoryview, pos: int, version: int) -> tuple[list[tuple[Topic, list[int]]], int]:
    flexible = version >= FLEXIBLE_FROM
    forgotten: list[tuple[Topic, list[int]]] = []
    topic_count, pos = _count(view, pos, flexible)
    seen = 0
    for _ in range(topic_count):
        topic, pos = _topic(view, pos, version)
        count, pos = _count(view, pos, flexible)
        seen = _bounded(seen, count)
        if count * 4 > len(view) - pos:
            raise BadFrame("more forgotten partitions than the frame holds")
        forgotten.append((topic, list(struct.unpack_from(f">{count}i", view, pos))))
        pos += 4 * count
        if flexible:
            pos = skip_tags(view, pos)
    return forgotten, pos


def _topic(view: memoryview, pos: int, version: int) -> tuple[Topic, int]:
    if version >= TOPIC_IDS_FROM:
        return bytes(view[pos : pos + 16]), pos + 16
    name, pos = compact_string(view, pos) if version >= FLEXIBLE_FROM else string(view, pos)
    if name is None:
        raise BadFrame("a topic without a name")
    return name, pos


def _count(view: memoryview, pos: int, flexible: bool) -> tuple[int, int]:
    if flexible:
        count, pos = uvarint(view, pos)
        return max(count - 1, 0), pos
    (count,) = _INT.unpack_from(view, pos)
    return max(count, 0), pos + 4


def _bounded(seen: int, count: int) -> int:
    seen += max(count, 0) + 1
    if seen > PARTITIONS_MAX:
        raise BadFrame(f"more than {PARTITIONS_MAX} partitions in one request")
    return seen


_HEAD_7 = struct.Struct(">ihi")
_FETCHED_4 = struct.Struct(">ihqq")
_FETCHED_5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_LEADER_TAG = struct.Struct(">bbiib")
_DIVERGING_TAG = struct.Struct(">bbiqb")
_MISSING_TAG = struct.Struct(">bbqq?")
MISSING_TAG = 100
"""Far from the tags of Apache Kafka; other readers skip it."""


def encode_response(
    version: int, topics: list[tuple[Topic, list[PartitionFetched]]], *, session_id: int = 0, error: int = 0
) -> list[Buffer | ResponseSource]:
    """The body of the response as parts."""
    flexible = version >= FLEXIBLE_FROM
    head = _HEAD_7.pack(0, error, session_id) if version >= 7 else b"\0\0\0\0"  # the first is the throttle time
    small = bytearray(head)
    out: list[Buffer | ResponseSource] = []
    small += pack_uvarint(len(topics) + 1) if flexible else _INT.pack(len(topics))
    for topic, results in topics:
        if isinstance(topic, str):
            name = topic.encode()
            small += pack_uvarint(len(name) + 1) if flexible else struct.pack(">h", len(name))
            small += name
        else:
            small += topic
        small += pack_uvarint(len(results) + 1) if flexible else _INT.pack(len(results))
        for result in results:
            small += _FETCHED_5.pack(*result[:5]) if version >= 5 else _FETCHED_4.pack(*result[:4])
            small += _aborted(result.aborted, flexible)
            if version >= 11:
                small += _INT.pack(result.preferred_replica)
            size = len(result.records)
            small += pack_uvarint(size + 1) if flexible else _INT.pack(size)
            if size:
                out.append(small)
                out.append(result.records)
                small = bytearray()
            if flexible:
                small += _partition_tags(result) if result.error or result.diverging else b"\0"
        if flexible:
            small += b"\0"
    if flexible:
        small += b"\0"
    out.append(small)
    return out


def _aborted(aborted: list[tuple[int, int]] | None, flexible: bool) -> bytes:
    if not aborted:
        # Null for read_uncommitted, empty for read_committed.
        if aborted is None:
            return b"\0" if flexible else b"\xff\xff\xff\xff"
        return b"\x01" if flexible else b"\0\0\0\0"
    entries = [_ABORTED.pack(*entry) for entry in aborted]
    if flexible:
        return pack_uvarint(len(entries) + 1) + b"".join(entry + b"\0" for entry in entries)
    return _INT.pack(len(entries)) + b"".join(entries)


def _partition_tags(result: PartitionFetched) -> bytes:
    """Diverging epoch (KIP-595), current leader (KIP-951), and offsets that the leader has lost."""
    fields = []
    if result.diverging is not None:
        fields.append(_DIVERGING_TAG.pack(0, 13, *result.diverging, 0))
    if result.leader_epoch >= 0:
        fields.append(_LEADER_TAG.pack(1, 9, result.leader_id, result.leader_epoch, 0))
    if result.missing is not None:
        fields.append(_MISSING_TAG.pack(MISSING_TAG, 17, *result.missing))
    return pack_uvarint(len(fields)) + b"".join(fields)
