"""Requests as bytes, built once and sent many times, and the positions of error codes in responses.

Only what the load needs: Produce v9, Fetch v12, CreateTopics v5, DeleteTopics v4, each for one topic, so that every
position in a response is a constant. Independent of the broker's codecs on purpose.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass

import crc32c

PRODUCE, FETCH, CREATE_TOPICS, DELETE_TOPICS = 0, 1, 19, 20
CLIENT_ID = b"bench"
ACKS_ALL = -1
PARTITION_BYTES_MAX = 1 << 20

BATCH_START = struct.Struct(">qi")
BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
I16 = struct.Struct(">h")
I32 = struct.Struct(">i")
I64 = struct.Struct(">q")


def uvarint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_uvarint(view: bytes | memoryview, pos: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = view[pos]
        pos += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, pos
        shift += 7


def varint(number: int) -> bytes:
    return uvarint(number << 1 ^ number >> 63)


def compact_string(text: str) -> bytes:
    data = text.encode()
    return uvarint(len(data) + 1) + data


def request(api_key: int, version: int, body: bytes, *, flexible: bool = True) -> bytes:
    """A frame; the header of a flexible version ends with an empty list of tagged fields."""
    header = struct.pack(">hhih", api_key, version, 1, len(CLIENT_ID)) + CLIENT_ID + b"\0" * flexible
    return I32.pack(len(header) + len(body)) + header + body


def batch(record_size: int, count: int, first_key: int | None = None) -> bytes:
    """A record batch v2 of `count` records, their values `record_size` random bytes; without keys, or one key each."""
    records = bytearray()
    for delta in range(count):
        key = varint(-1) if first_key is None else varint(8) + I64.pack(first_key + delta)
        body = b"\0" + varint(0) + varint(delta) + key + varint(record_size) + os.urandom(record_size) + varint(0)
        records += varint(len(body)) + body
    now = int(time.time() * 1000)
    after_crc = struct.pack(">hiqqqhii", 0, count - 1, now, now, -1, -1, -1, count) + records
    checked = struct.pack(">ibI", -1, 2, crc32c.crc32c(after_crc)) + after_crc
    return BATCH_START.pack(0, len(checked)) + checked


def produce(
    topic: str, partition: int, records: bytes, *, transactional_id: str | None = None, version: int = 9
) -> bytes:
    """Version 12 has the same fields; with it a producer uses version 2 of transactions."""
    partitions = I32.pack(partition) + uvarint(len(records) + 1) + records + b"\0"
    topics = compact_string(topic) + b"\x02" + partitions + b"\0"
    transactional = b"\0" if transactional_id is None else compact_string(transactional_id)
    return request(PRODUCE, version, transactional + struct.pack(">hi", ACKS_ALL, 30_000) + b"\x02" + topics + b"\0")


def fetch(topic: str, partition: int, *, wait_ms: int = 500, committed: bool = False) -> tuple[bytearray, int]:
    """A sessionless Fetch frame and the position of its fetch offset; read_committed if `committed`."""
    start = struct.pack(">iiiibii", -1, wait_ms, 1, 50 << 20, committed, 0, -1)
    before_offset = start + b"\x02" + compact_string(topic) + b"\x02" + struct.pack(">ii", partition, -1)
    after_offset = struct.pack(">iqi", -1, -1, PARTITION_BYTES_MAX) + b"\0\0\x01\x01\0"
    frame = bytearray(request(FETCH, 12, before_offset + bytes(8) + after_offset))
    return frame, len(frame) - len(after_offset) - 8


def create_topic(topic: str, partitions: int, configs: Mapping[str, str] | None = None, *, replicas: int = 1) -> bytes:
    said = [compact_string(name) + compact_string(value) + b"\0" for name, value in (configs or {}).items()]
    settings = uvarint(len(said) + 1) + b"".join(said)
    body = b"\x02" + compact_string(topic) + struct.pack(">ih", partitions, replicas) + b"\x01" + settings + b"\0"
    return request(CREATE_TOPICS, 5, body + struct.pack(">ib", 30_000, 0) + b"\0")


def delete_topic(topic: str) -> bytes:
    return request(DELETE_TOPICS, 4, b"\x02" + compact_string(topic) + I32.pack(30_000) + b"\0")


# Where the error code stands in an answer, its four bytes of size not counted: behind the correlation id, the
# header tags, an optional throttle time, the count of topics (one byte), the topic name, and what follows.
def produce_error_at(topic: str) -> int:
    return 4 + 1 + 1 + len(compact_string(topic)) + 1 + 4


def topic_error_at(topic: str) -> int:
    """For CreateTopics v5 and DeleteTopics v4."""
    return 4 + 1 + 4 + 1 + len(compact_string(topic))


def fetch_error_at(topic: str) -> int:
    return 4 + 1 + 4 + 2 + 4 + 1 + len(compact_string(topic)) + 1 + 4


@dataclass(slots=True)
class Fetched:
    """Content of a Fetch response, from the headers of its complete batches."""

    error: int
    high_watermark: int
    next_offset: int
    records: int


def read_fetched(answer: memoryview, topic: str, offset: int) -> Fetched:
    """Read the batch headers of a response (without its size) to a Fetch at `offset`."""
    pos = fetch_error_at(topic)
    (error,) = I16.unpack_from(answer, pos)
    if error:
        return Fetched(error, -1, offset, 0)
    (high_watermark,) = I64.unpack_from(answer, pos + 2)
    aborted, pos = read_uvarint(answer, pos + 26)
    assert aborted <= 1, "the load aborts no transactions"
    length, pos = read_uvarint(answer, pos + 4)
    end = pos + length - 1
    records = 0
    while pos + BATCH_HEADER.size <= end:
        base_offset, batch_length = BATCH_START.unpack_from(answer, pos)
        if pos + 12 + batch_length > end:
            break
        records += I32.unpack_from(answer, pos + 57)[0]
        offset = base_offset + I32.unpack_from(answer, pos + 23)[0] + 1
        pos += 12 + batch_length
    return Fetched(error, high_watermark, offset, records)
