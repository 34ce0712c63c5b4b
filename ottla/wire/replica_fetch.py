"""Fetch of a follower: request encoder and response decoder, version 17, topics by id. The leader's side is in
`fetch`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from ottla.errors import BadFrame
from ottla.wire.fetch import MISSING_TAG, FetchPartition, PartitionFetched
from ottla.wire.primitives import pack_uvarint, skip_tags, tags, uvarint

VERSION = 17

_START = struct.Struct(">iiibii")
_PARTITION = struct.Struct(">iiqiqix")  # the pad byte is an empty set of tagged fields
_REPLICA_STATE = struct.Struct(">bbbiqb")  # one tag, number 1, 13 bytes long
_HEAD = struct.Struct(">ihi")
_FETCHED = struct.Struct(">ihqqq")
_DIVERGING = struct.Struct(">iq")
_DIVERGING_TAG = 0
_MISSING = struct.Struct(">qq?")


class FetchParams(NamedTuple):
    """The fields of a request that are the same for all partitions."""

    replica_id: int
    replica_epoch: int
    wait_ms_max: int
    bytes_min: int
    bytes_max: int


class Answer(NamedTuple):
    error: int
    session_id: int
    partitions: list[tuple[bytes, PartitionFetched]]


Partitions = dict[bytes, list[FetchPartition]]


def encode_request(
    params: FetchParams, session_id: int, session_epoch: int, topics: Partitions, forgotten: dict[bytes, list[int]]
) -> bytes:
    out = bytearray(_START.pack(params.wait_ms_max, params.bytes_min, params.bytes_max, 0, session_id, session_epoch))
    out += pack_uvarint(len(topics) + 1)
    for topic_id, partitions in topics.items():
        out += topic_id
        out += pack_uvarint(len(partitions) + 1)
        for partition in partitions:
            out += _PARTITION.pack(*partition)
        out += b"\0"
    out += pack_uvarint(len(forgotten) + 1)
    for topic_id, indexes in forgotten.items():
        out += topic_id + pack_uvarint(len(indexes) + 1) + _ints(indexes) + b"\0"
    out += b"\1"  # no rack
    out += _REPLICA_STATE.pack(1, 1, 13, params.replica_id, params.replica_epoch, 0)
    return bytes(out)


def _ints(numbers: Sequence[int]) -> bytes:
    return struct.pack(f">{len(numbers)}i", *numbers)


def decode_response(view: memoryview) -> Answer:
    try:
        return _decode(view)
    except (struct.error, IndexError) as failure:
        raise BadFrame(f"not a Fetch response: {failure}") from None


def _decode(view: memoryview) -> Answer:
    _, error, session_id = _HEAD.unpack_from(view)
    topic_count, pos = uvarint(view, _HEAD.size)
    found: list[tuple[bytes, PartitionFetched]] = []
    for _ in range(topic_count - 1):
        topic_id = bytes(view[pos : pos + 16])
        count, pos = uvarint(view, pos + 16)
        for _ in range(count - 1):
            fetched, pos = _partition(view, pos)
            found.append((topic_id, fetched))
        pos = skip_tags(view, pos)
    return Answer(error, session_id, found)


def _partition(view: memoryview, pos: int) -> tuple[PartitionFetched, int]:
    index, error, high_watermark, last_stable, log_start = _FETCHED.unpack_from(view, pos)
    aborted, pos = uvarint(view, pos + _FETCHED.size)
    for _ in range(aborted - 1):
        pos = skip_tags(view, pos + 16)  # a follower has them in its own log
    size, pos = uvarint(view, pos + 4)  # behind the preferred read replica, which is for consumers
    end = pos + max(size - 1, 0)
    if end > len(view):
        raise BadFrame("records longer than the response")
    records = view[pos:end]
    diverging = missing = None
    if view[end]:
        fields, pos = tags(view, end, (_DIVERGING_TAG, MISSING_TAG))
        if _DIVERGING_TAG in fields:
            diverging = _DIVERGING.unpack_from(fields[_DIVERGING_TAG])
        if MISSING_TAG in fields:
            missing = _MISSING.unpack_from(fields[MISSING_TAG])
    else:
        pos = end + 1
    fetched = PartitionFetched(
        index, error, high_watermark, last_stable, log_start, None, -1, records, diverging=diverging, missing=missing
    )
    return fetched, pos
