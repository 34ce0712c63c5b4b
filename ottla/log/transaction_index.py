"""Transaction index: the aborted transactions that ended in one segment. `<base offset>.txnindex`, Kafka's format.

    version:2 producer_id:8 first_offset:8 last_offset:8 last_stable:8

`last_offset` is the offset of the marker, `last_stable` the last stable offset after the marker was written: a
`read_committed` reader that reads nothing beyond it need not search further. Most segments have no aborted transaction,
and no file.

`CleanedTransactions` is the part that compaction needs, as it reads a log from its start. Records of an aborted
transaction are removed at once. A marker stays as long as a record of its transaction does, because it says whether
that record counts. Then it stays until its own delete horizon (KIP-534), so that a reader in the middle of the
transaction sees its end. Whether a transaction was aborted is known only at its end, so compaction gets the index
before it reads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c

from ottla.errors import StorageFault
from ottla.log.manifest import NO_CRC
from ottla.log.unsynced import Mark, Unsynced
from ottla.runtime import Disk
from ottla.wire.batch import BatchHeader
from ottla.wire.record_filter import record_spans

SUFFIX = ".txnindex"

_VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size

ABORT = 0
COMMIT = 1

_MARKER_KEY = struct.Struct(">hh")


class AbortedTransaction(NamedTuple):
    """An entry of the transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable: int


class TransactionIndexDamaged(Exception):
    """The bytes are no transaction index."""


def encode(entries: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


def decode(data: bytes) -> list[AbortedTransaction]:
    if len(data) % ENTRY_BYTES:
        raise TransactionIndexDamaged(f"it has {len(data)} bytes, no multiple of {ENTRY_BYTES}")
    entries: list[AbortedTransaction] = []
    for version, *entry in _ENTRY.iter_unpack(data):
        found = AbortedTransaction(*entry)
        if version != _VERSION or not 0 <= found.first_offset <= found.last_offset:
            raise TransactionIndexDamaged(f"an entry reads version {version}, {found}")
        if entries and found.last_offset <= entries[-1].last_offset:
            raise TransactionIndexDamaged("its entries are out of order")
        entries.append(found)
    return entries


def write(disk: Disk, path: str, entries: list[AbortedTransaction]) -> None:
    """Durable on return."""
    if entries:
        disk.write_atomic(path, encode(entries))
    else:
        disk.remove(path)


class TransactionIndex:
    """In memory only while it is asked for; every entry is written at once, and synced with its segment."""

    __slots__ = ("_crc", "_disk", "_draft", "_entries", "_late", "_path", "_torn", "_unsynced")

    def __init__(self, disk: Disk, stem: str, *, found: bool = False) -> None:
        self._disk = disk
        self._path = stem + SUFFIX
        self._entries: list[AbortedTransaction] | None = None if found else []
        self._late: list[AbortedTransaction] = []  # added while the file could not be read
        self._unsynced = Mark()
        self._torn = False
        self._draft = False
        self._crc: int | None = None  # of the file, if the entries were in memory before

    def begin_again(self) -> None:
        """Its segment is read again. Until then the file stays as it is: after a crash it may be the only evidence."""
        self._entries = []
        self._draft = True

    def finish(self) -> None:
        """All of the segment was read. Durable on return."""
        self._draft = False
        entries = self.entries
        there = self._disk.read(self._path) if self._disk.exists(self._path) else b""
        if there != encode(entries):
            self.replace(entries)

    @property
    def loaded(self) -> bool:
        return self._entries is not None

    @property
    def crc(self) -> int | None:
        """The checksum of the entries that are or were in memory, which no damage to the file reaches; None if they
        never were."""
        if self._entries is None:
            return self._crc
        return crc32c(encode(self._entries)) if self._entries else NO_CRC

    @property
    def entries(self) -> list[AbortedTransaction]:
        if self._entries is None:
            data = self._disk.read(self._path)
            if self._crc not in (None, crc32c(data)):
                raise TransactionIndexDamaged("it is not what was written to it")
            self._entries = decode(data) + self._late
            self._late = []
        return self._entries

    def add(self, entry: AbortedTransaction) -> None:
        """The batch is in the log, so this cannot fail: if the disk refuses, the next sync tries again. An unreadable
        index is left to the next reader, which rebuilds it from the log."""
        try:
            entries = self.entries
        except TransactionIndexDamaged:
            return
        except StorageFault:
            self._late.append(entry)
            self._unsynced.written()
            self._torn = True
            return
        assert not entries or entries[-1].last_offset < entry.last_offset
        entries.append(entry)
        if self._draft:
            return
        self._unsynced.written()
        file = self._disk.open(self._path, create=True)
        try:
            file.append(encode([entry]))
        except StorageFault:
            self._torn = True
        finally:
            file.close()

    def truncate(self, log_end: int) -> None:
        """Remove transactions that ended after the log end. Durable on return. An unreadable index stays as it is: it
        is rebuilt from the rest of the log."""
        try:
            entries = self.entries
        except TransactionIndexDamaged:
            return
        kept = [entry for entry in entries if entry.last_offset < log_end]
        if len(kept) < len(entries) or self._torn:
            self.replace(kept)

    def replace(self, entries: list[AbortedTransaction]) -> None:
        """Durable on return; on a StorageFault it is as it was."""
        write(self._disk, self._path, entries)
        self._entries = entries
        self._unsynced.synced()
        self._torn = False

    def unsynced(self) -> list[Unsynced]:
        """What has to be synced, written."""
        if self._torn:
            try:
                self.replace(self.entries)
            except TransactionIndexDamaged:
                self._torn = False
        return self._unsynced.of(self._disk.open(self._path), passing=True)

    def remove(self) -> None:
        self._disk.remove(self._path)

    def release_memory(self) -> None:
        if self._entries and not self._unsynced:
            self._crc = self.crc
            self._entries = None


class CleanedTransactions:
    """Called for every batch below the last stable offset, in order."""

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._to_come = sorted(aborted, key=lambda transaction: -transaction.first_offset)
        self._aborted: dict[int, AbortedTransaction] = {}
        self._aborted_with_records: set[int] = set()
        self._committed_with_records: set[int] = set()
        self.kept: list[AbortedTransaction] = []
        """Aborted transactions that still have records: the index of the cleaned segments."""

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
