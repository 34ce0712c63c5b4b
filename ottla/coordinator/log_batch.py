"""The record batch that a coordinator appends: one timestamp, no compression, no headers.

`wire.records` builds every kind of batch. This module builds one kind, faster: there is one batch for every commit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from crc32c import crc32c

from ottla.coordinator.decision import ProducerIdAndEpoch
from ottla.runtime import Buffer
from ottla.wire.batch import CRC_FROM, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, NO_PRODUCER, TRANSACTIONAL, BatchHeader
from ottla.wire.primitives import pack_uvarint

Pair = tuple[bytes, bytes | None]

_NO_TRANSACTION: Final = ProducerIdAndEpoch(NO_PRODUCER, -1)
_LENGTHS: Final = tuple(pack_uvarint(number << 1) for number in range(512))
_NULL: Final = b"\x01"
_HEAD: Final = b"\0\0"  # no attributes, no difference in time
_END: Final = b"\0"  # no headers

_header: Callable[[tuple[int, ...]], BatchHeader] = partial(
    tuple.__new__, BatchHeader
)  # half the cost of BatchHeader(...)
# A header in two parts: up to the checksum, and the fields that it covers.
_UNCHECKED = struct.Struct(">qiibI")
_CHECKED = struct.Struct(">hiqqqhii")
assert _UNCHECKED.size == CRC_FROM
assert _UNCHECKED.size + _CHECKED.size == HEADER_BYTES


def _length(number: int) -> bytes:
    return _LENGTHS[number] if number < 512 else pack_uvarint(number << 1)


def record(index: int, key: bytes, value: bytes | None) -> bytes:
    """The record at that index in its batch."""
    offset_delta, key_length = _length(index), _length(len(key))
    size = 3 + len(offset_delta) + len(key_length) + len(key)  # with _HEAD and _END
    if value is None:
        return b"".join((_length(size + 1), _HEAD, offset_delta, key_length, key, _NULL, _END))
    value_length = _length(len(value))
    size += len(value_length) + len(value)
    return b"".join((_length(size), _HEAD, offset_delta, key_length, key, value_length, value, _END))


def build(
    pairs: Sequence[Pair], now_ms: int, producer: ProducerIdAndEpoch | None = None
) -> tuple[bytearray, BatchHeader]:
    """A batch of these keys and values."""
    return build_encoded([record(index, *pair) for index, pair in enumerate(pairs)], len(pairs), now_ms, producer)


def build_encoded(
    parts: Sequence[Buffer], count: int, now_ms: int, producer: ProducerIdAndEpoch | None = None
) -> tuple[bytearray, BatchHeader]:
    """The batch of `count` records, with its header. The log sets base offset and leader epoch."""
    producer_id, epoch = producer or _NO_TRANSACTION
    attributes = 0 if producer is None else TRANSACTIONAL
    checked = (attributes, count - 1, now_ms, now_ms, producer_id, epoch, -1, count)
    rest = b"".join((_CHECKED.pack(*checked), *parts))
    crc = crc32c(rest)
    unchecked = (0, len(rest) + CRC_FROM - LENGTH_OVERHEAD, -1, MAGIC, crc)
    return bytearray(_UNCHECKED.pack(*unchecked) + rest), _header(unchecked + checked)
