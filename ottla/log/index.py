"""Offset index and time index of a segment, in Kafka's format. Both are sparse.

    .index      8 bytes an entry: last offset of a batch (relative to the segment's base), its position
    .timeindex  12 bytes an entry: largest timestamp so far, last offset (relative) of the batch that has it

Both have about one entry for each `index.interval.bytes`, ascending in both columns. They can be rebuilt from the log.
So they are in memory while their segment is written, are written to disk when it is rolled, flushed or closed, and are
loaded again by the first lookup. Their files exist from the first append on, empty, because Kafka's tools open them. An
index whose entries do not ascend or point outside the log, or whose checksum is not that of the manifest, is
IndexDamaged, and the segment rebuilds it. The checksum is compared when the index is loaded: the start of a broker
reads no index.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from itertools import islice
from operator import lt

from crc32c import crc32c

from ottla.errors import StorageFault
from ottla.log.unsynced import Mark, Unsynced
from ottla.runtime import Disk, File
from ottla.wire.batch import NO_TIMESTAMP, BatchHeader

_SWAP = sys.byteorder == "little"
DELETED_SUFFIX = ".deleted"
RELATIVE_OFFSET_MAX = 2**31 - 1


class IndexDamaged(Exception):
    """The file is not an index of its segment."""


class _Index(ABC):
    """Base class: a file that may have fewer entries than the memory, or entries that are not loaded. Both columns are
    one reference, so that a lookup in a thread sees matching columns."""

    __slots__ = ("_columns", "_disk", "_file", "_unsynced", "_written", "loaded")

    ENTRY_BYTES: int
    NOT_LOADED: tuple[array[int], array[int]]
    """The columns of all indexes that are not loaded."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._columns = self.NOT_LOADED
        self._disk = disk
        self._file: File = disk.open(path, create=True)
        self._written = 0  # entries that the file has; -1: the file was not written by this object
        self._unsynced = Mark()
        self.loaded = False

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def file(self) -> File:
        return self._file

    def __len__(self) -> int:
        return len(self._columns[0])

    def replace(self, first: array[int], second: array[int]) -> None:
        """Use the columns of a rebuilt index; the file is rewritten at the next write."""
        self._take(first, second, written=-1)

    def _take(self, first: array[int], second: array[int], *, written: int) -> None:
        self._columns = first, second
        self._written = written
        self.loaded = True

    def drop(self) -> None:
        """Free the memory; the next lookup loads the index again."""
        if self.loaded and self._written == len(self):
            self.loaded = False
            self._columns = self.NOT_LOADED

    def _last_in_file(self) -> bytes | None:
        """The last entry, unchecked; None: there is none."""
        entries = self._file.size() // self.ENTRY_BYTES
        return self._file.pread(self.ENTRY_BYTES, (entries - 1) * self.ENTRY_BYTES) if entries else None

    @abstractmethod
    def encode(self, since: int) -> bytes: ...

    def _read(self, crc: int | None) -> bytes:
        """Read the file. `crc`: its expected checksum, if known."""
        try:
            data = self._disk.read(self._file.path)
        except FileNotFoundError:
            raise IndexDamaged("it is missing") from None
        except StorageFault:
            if not self._disk.is_directory(self._file.path):
                raise
            self._disk.rename(self._file.path, f"{self._file.path}.damaged")
            raise IndexDamaged("it was a directory, which is quarantined") from None
        if len(data) % self.ENTRY_BYTES:
            raise IndexDamaged("its length is no whole number of entries")
        if crc is not None and crc32c(data) != crc:
            raise IndexDamaged("it is not what its manifest says")
        return data

    def write(self) -> None:
        """Write new entries to the file. A crash leaves fewer entries, which is no damage."""
        if not self.loaded or self._written == len(self):
            return
        kept = max(self._written, 0)
        self._file.truncate(kept * self.ENTRY_BYTES)  # also bytes of a failed write
        if kept < len(self):
            self._file.append(self.encode(kept))
        self._written = len(self)
        self._unsynced.written()

    def create(self) -> None:
        """Create the file of an empty index and close it: nothing is written to it for long."""
        assert not len(self)
        self.write()
        self._file.close()

    def renew(self, *, wanted: bool) -> None:
        """After a rebuild: the file may have entries of removed batches, or be missing."""
        if self._file.size() or (wanted and not self._disk.exists(self._file.path)):
            self.write()

    def _truncate_file(self, entries: int) -> None:
        if self._written > entries:
            self._written = entries
            self._file.truncate(entries * self.ENTRY_BYTES)
            self._unsynced.written()

    def unsynced(self) -> list[Unsynced]:
        """The file, written, if it has to be synced."""
        self.write()
        return self._unsynced.of(self._file)

    def rename_deleted(self) -> None:
        """Rename the file to `.deleted`; an index that was never written has none."""
        self._file.close()
        deleted = self._file.path + DELETED_SUFFIX
        if self._disk.exists(self._file.path):
            self._disk.rename(self._file.path, deleted)
        self._file = self._disk.open(deleted)

    def close(self) -> None:
        self._file.close()


def _ascends(column: array[int]) -> bool:
    return all(map(lt, column, islice(column, 1, None)))


class OffsetIndex(_Index):
    """Offset to position."""

    __slots__ = ()

    ENTRY_BYTES = 8
    NOT_LOADED = array("i"), array("i")

    @property
    def offsets(self) -> array[int]:
        return self._columns[0]

    @property
    def positions(self) -> array[int]:
        return self._columns[1]

    def add(self, offset: int, position: int) -> None:
        assert self.loaded
        self.offsets.append(offset)
        self.positions.append(position)

    def load(self, log_bytes: int, crc: int | None = None) -> None:
        columns = array("i", self._read(crc))
        if _SWAP:
            columns.byteswap()
        offsets, positions = columns[0::2], columns[1::2]
        if offsets and (offsets[0] < 0 or positions[0] < 0 or positions[-1] >= log_bytes):
            raise IndexDamaged("an entry points outside the log")
        if not (_ascends(offsets) and _ascends(positions)):
            raise IndexDamaged("its entries do not ascend")
        self._take(offsets, positions, written=len(offsets))

    def peek_last_position(self, log_bytes: int) -> int:
        """The position of the last entry, read without loading; 0 when there is none that makes sense."""
        position = self.last_recorded_position()
        return position if 0 <= position < log_bytes else 0

    def last_recorded_position(self) -> int:
        """The position of the last entry in the file, unchecked; -1 when there is none."""
        last = self._last_in_file()
        return -1 if last is None else int.from_bytes(last[4:], "big")

    def floor(self, offset: int) -> tuple[int, int] | None:
        """The last entry at or before `offset`: (offset, position)."""
        offsets, positions = self._columns
        at = bisect_right(offsets, offset, 0, len(positions)) - 1
        return (offsets[at], positions[at]) if at >= 0 else None

    def floor_position(self, position: int) -> int:
        """The last known start of a batch at or before `position`; 0 when none is known."""
        positions = self._columns[1]
        at = bisect_right(positions, position) - 1
        return positions[at] if at >= 0 else 0

    def offset_behind(self, position: int) -> int | None:
        """An offset after every batch that begins before `position`, as close as the index has it."""
        offsets, positions = self._columns
        at = bisect_left(positions, position)
        return offsets[at] + 1 if at < len(positions) else None

    def truncate(self, log_bytes: int) -> None:
        at = bisect_right(self.positions, log_bytes - 1)
        del self.offsets[at:], self.positions[at:]
        self._truncate_file(at)

    def encode(self, since: int) -> bytes:
        offsets, positions = self.offsets[since:], self.positions[since:]
        columns = array("i", bytes(len(offsets) * self.ENTRY_BYTES))
        columns[0::2], columns[1::2] = offsets, positions
        if _SWAP:
            columns.byteswap()
        return columns.tobytes()


class TimeIndex(_Index):
    """Timestamp to offset: records at or before the entry's offset are not later than its timestamp."""

    __slots__ = ()

    ENTRY_BYTES = 12
    NOT_LOADED = array("q"), array("i")

    @property
    def timestamps(self) -> array[int]:
        return self._columns[0]

    @property
    def offsets(self) -> array[int]:
        return self._columns[1]

    def add(self, timestamp: int, offset: int) -> None:
        """Add an entry, unless it adds nothing."""
        assert self.loaded
        if timestamp >= 0 and (not self.timestamps or timestamp > self.timestamps[-1]):
            self.timestamps.append(timestamp)
            self.offsets.append(offset)

    def load(self, crc: int | None = None) -> None:
        data = self._read(crc)
        words = array("i", data)
        offsets = words[2::3]
        halves = array("i", bytes(len(offsets) * 8))
        halves[0::2], halves[1::2] = words[0::3], words[1::3]
        timestamps = array("q", halves.tobytes())
        if _SWAP:
            offsets.byteswap()
            timestamps.byteswap()
        if offsets and (timestamps[0] < 0 or offsets[0] < 0):
            raise IndexDamaged("an entry is negative")
        if not (_ascends(timestamps) and _ascends(offsets)):
            raise IndexDamaged("its entries do not ascend")
        self._take(timestamps, offsets, written=len(offsets))

    def last_recorded_offset(self) -> int | None:
        """The offset of the last entry in the file, relative to its segment; None when there is none."""
        last = self._last_in_file()
        return None if last is None else int.from_bytes(last[8:], "big")

    def last(self) -> tuple[int, int] | None:
        timestamps, offsets = self._columns
        return (timestamps[-1], offsets[-1]) if timestamps else None

    def floor(self, timestamp: int) -> tuple[int, int] | None:
        """The last entry at or before `timestamp`: (timestamp, relative offset up to which no record is later)."""
        timestamps, offsets = self._columns
        at = bisect_right(timestamps, timestamp, 0, len(offsets)) - 1
        return (timestamps[at], offsets[at]) if at >= 0 else None

    def truncate(self, next_offset: int) -> None:
        at = bisect_right(self.offsets, next_offset - 1)
        del self.timestamps[at:], self.offsets[at:]
        self._truncate_file(at)

    def encode(self, since: int) -> bytes:
        timestamps, offsets = self.timestamps[since:], self.offsets[since:]
        if _SWAP:
            timestamps.byteswap()
            offsets.byteswap()
        halves = array("i", timestamps.tobytes())
        words = array("i", bytes(len(offsets) * self.ENTRY_BYTES))
        words[0::3], words[1::3], words[2::3] = halves[0::2], halves[1::2], offsets
        return words.tobytes()


class IndexBuilder:
    """Builds both indexes of a segment from its batch headers, as appends do."""

    __slots__ = (
        "_base", "_interval", "_unindexed", "max_timestamp", "max_timestamp_offset", "offsets", "positions",
        "timestamp_offsets", "timestamps",
    )  # fmt: skip

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self._base = base_offset
        self._interval = interval_bytes
        self._unindexed = 0
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.offsets = array("i")
        self.positions = array("i")
        self.timestamps = array("q")
        self.timestamp_offsets = array("i")

    def add(self, position: int, header: BatchHeader) -> None:
        if not 0 <= header.last_offset - self._base <= RELATIVE_OFFSET_MAX:
            return  # damaged: no checksum covers an offset. Readers of the batch detect it
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = header.last_offset
        if self._unindexed > self._interval:
            self.offsets.append(header.last_offset - self._base)
            self.positions.append(position)
            self.finish()
            self._unindexed = 0
        self._unindexed += header.size

    def finish(self) -> None:
        """Add the largest timestamp so far to the time index."""
        if self.max_timestamp >= 0 and (not self.timestamps or self.max_timestamp > self.timestamps[-1]):
            self.timestamps.append(self.max_timestamp)
            self.timestamp_offsets.append(self.max_timestamp_offset - self._base)
