"""What compaction must know of transactions, as it reads a log from its start.

Records of an aborted transaction go at once. A marker stays for as long as a record of its transaction does, for
without it nobody could tell whether that record counts; after that it stays until its own delete horizon (KIP-534), so
that a reader who is inside the transaction sees its end. Which transactions were aborted is not to be seen before
their end, so it must be told beforehand.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from ottla.wire.batch import BatchHeader
from ottla.wire.record_filter import record_spans

ABORT = 0
COMMIT = 1

_MARKER_KEY = struct.Struct(">hh")


class AbortedTransaction(NamedTuple):
    """An entry of the transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable: int


class CleanedTransactions:
    """Told of every batch below the last stable offset, in order."""

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._to_come = sorted(aborted, key=lambda transaction: -transaction.first_offset)
        self._aborted: dict[int, AbortedTransaction] = {}
        self._aborted_with_records: set[int] = set()
        self._committed_with_records: set[int] = set()
        self.kept: list[AbortedTransaction] = []
        """Aborted transactions of which there are records yet: the index of what was cleaned."""

    def saw_batch(self, header: BatchHeader) -> bool:
        """True if the records were aborted and may go."""
        if not header.is_transactional:
            return False
        self._catch_up(header.last_offset)
        if header.producer_id in self._aborted:
            self._aborted_with_records.add(header.producer_id)
            return True
        self._committed_with_records.add(header.producer_id)
        return False

    def saw_marker(self, header: BatchHeader, data: bytes) -> bool:
        """True if no record of the transaction was left before this pass: the marker may go when its time comes."""
        self._catch_up(header.last_offset)
        kind = _kind(header, data)
        producer_id = header.producer_id
        if kind is None:
            return True  # emptied by an earlier pass
        if kind == COMMIT:
            had_records = producer_id in self._committed_with_records
            self._committed_with_records.discard(producer_id)
            return not had_records
        if kind != ABORT:
            return False
        transaction = self._aborted.pop(producer_id, None)
        if transaction is None or producer_id not in self._aborted_with_records:
            return True
        self._aborted_with_records.discard(producer_id)
        self.kept.append(transaction)
        return False

    def _catch_up(self, offset: int) -> None:
        while self._to_come and self._to_come[-1].first_offset <= offset:
            transaction = self._to_come.pop()
            self._aborted.setdefault(transaction.producer_id, transaction)


def _kind(header: BatchHeader, data: bytes) -> int | None:
    for _, _, _, _, _, key, _ in record_spans(header, data):
        return int(_MARKER_KEY.unpack_from(key)[1]) if key is not None and len(key) >= _MARKER_KEY.size else -1
    return None
