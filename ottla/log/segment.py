"""One segment of a log: a file of batches, named by its base offset, and two sparse indexes.

Only the last segment of a log is written (the active segment). All others are closed: they do not change, and are only
deleted. Most segments of a broker are closed and not in memory, so opening one costs one `stat`. Indexes and timestamps
are loaded by the first caller that needs them, on the event loop or in a thread. Loading is idempotent, so a race only
repeats work.
"""

from __future__ import annotations

import logging
import struct
from array import array
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet

from crc32c import crc32c

from ottla.errors import ErrorCode, Refused, StorageFault
from ottla.log.index import DELETED_SUFFIX, RELATIVE_OFFSET_MAX, IndexBuilder, IndexDamaged, OffsetIndex, TimeIndex
from ottla.log.log_config import LogConfig
from ottla.log.scan import headers
from ottla.log.unsynced import Unsynced
from ottla.runtime import Disk, File
from ottla.wire.batch import HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, NO_TIMESTAMP, BatchHeader

_logger = logging.getLogger("ottla.log")

NOT_HERE = -1
"""`find`: every batch of the segment ends before the offset."""
COLD = -2
"""`find` without waiting: the answer needs a read from the device."""

_ALWAYS = -2
"""A roll timestamp below every timestamp, and an offset bound below every offset: take the slow path."""
_NEVER = 2**63 - 1

# base_offset, length, magic, last_offset_delta: the fields that a scan of batches needs.
_STEP = struct.Struct(">qi4xb6xi")
_WALK_BYTES = 8192


def file_stem(directory: str, base_offset: int) -> str:
    return f"{directory}/{base_offset:020d}"


class Reader(Protocol):
    kept: File | None
    """The file to read from after the segment's file was removed."""


class IndexClaims(Protocol):
    def index_crcs(self, base_offset: int, size: int) -> tuple[int | None, int | None]:
        """CRC-32C of the .index and the .timeindex of a segment that has this size; None: unknown."""


class Segment:
    """The batches from `base_offset` up to the next segment."""

    __slots__ = (
        "_disk", "_index_entries_max", "_index_interval_bytes", "_max_timestamp", "_max_timestamp_offset", "awake",
        "base_offset", "claims", "created_ms", "deleted", "first_timestamp", "log", "offset_max", "offsets",
        "read_failed", "readers", "roll_timestamp", "size", "times", "unindexed_bytes",
    )  # fmt: skip

    def __init__(self, disk: Disk, directory: str, base_offset: int, *, created_ms: int) -> None:
        stem = file_stem(directory, base_offset)
        self._disk = disk
        self.base_offset = base_offset
        self.log: File = disk.open(stem + ".log", create=True)
        self.offsets = OffsetIndex(disk, stem + ".index")
        self.times = TimeIndex(disk, stem + ".timeindex")
        self.size = self.log.size()
        self.created_ms = created_ms
        self.deleted = False
        self.readers: WeakSet[Reader] | None = None  # readers with slices that are not loaded yet
        self.read_failed = False  # the device has refused to give some of it
        self.claims: IndexClaims | None = None  # the claims of the index files
        self._max_timestamp: int | None = None
        self._max_timestamp_offset = base_offset
        # Below: only while it is the one that is written to.
        self.awake = False
        self.first_timestamp = NO_TIMESTAMP
        self.roll_timestamp = _ALWAYS
        self.offset_max = _ALWAYS
        self.unindexed_bytes = 0
        self._index_interval_bytes = 0
        self._index_entries_max = 0
        if not self.size:
            self.forget_all()

    def forget_all(self) -> None:
        """The segment is empty, and so are its indexes."""
        self.offsets.replace(array("i"), array("i"))
        self.times.replace(array("q"), array("i"))
        self._max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = self.base_offset

    # -- writing ---------------------------------------------------------------------------------------------

    def wake(self, config: LogConfig) -> None:
        """Load what appending needs."""
        self.load_indexes()
        self.load_max_timestamp()
        last_entry = self.offsets.positions[-1] if self.offsets.positions else 0
        self.unindexed_bytes = self.size - last_entry
        self.awake = True
        if self.size:
            first = next(headers(self.log, 0, self.size), None)
            self.first_timestamp = first[1].max_timestamp if first is not None else NO_TIMESTAMP
        self.configure(config)

    def configure(self, config: LogConfig) -> None:
        self._index_interval_bytes = config.index_interval_bytes
        self._index_entries_max = config.segment_index_bytes // TimeIndex.ENTRY_BYTES - 1
        self.offset_max = self.base_offset + RELATIVE_OFFSET_MAX if not self._indexes_full() else _ALWAYS
        if self.size:
            self.begin(self.first_timestamp, config)

    def begin(self, first_timestamp: int, config: LogConfig) -> None:
        """The time a segment is to be rolled counts from its first batch, as Kafka's does."""
        self.first_timestamp = first_timestamp
        if first_timestamp >= 0:
            # Logs that began together shall not all roll together, and a restart shall not change when they
            # do.
            jitter = crc32c(self.log.path.encode()) % (config.segment_jitter_ms + 1)
            self.roll_timestamp = min(first_timestamp + config.segment_ms - jitter, _NEVER)
        else:
            self.roll_timestamp = _ALWAYS  # no timestamps: the slow path compares clocks

    def must_roll(self, config: LogConfig, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        if not self.size:
            return last_offset - self.base_offset > RELATIVE_OFFSET_MAX
        if self.size + size > config.segment_bytes or last_offset > self.offset_max:
            return True
        if self.first_timestamp >= 0:
            return max_timestamp > self.roll_timestamp
        return now_ms - self.created_ms > config.segment_ms

    def note(self, size: int, last_offset: int, max_timestamp: int) -> None:
        """A batch of `size` bytes was appended to the file."""
        position = self.size
        self.size = position + size
        if max_timestamp > self._max_timestamp:  # type: ignore[operator]  # known while awake
            self._max_timestamp = max_timestamp
            self._max_timestamp_offset = last_offset
        unindexed = self.unindexed_bytes
        if unindexed > self._index_interval_bytes:
            self._add_entries(last_offset, position)
            unindexed = 0
        self.unindexed_bytes = unindexed + size

    def _add_entries(self, last_offset: int, position: int) -> None:
        self.offsets.add(last_offset - self.base_offset, position)
        self.times.add(self.max_timestamp, self._max_timestamp_offset - self.base_offset)
        if self._indexes_full():
            self.offset_max = _ALWAYS

    def _indexes_full(self) -> bool:
        return len(self.offsets) >= self._index_entries_max

    def seal(self) -> None:
        """Write the indexes. The last entry of the time index then has the largest timestamp."""
        self.load_indexes()
        self.load_max_timestamp()
        self.times.add(self.max_timestamp, self._max_timestamp_offset - self.base_offset)
        self.offsets.write()
        self.times.write()

    def unsynced_indexes(self) -> list[Unsynced]:
        """The index files that have to be synced, written."""
        return self.offsets.unsynced() + self.times.unsynced() if self.size else []

    def create(self) -> None:
        """Create the empty file: its name has the log end."""
        self.log.append(b"")

    def create_indexes(self) -> None:
        """Create the empty index files before the first append."""
        self.offsets.create()
        self.times.create()

    def renew_indexes(self) -> None:
        """Write rebuilt indexes to their files."""
        self.offsets.renew(wanted=self.size > 0)
        self.times.renew(wanted=self.size > 0)

    def truncate(self, position: int) -> None:
        """Cut at the start of a batch."""
        assert position <= self.size
        self.load_indexes()
        self.log.truncate(position)
        self.size = position
        if not position:
            self.forget_all()
            self.renew_indexes()
        else:
            self.offsets.truncate(position)
            last = 0
            for _, header in headers(self.log, self.offsets.positions[-1] if self.offsets.positions else 0, position):
                last = header.last_offset
            self.times.truncate(last + 1 - self.base_offset)
            self._max_timestamp = None
            self._scan_max_timestamp()
            # Nothing may be appended before it is closed, and only a segment with loaded indexes is closed then.
            self.times.add(self.max_timestamp, self._max_timestamp_offset - self.base_offset)
        self.awake = False
        self.roll_timestamp = self.offset_max = _ALWAYS

    # -- looking up ------------------------------------------------------------------------------------------

    @property
    def max_timestamp(self) -> int:
        if self._max_timestamp is None:
            self.load_max_timestamp()
        assert self._max_timestamp is not None
        return self._max_timestamp

    @property
    def max_timestamp_offset(self) -> int:
        """The last offset of the batch that has the largest timestamp."""
        self.load_max_timestamp()
        return self._max_timestamp_offset

    def load_max_timestamp(self) -> None:
        if self._max_timestamp is not None:
            return
        self.load_indexes()
        last = self.times.last()
        if last is None:
            self._scan_max_timestamp()
            return
        if not self._has_entry(last):
            self.rebuild_indexes()
        else:
            self._max_timestamp_offset = last[1] + self.base_offset
            self._max_timestamp = last[0]

    def known_before(self, timestamp: int) -> int:
        """An offset before which every record is earlier than `timestamp`, as close as the time index has it."""
        entry = self.times.floor(timestamp)
        return self.base_offset + entry[1] if entry is not None and self._has_entry(entry) else self.base_offset

    def _has_entry(self, entry: tuple[int, int]) -> bool:
        """Whether the log agrees with an entry of the time index: no checksum covers that."""
        timestamp, offset = entry[0], entry[1] + self.base_offset
        header = self._header_of(offset)
        return header is not None and header.max_timestamp == timestamp and header.last_offset == offset

    def _scan_max_timestamp(self) -> None:
        """The largest timestamp: of the last time index entry, and of later batches."""
        last = self.times.last()
        timestamp, offset = NO_TIMESTAMP, self.base_offset
        position = 0
        if last is not None:
            timestamp, offset = last[0], last[1] + self.base_offset
            entry = self.offsets.floor(last[1])
            position = entry[1] if entry is not None else 0
        for _, header in headers(self.log, position, self.size):
            if header.max_timestamp > timestamp:
                timestamp, offset = header.max_timestamp, header.last_offset
        self._max_timestamp_offset = offset
        self._max_timestamp = timestamp

    def _header_of(self, offset: int) -> BatchHeader | None:
        """The header of the batch with `offset`, or of the next batch."""
        position = self.find(offset)
        if position < 0:
            return None
        return next(headers(self.log, position, self.size), (0, None))[1]

    def load_indexes(self) -> None:
        """Load the indexes from their files, or from the log if those are missing or damaged."""
        if self.offsets.loaded and self.times.loaded:
            return
        offsets_crc = times_crc = None
        if self.claims is not None:
            offsets_crc, times_crc = self.claims.index_crcs(self.base_offset, self.size)
        try:
            if not self.offsets.loaded:
                self.offsets.load(self.size, offsets_crc)
            if not self.times.loaded:
                self.times.load(times_crc)
        except IndexDamaged as damaged:
            path = (self.times if self.offsets.loaded else self.offsets).path
            if (offsets_crc, times_crc) != (None, None) or self._disk.exists(path):
                _logger.warning("%s is rebuilt from the log: %s", path, damaged)
            self.rebuild_indexes()

    def rebuild_indexes(self) -> None:
        """Rebuild the indexes from the batch headers. In memory only: the files are written when the segment is
        closed."""
        self.adopt(self.build_indexes(self._index_interval_bytes or LogConfig().index_interval_bytes))

    def build_indexes(self, interval_bytes: int) -> IndexBuilder:
        builder = IndexBuilder(self.base_offset, interval_bytes)
        for position, header in headers(self.log, 0, self.size):
            builder.add(position, header)
        builder.finish()
        return builder

    def adopt(self, builder: IndexBuilder) -> None:
        builder.finish()
        self._max_timestamp_offset = builder.max_timestamp_offset
        self._max_timestamp = builder.max_timestamp
        self.offsets.replace(builder.offsets, builder.positions)
        self.times.replace(builder.timestamps, builder.timestamp_offsets)

    def drop_indexes(self) -> None:
        if not self.awake:
            self.offsets.drop()
            self.times.drop()

    def find(self, offset: int, *, wait: bool = True) -> int:
        """The position of the first batch that ends at or behind `offset`; or NOT_HERE; or COLD."""
        if not self.offsets.loaded:
            if not wait:
                return COLD
            self.load_indexes()
        entry = self.offsets.floor(offset - self.base_offset)
        if entry is None:
            return self._walk(0, self.size, offset, wait)
        entry_offset, position = entry
        try:
            return self._walk(position, self.size, offset, wait, self.base_offset + entry_offset)
        except IndexDamaged:
            if not wait:
                return COLD
            self.rebuild_indexes()
            return self.find(offset)

    def _walk(self, position: int, end: int, offset: int, wait: bool, entry_offset: int = _NEVER) -> int:
        """Scan from batch to batch, from the position in the index."""
        read = self.log.pread if wait else self.log.pread_nowait
        base, step = self.base_offset, _STEP
        while end - position >= HEADER_BYTES:
            chunk = read(min(_WALK_BYTES, end - position), position)
            if chunk is None:
                return COLD
            at, enough = 0, len(chunk) - step.size
            while at <= enough:
                batch_base, length, magic, delta = step.unpack_from(chunk, at)
                if magic != MAGIC or length < HEADER_BYTES - LENGTH_OVERHEAD or not base <= batch_base <= entry_offset:
                    if entry_offset != _NEVER:
                        raise IndexDamaged("an entry does not point at a batch")
                    raise Refused(ErrorCode.corrupt_message, f"{self.log.path} is damaged at {position + at}")
                if batch_base + delta >= offset:
                    return position + at
                at += length + LENGTH_OVERHEAD
                entry_offset = _NEVER
            if not at:
                break
            position += at
        return NOT_HERE

    def end_of_batches(self, position: int, bytes_max: int, *, whole_first: bool, wait: bool) -> int:
        """Where the last whole batch ends within `bytes_max` from `position`, which begins one; or COLD.

        Where the first one ends if that is larger and `whole_first`, at `position` if not.
        """
        read = self.log.pread if wait else self.log.pread_nowait
        step = _STEP
        end, most = position, position + bytes_max
        while self.size - end >= HEADER_BYTES:
            chunk = read(min(max(most - end, step.size), _WALK_BYTES, self.size - end), end)
            if chunk is None:
                return COLD
            at, enough = 0, len(chunk) - step.size
            while at <= enough:
                base_offset, length, magic, _ = step.unpack_from(chunk, at)
                if magic != MAGIC or length < HEADER_BYTES - LENGTH_OVERHEAD or base_offset < self.base_offset:
                    raise Refused(ErrorCode.corrupt_message, f"{self.log.path} is damaged at {end + at}")
                following = end + at + length + LENGTH_OVERHEAD
                if following > most:
                    return following if whole_first and end + at == position else end + at
                at += length + LENGTH_OVERHEAD
            if not at:
                break
            end += at
        return end

    # -- leaving ---------------------------------------------------------------------------------------------

    def delete(self, *, indexes: bool = True) -> None:
        """Rename the file at once, and remove it later (`unlink`): a reader may still use it. Indexes may keep their
        names if no other segment gets the same base offset: without a log file they are ignored."""
        deleted = self.log.path + DELETED_SUFFIX
        if self._disk.exists(self.log.path):
            self.log.rename(deleted)
        else:
            self.log = self._disk.open(deleted)
        self.deleted = True
        self.awake = False
        if indexes:
            self.offsets.rename_deleted()
            self.times.rename_deleted()

    def hold(self, reader: Reader) -> None:
        """Keep the file for a reader, also if the segment is deleted."""
        if self.readers is None:
            self.readers = WeakSet()
        self.readers.add(reader)

    def unlink(self) -> None:
        assert self.deleted
        readers = list(self.readers or ())
        if readers:
            with suppress(StorageFault):  # then the reader gets the error
                kept = self.log.keep()
                for reader in readers:
                    reader.kept = kept
        self.close()
        for file in (self.log, self.offsets.file, self.times.file):
            self._disk.remove(file.path)

    def close(self) -> None:
        self.log.close()
        self.offsets.close()
        self.times.close()
