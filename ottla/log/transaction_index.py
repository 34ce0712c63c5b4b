"""The aborted transactions that ended in one segment: `<base offset>.txnindex`, Kafka's format.

    version:2 producer_id:8 first_offset:8 last_offset:8 last_stable:8

`last_offset` is the marker's, `last_stable` the first offset that was not yet decided when the marker had been written:
a reader of committed records that wants nothing behind it need not look further. Segments without an entry, nearly all
of them, have no file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from ottla.errors import StorageFault
from ottla.log.cleaned_transactions import AbortedTransaction
from ottla.log.unsynced import Mark, Unsynced
from ottla.runtime import Disk

SUFFIX = ".txnindex"

_VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size


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

    __slots__ = ("_disk", "_draft", "_entries", "_late", "_path", "_torn", "_unsynced")

    def __init__(self, disk: Disk, stem: str, *, found: bool = False) -> None:
        self._disk = disk
        self._path = stem + SUFFIX
        self._entries: list[AbortedTransaction] | None = None if found else []
        self._late: list[AbortedTransaction] = []  # added while what is in the file could not be read
        self._unsynced = Mark()
        self._torn = False
        self._draft = False

    def begin_again(self) -> None:
        """Its segment is read anew. The file stays as it is meanwhile: it may be all that a crash would leave."""
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
    def entries(self) -> list[AbortedTransaction]:
        if self._entries is None:
            self._entries = decode(self._disk.read(self._path)) + self._late
            self._late = []
        return self._entries

    def add(self, entry: AbortedTransaction) -> None:
        """The batch stands in the log, so this cannot fail: if the disk refuses, it is asked again at the next sync. An
        index that cannot be read is left for whoever reads it next, and makes it anew from the log."""
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
        """Forget what ended behind the log end. Durable on return. One that cannot be read stays as it is: it is made
        anew from what is left of the log."""
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
            self._entries = None
