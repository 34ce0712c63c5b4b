"""Keys and values of `__transaction_state` in Kafka's formats (TransactionLogKey, TransactionLogValue).

The key is the transactional id, the value the whole state of its transaction. Each step writes the whole value, so the
newest value of each key is the state of the shard. We write version 1, whose optional fields are tagged. One tag is
Ottla's own, and other readers skip it: the epoch before the last bump, which distinguishes a retry from a request of a
fenced producer. Kafka keeps it in memory only, and loses it when the coordinator moves.
"""

from __future__ import annotations

import enum
import struct
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from ottla.coordinator.record_schema import RecordValue, schema, wire
from ottla.errors import BadFrame, Fault
from ottla.wire import messages
from ottla.wire.primitives import pack_uvarint
from ottla.wire.topic_partition import TopicPartition
from ottla.wire.tree import Struct

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP = -1


class TransactionState(enum.IntEnum):
    """The numbers are those of the log. DEAD is never written: an expired transactional id gets a tombstone."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6

    @property
    def label(self) -> str:
        """The name in ListTransactions and DescribeTransactions."""
        return self.name.title().replace("_", "")


class TransactionKey(NamedTuple):
    transactional_id: str


class TransactionValue(NamedTuple):
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: tuple[TopicPartition, ...] = ()
    """In order."""
    updated_ms: int = NO_TIMESTAMP
    started_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id before the last step."""
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id after this transaction, if the epochs of the current one are used up."""
    version: int = 0
    """The version of the transaction protocol of its producer: from 2 on every transaction increments the epoch
    (KIP-890)."""
    last_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before the last bump, if the producer itself caused that bump."""


_KIND = 0
_VERSION = 1
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_HEAD = struct.Struct(">hqhib")
_TIMES = struct.Struct(">qq")

_PREVIOUS_PRODUCER_ID, _NEXT_PRODUCER_ID, _CLIENT_VERSION, _LAST_EPOCH = 0, 1, 2, 10_000
# What comes before a tagged field: the tag and the size.
_PREVIOUS_PRODUCER_HEAD = pack_uvarint(_PREVIOUS_PRODUCER_ID) + pack_uvarint(_LONG.size)
_NEXT_PRODUCER_HEAD = pack_uvarint(_NEXT_PRODUCER_ID) + pack_uvarint(_LONG.size)
_CLIENT_VERSION_HEAD = pack_uvarint(_CLIENT_VERSION) + pack_uvarint(_SHORT.size)
_LAST_EPOCH_HEAD = pack_uvarint(_LAST_EPOCH) + pack_uvarint(_SHORT.size)
_COUNTS = tuple(pack_uvarint(count) for count in range(5))

_CACHED_MAX = 1024
_FEW = 16


def encode_key(key: tuple[object, ...]) -> bytes:
    assert type(key) is TransactionKey
    return _encode_id(key.transactional_id)


@lru_cache(maxsize=_CACHED_MAX)
def _encode_id(transactional_id: str) -> bytes:
    """Cached: a producer has many transactions and one transactional id."""
    name = transactional_id.encode()
    return b"".join((_SHORT.pack(_KIND), _SHORT.pack(len(name)), name))


def decode_key(data: bytes) -> TransactionKey | None:
    try:
        if _SHORT.unpack_from(data)[0] != _KIND:
            return None
        end = 4 + _SHORT.unpack_from(data, 2)[0]
        if not 4 <= end <= len(data):
            raise IndexError("the name is longer than the key")
        return TransactionKey(str(data[4:end], "utf-8"))
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise Fault(f"a key in the log is damaged: {error}") from error


def encode_value(value: object) -> bytes:
    assert type(value) is TransactionValue
    (
        producer_id, producer_epoch, timeout_ms, state, partitions, updated_ms, started_ms,
        previous_producer_id, next_producer_id, version, last_epoch,
    ) = value  # fmt: skip
    few = len(partitions) <= _FEW
    tags = []
    if previous_producer_id != NO_PRODUCER_ID:
        tags.append(_PREVIOUS_PRODUCER_HEAD + _LONG.pack(previous_producer_id))
    if next_producer_id != NO_PRODUCER_ID:
        tags.append(_NEXT_PRODUCER_HEAD + _LONG.pack(next_producer_id))
    if version:
        tags.append(_CLIENT_VERSION_HEAD + _SHORT.pack(version))
    if last_epoch != NO_PRODUCER_EPOCH:
        tags.append(_LAST_EPOCH_HEAD + _SHORT.pack(last_epoch))
    return b"".join(
        (
            _HEAD.pack(_VERSION, producer_id, producer_epoch, timeout_ms, state),
            # In state EMPTY there is no list at all, not even an empty one: as Kafka writes it.
            b"\0"
            if state is TransactionState.EMPTY
            else _encode_few(partitions)
            if few
            else _encode_partitions(partitions),
            _TIMES.pack(updated_ms, started_ms),
            _COUNTS[len(tags)],
            *tags,
        )
    )


def _encode_partitions(partitions: tuple[TopicPartition, ...]) -> bytes:
    """By topic."""
    topics = [(name, [index for _, index in of]) for name, of in groupby(partitions, key=lambda each: each[0])]
    parts = [pack_uvarint(len(topics) + 1)]
    for name, indexes in topics:
        data = name.encode()
        parts += (pack_uvarint(len(data) + 1), data, pack_uvarint(len(indexes) + 1))
        parts += [_INT.pack(index) for index in indexes]
        parts.append(b"\0")
    return b"".join(parts)


_encode_few = lru_cache(maxsize=_CACHED_MAX)(_encode_partitions)
"""Cached: the transactions of one producer mostly write to the same few partitions."""


@schema
class PartitionsSchema(Struct):
    topic: str = wire("string 0+", default="")
    partition_ids: list[int] = wire("[]int32 0+", default_factory=list)


@schema
class TransactionLogValue(RecordValue):
    """The value as it is read; `encode_value` writes the same fields."""

    VERSIONS = (0, 1)
    FLEXIBLE_FROM = 1

    producer_id: int = wire("int64 0+", default=0)
    previous_producer_id: int = wire(f"int64 1+ tag {_PREVIOUS_PRODUCER_ID}", default=NO_PRODUCER_ID)
    next_producer_id: int = wire(f"int64 1+ tag {_NEXT_PRODUCER_ID}", default=NO_PRODUCER_ID)
    producer_epoch: int = wire("int16 0+", default=0)
    timeout_ms: int = wire("int32 0+", default=0)
    status: int = wire("int8 0+", default=0)
    partitions: list[PartitionsSchema] | None = wire("[]PartitionsSchema 0+ null 0+", default_factory=list)
    updated_ms: int = wire("int64 0+", default=0)
    started_ms: int = wire("int64 0+", default=0)
    client_version: int = wire(f"int16 1+ tag {_CLIENT_VERSION}", default=0)
    last_epoch: int = wire(f"int16 1+ tag {_LAST_EPOCH}", default=NO_PRODUCER_EPOCH)


def decode_value(key: object, data: bytes) -> TransactionValue:
    try:
        version = min(_SHORT.unpack_from(data)[0], _VERSION)
        read = messages.decode(TransactionLogValue, version, data, _SHORT.size, whole=False)
        partitions = [
            TopicPartition(each.topic, index) for each in read.partitions or () for index in each.partition_ids
        ]
        return TransactionValue(
            read.producer_id,
            read.producer_epoch,
            read.timeout_ms,
            TransactionState(read.status),
            tuple(sorted(partitions)),
            read.updated_ms,
            read.started_ms,
            read.previous_producer_id,
            read.next_producer_id,
            read.client_version,
            read.last_epoch,
        )
    except (struct.error, BadFrame, ValueError) as error:
        raise Fault(f"the value of {key} in the log is damaged: {error}") from error
