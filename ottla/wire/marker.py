"""Transaction marker: a control batch with one record, the end of a transaction in a partition (KIP-98).

    key    version:2 kind:2        kind 0: aborted, 1: committed
    value  version:2 coordinator_epoch:4

The epoch is the leader epoch of the coordinator's partition of `__transaction_state`: it fences an old coordinator.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from ottla.errors import Refused
from ottla.runtime import Buffer
from ottla.wire.batch import CONTROL, CRC_FROM, HEADER, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, TRANSACTIONAL, BatchHeader
from ottla.wire.records import iterate

ABORT = 0
COMMIT = 1

# length, attributes, timestamp delta, offset delta, key length, key, value length, value, number of headers; all
# lengths fit one byte of a zigzag number
_RECORD = struct.Struct(">BBBBBhhBhiB")
_RECORD_LENGTH = (_RECORD.size - 1) << 1
_KEY_LENGTH = 4 << 1
_VALUE_LENGTH = 6 << 1
_NO_SEQUENCE = -1
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_RECORD_BYTES_MAX = 1 << 16


class Marker(NamedTuple):
    committed: bool
    coordinator_epoch: int


def build(producer_id: int, producer_epoch: int, marker: Marker, now_ms: int) -> tuple[bytearray, BatchHeader]:
    """The batch and its header. Base offset and leader epoch are stamped by the log."""
    kind = COMMIT if marker.committed else ABORT
    data = bytearray(HEADER_BYTES + _RECORD.size)
    _RECORD.pack_into(
        data, HEADER_BYTES, _RECORD_LENGTH, 0, 0, 0, _KEY_LENGTH, 0, kind, _VALUE_LENGTH, 0, marker.coordinator_epoch, 0
    )
    length = len(data) - LENGTH_OVERHEAD
    header = BatchHeader(
        0, length, -1, MAGIC, 0, TRANSACTIONAL | CONTROL, 0, now_ms, now_ms, producer_id, producer_epoch,
        _NO_SEQUENCE, 1,
    )  # fmt: skip
    HEADER.pack_into(data, 0, *header)
    header = header._replace(crc=crc32c(memoryview(data)[CRC_FROM:]))
    HEADER.pack_into(data, 0, *header)
    return data, header


def read(batch: Buffer) -> Marker | None:
    """The marker in a control batch; None if it is empty (after compaction), or of another type."""
    if len(batch) < HEADER_BYTES + _RECORD.size:
        return None
    length, _, _, _, key_length, _, kind, value_length, _, coordinator_epoch, _ = _RECORD.unpack_from(
        batch, HEADER_BYTES
    )
    if (length, key_length, value_length) != (_RECORD_LENGTH, _KEY_LENGTH, _VALUE_LENGTH):
        return _read_as_any(batch)
    return _marker(kind, coordinator_epoch)


def _read_as_any(batch: Buffer) -> Marker | None:
    """A marker in another encoding: with a delete horizon its timestamp delta takes more bytes."""
    try:
        for record in iterate(batch, bytes_max=_RECORD_BYTES_MAX):
            key, value = record.key or b"", record.value or b""
            if len(key) >= _KEY.size and len(value) >= _VALUE.size:
                return _marker(_KEY.unpack_from(key)[1], _VALUE.unpack_from(value)[1])
    except Refused:
        pass
    return None


def _marker(kind: int, coordinator_epoch: int) -> Marker | None:
    return Marker(kind == COMMIT, coordinator_epoch) if kind in (ABORT, COMMIT) else None
