"""Keys and values of `__transaction_state`, in Kafka's own formats, coded by hand.

The key is the transactional id; the value is all there is to know of its transaction. A value is written whole at each
step, so the newest one of each key is the state of the shard. We write version 1, whose optional fields are tagged.
One tag is our own, and others pass over it: the epoch before the last bump, which tells a repeated request from a
zombie's. Kafka keeps that in memory only, and forgets it when the coordinator moves.
"""

from __future__ import annotations

import enum
import struct
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from ottla.errors import Fault
from ottla.wire.primitives import pack_uvarint

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_TIMESTAMP = -1

TopicPartition = tuple[str, int]


class TransactionState(enum.IntEnum):
    """As the log says it. DEAD is never written: what is forgotten gets a tombstone."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6

    @property
    def label(self) -> str:
        """As ListTransactions and DescribeTransactions say it."""
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
    """The one that takes over when this transaction is complete, for the epochs of the current one are used up."""
    version: int = 0
    """Of the transaction protocol its producer speaks: from 2 on the epoch rises with every transaction (KIP-890)."""
    last_epoch: int = NO_PRODUCER_EPOCH
    """Before the producer itself had it raised; none if somebody else did."""


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
    """A producer's transactions are many, its id is one."""
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
"""The transactions of one producer mostly write to the same few partitions, and each of them is told twice."""


def decode_value(key: object, data: bytes) -> TransactionValue:
    try:
        version, producer_id, producer_epoch, timeout_ms, state = _HEAD.unpack_from(data)
        reader = _Reader(data, _HEAD.size, flexible=version >= 1)
        partitions = reader.partitions()
        updated_ms, started_ms = reader.times()
        tags = reader.tags()
        return TransactionValue(
            producer_id,
            producer_epoch,
            timeout_ms,
            TransactionState(state),
            tuple(sorted(partitions)),
            updated_ms,
            started_ms,
            _number(_LONG, tags.get(_PREVIOUS_PRODUCER_ID), NO_PRODUCER_ID),
            _number(_LONG, tags.get(_NEXT_PRODUCER_ID), NO_PRODUCER_ID),
            _number(_SHORT, tags.get(_CLIENT_VERSION), 0),
            _number(_SHORT, tags.get(_LAST_EPOCH), NO_PRODUCER_EPOCH),
        )
    except (struct.error, UnicodeDecodeError, IndexError, ValueError) as error:
        raise Fault(f"the value of {key} in the log is damaged: {error}") from error


def _number(form: struct.Struct, data: bytes | None, default: int) -> int:
    return default if data is None else int(form.unpack(data)[0])


class _Reader:
    """Walks over one value. IndexError or struct.error where it ends too early."""

    def __init__(self, data: bytes, position: int, *, flexible: bool) -> None:
        self._data = data
        self._at = position
        self._flexible = flexible

    def partitions(self) -> list[TopicPartition]:
        found = []
        for _ in range(self._count()):
            size = self._uvarint() - 1 if self._flexible else self._short()
            name = str(self._take(size), "utf-8")
            found += [(name, _INT.unpack(self._take(4))[0]) for _ in range(self._count())]
            self.tags()
        return found

    def times(self) -> tuple[int, int]:
        updated_ms, started_ms = _TIMES.unpack(self._take(_TIMES.size))
        return updated_ms, started_ms

    def tags(self) -> dict[int, bytes]:
        if not self._flexible:
            return {}
        return {self._uvarint(): self._take(self._uvarint()) for _ in range(self._uvarint())}

    def _count(self) -> int:
        count = self._uvarint() - 1 if self._flexible else int(_INT.unpack(self._take(4))[0])
        if count > len(self._data) - self._at:
            raise IndexError("a list is longer than what holds it")
        return max(count, 0)

    def _short(self) -> int:
        return int(_SHORT.unpack(self._take(2))[0])

    def _take(self, size: int) -> bytes:
        start = self._at
        if not 0 <= size <= len(self._data) - start:
            raise IndexError("it ends too early")
        self._at = start + size
        return self._data[start : self._at]

    def _uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
