"""The batch that a coordinator appends: its own records, all of one moment, neither compressed nor with headers.

`wire.records` builds every kind of batch; this builds one kind, for it is built for every single commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from ottla.coordinator.decision import Producer
from ottla.wire.batch import (
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    NO_PRODUCER,
    TRANSACTIONAL,
    BatchHeader,
)
from ottla.wire.scan import pack_uvarint

Pair = tuple[bytes, bytes | None]

_NO_ONE: Final = Producer(NO_PRODUCER, -1)
_LENGTHS: Final = tuple(pack_uvarint(number << 1) for number in range(512))
_NULL: Final = b"\x01"
_HEAD: Final = b"\0\0"  # no attributes, no difference in time
_END: Final = b"\0"  # no headers
_CRC_AT: Final = CRC_FROM - 4


def _length(number: int) -> bytes:
    return _LENGTHS[number] if number < 512 else pack_uvarint(number << 1)


def build(pairs: Sequence[Pair], now_ms: int, producer: Producer | None = None) -> tuple[bytearray, BatchHeader]:
    """The bytes, and the header for those who want to read it. Base offset and leader epoch are stamped by the log."""
    parts = [bytes(HEADER_BYTES)]
    for offset, (key, value) in enumerate(pairs):
        offset_delta, key_length = _length(offset), _length(len(key))
        size = 3 + len(offset_delta) + len(key_length) + len(key)  # with _HEAD and _END
        if value is None:
            parts += (_length(size + 1), _HEAD, offset_delta, key_length, key, _NULL, _END)
        else:
            value_length = _length(len(value))
            size += len(value_length) + len(value)
            parts += (_length(size), _HEAD, offset_delta, key_length, key, value_length, value, _END)
    data = bytearray().join(parts)
    producer_id, epoch = producer or _NO_ONE
    last = len(pairs) - 1
    length = len(data) - LENGTH_OVERHEAD
    attributes = 0 if producer is None else TRANSACTIONAL
    HEADER.pack_into(
        data, 0, 0, length, -1, MAGIC, 0, attributes, last, now_ms, now_ms, producer_id, epoch, -1, last + 1
    )
    crc = crc32c(memoryview(data)[CRC_FROM:])
    data[_CRC_AT:CRC_FROM] = crc.to_bytes(4, "big")
    header = BatchHeader(
        0, length, -1, MAGIC, crc, attributes, last, now_ms, now_ms, producer_id, epoch, -1, last + 1
    )
    return data, header
