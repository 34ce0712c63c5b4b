"""CompletedFetch: the records of one partition in one Fetch answer, decoded only as far as the user has read.

A broker sends whole batches: the first may begin below the offset that was asked for, the last may be cut off, and
between two offsets there may be nothing (compaction). Control batches mark where a transaction ended and are never
shown. For `read_committed` the answer names the aborted transactions among its records, each by producer and first
offset: from there to the producer's next abort marker its transactional batches are left out (KIP-98).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ottla.errors import ErrorCode, Refused
from ottla.runtime import Buffer
from ottla.wire.batch import BatchHeader, batches, check
from ottla.wire.records import Record, iterate

_ABORT: Final = 0
"""The type of control record, in the last two of the four bytes of its key, that says so."""


class Piece(NamedTuple):
    """A batch of which records from this offset on are wanted."""

    start: int
    data: memoryview


class CompletedFetch:
    """Records of one partition from `position` on."""

    def __init__(
        self,
        data: Buffer,
        position: int,
        *,
        aborted: Iterable[tuple[int, int]] = (),
        check_crcs: bool = True,
        expanded_bytes_max: int,
    ) -> None:
        """`aborted`: producer id and first offset. Refused if the data is no row of batches."""
        self._data = memoryview(data)
        self._batches = _whole(data)
        self._at = 0
        self._records: Iterator[Record] | None = None
        self._aborted = deque(sorted(aborted, key=lambda transaction: transaction[1]))
        self._aborting: set[int] = set()
        self._check_crcs = check_crcs
        self._expanded_bytes_max = expanded_bytes_max
        self.position = position
        """Of the next record to be shown."""
        self.epoch = -1
        """Of the leader that wrote the record before it, if one was shown."""
        last = self._batches[-1][1]
        if last.next_offset <= position:
            raise Refused(ErrorCode.corrupt_message, "the records end before the offset that was asked for")
        self.next_offset = last.next_offset
        """From which to fetch on."""
        self.next_epoch = last.leader_epoch
        self.size = len(data)

    @property
    def exhausted(self) -> bool:
        return self._at >= len(self._batches)

    def take(self, records_max: int) -> list[Record]:
        """Return so many records. Refused: the next one is damaged, and all before it have been returned."""
        taken: list[Record] = []
        while len(taken) < records_max and not self.exhausted:
            try:
                self._take_from_batch(taken, records_max)
            except Refused:
                self._records = None  # from the start of the batch again, for the next attempt
                if not taken:
                    raise
                break
        return taken

    def _take_from_batch(self, taken: list[Record], records_max: int) -> None:
        header = self._batches[self._at][1]
        if self._records is None:
            data = self._visible(header)
            self._records = iter(()) if data is None else iterate(data, bytes_max=self._expanded_bytes_max)
        position = self.position
        for record in self._records:
            if record.offset < position:
                continue
            taken.append(record)
            self.position = record.offset + 1
            self.epoch = header.leader_epoch
            if len(taken) >= records_max:
                break
        else:
            self._skip(header)
            return
        if self.position >= header.next_offset:
            self._records = None
            self._at += 1

    def take_batches(self, bytes_max: int) -> list[Piece]:
        """Return whole batches of about so many bytes, at least one if there is any. The caller decodes them."""
        taken: list[Piece] = []
        while bytes_max > 0 and not self.exhausted:
            header = self._batches[self._at][1]
            try:
                data = self._visible(header)
            except Refused:
                if not taken:
                    raise
                break
            if data is not None:
                taken.append(Piece(self.position, data))
                bytes_max -= len(data)
            self._skip(header)
        return taken

    def _skip(self, header: BatchHeader) -> None:
        """The batch is behind us."""
        self._records = None
        self._at += 1
        self.position = max(self.position, header.next_offset)
        self.epoch = header.leader_epoch

    def _visible(self, header: BatchHeader) -> memoryview | None:
        """The current batch, if the user may see its records."""
        start = self._batches[self._at][0]
        data = self._data[start : start + header.size]
        if self._check_crcs:
            check(data)
        while self._aborted and self._aborted[0][1] <= header.last_offset:
            self._aborting.add(self._aborted.popleft()[0])
        if header.is_control:
            if _aborts(data, self._expanded_bytes_max):
                self._aborting.discard(header.producer_id)
            return None
        if header.is_transactional and header.producer_id in self._aborting:
            return None
        return data


def _whole(data: Buffer) -> list[tuple[int, BatchHeader]]:
    """As many batches as make sense, at least one."""
    found: list[tuple[int, BatchHeader]] = []
    try:
        found.extend(batches(data))
    except Refused:
        if not found:
            raise
    if not found:
        raise Refused(ErrorCode.message_too_large, "not even one batch came whole")
    return found


def _aborts(batch: Buffer, bytes_max: int) -> bool:
    for record in iterate(batch, bytes_max=bytes_max):
        key = record.key
        return key is not None and len(key) >= 4 and int.from_bytes(key[2:4], "big") == _ABORT
    return False
