"""Requests of transactional producers as bytes, for both versions of transactions.

In version 1 a producer announces every partition to the coordinator before it writes there: InitProducerId v4,
AddPartitionsToTxn v3, AddOffsetsToTxn v3, TxnOffsetCommit v3, EndTxn v3. In version 2 (KIP-890) the leader does that
when records arrive, and every transaction ends with a new epoch: Produce v12, TxnOffsetCommit v5, EndTxn v5, with
otherwise the fields of the versions before.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import crc32c

from bench.frames import BATCH_HEADER, I16, I32, compact_string, request
from bench.group_frames import FIND_COORDINATOR

INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT = 22, 24, 25, 26, 28
TRANSACTION_TIMEOUT_MS = 60_000
TRANSACTIONAL = 0x10
NO_PRODUCER = (-1, -1)

_CHECKED_FROM = 21
_ATTRIBUTES = struct.Struct(">h")
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_AT = 43
_CHECKSUM = struct.Struct(">I")
_CHECKSUM_AT = 17
_IDENTITY = struct.Struct(">qh")

# Behind the correlation id, the header tags and the throttle time.
ERROR_AT = 4 + 1 + 4


class Identity(NamedTuple):
    producer_id: int
    epoch: int


def error_at(topic: str) -> int:
    """Position of the error of the only partition, in AddPartitionsToTxn and TxnOffsetCommit."""
    return ERROR_AT + 1 + len(compact_string(topic)) + 1 + 4


def find_coordinator(transactional_id: str) -> bytes:
    return request(FIND_COORDINATOR, 3, compact_string(transactional_id) + b"\x01\0")


def init(transactional_id: str) -> bytes:
    body = compact_string(transactional_id) + I32.pack(TRANSACTION_TIMEOUT_MS) + _IDENTITY.pack(*NO_PRODUCER)
    return request(INIT_PRODUCER_ID, 4, body + b"\0")


def read_identity(answer: memoryview) -> Identity:
    """Producer id and epoch from InitProducerId v4 and EndTxn v5."""
    return Identity(*_IDENTITY.unpack_from(answer, ERROR_AT + I16.size))


def in_transaction(batch: bytes, producer: Identity, sequence: int) -> bytearray:
    """The batch with the next sequence of this producer."""
    made = bytearray(batch)
    assert len(made) > BATCH_HEADER.size
    _ATTRIBUTES.pack_into(made, _CHECKED_FROM, TRANSACTIONAL)
    _PRODUCER.pack_into(made, _PRODUCER_AT, producer.producer_id, producer.epoch, sequence)
    _CHECKSUM.pack_into(made, _CHECKSUM_AT, crc32c.crc32c(memoryview(made)[_CHECKED_FROM:]))
    return made


def add_partition(transactional_id: str, producer: Identity, topic: str, partition: int) -> bytes:
    topics = b"\x02" + compact_string(topic) + b"\x02" + I32.pack(partition) + b"\0"
    body = compact_string(transactional_id) + _IDENTITY.pack(*producer) + topics
    return request(ADD_PARTITIONS_TO_TXN, 3, body + b"\0")


def add_offsets(transactional_id: str, producer: Identity, group: str) -> bytes:
    body = compact_string(transactional_id) + _IDENTITY.pack(*producer) + compact_string(group)
    return request(ADD_OFFSETS_TO_TXN, 3, body + b"\0")


def commit_offset(
    transactional_id: str, producer: Identity, group: str, topic: str, offset: int, *, version: int = 3
) -> bytes:
    """The offset of partition 0, for a group without members."""
    partition = struct.pack(">iqi", 0, offset, -1) + b"\x01\0"
    topics = b"\x02" + compact_string(topic) + b"\x02" + partition + b"\0"
    start = compact_string(transactional_id) + compact_string(group) + _IDENTITY.pack(*producer)
    return request(TXN_OFFSET_COMMIT, version, start + I32.pack(-1) + b"\x01\0" + topics + b"\0")


def end(transactional_id: str, producer: Identity, *, version: int = 3) -> bytes:
    """Commit."""
    body = compact_string(transactional_id) + _IDENTITY.pack(*producer) + b"\x01\0"
    return request(END_TXN, version, body)
