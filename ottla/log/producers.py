"""Producer state of one log (KIP-98): the last batches of idempotent producers, so that no retry is appended twice.

A producer numbers its records in each partition. A batch has a producer id, a producer epoch and the sequence of its
first record. For each producer id the log remembers the epoch and the last five batches, as many as a client may have
in flight. A batch is one of
    next                  base_sequence follows the last remembered one (2^31-1 is followed by 0)
    duplicate             one of the five: answered with the offset it already has, not appended
    older duplicate       before the five: refused with DUPLICATE_SEQUENCE_NUMBER, which clients treat as success
    out of order          anything else: refused, because a batch before it is missing
An unknown producer (new, expired, or its records were deleted) may start with any sequence. A new epoch of a known
producer starts at 0. An older epoch is fenced.

The state follows from the log: `record` is called for every batch, on a leader, on a follower and in recovery.
Snapshots (`<offset>.snapshot`, Kafka's format) have the last batch of each producer before that offset, so recovery
reads only the headers after the newest snapshot. A snapshot is written at the start of each segment, so that a
truncation need not read the whole log, and at the log end on a clean close. It has a checksum: if it is damaged, an
older one is used. The start of a producer's open transaction is part of its state and of the snapshots
(`transactions`).
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection, ItemsView, Iterable
from heapq import nsmallest
from typing import NamedTuple

from crc32c import crc32c

from ottla.errors import ErrorCode, Refused
from ottla.log.segment import file_stem
from ottla.log.unsynced import Mark, Unsynced
from ottla.runtime import Disk, File
from ottla.wire.batch import CONTROL, SEQUENCE_MAX, TRANSACTIONAL, BatchHeader

BATCHES_REMEMBERED = 5
NO_OFFSET = -1
NO_SEQUENCE = -1
NO_EPOCH = -1

_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hI")
_SNAPSHOT_COUNT = struct.Struct(">i")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")

_SEQUENCES = SEQUENCE_MAX + 1


class BatchMetadata(NamedTuple):
    """One remembered batch."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    max_timestamp: int


class ProducerStateEntry:
    """One producer id in one log."""

    __slots__ = (
        "batches", "coordinator_epoch", "epoch", "last_seen_ms", "last_timestamp", "next_sequence", "transaction_start",
    )  # fmt: skip

    def __init__(self, epoch: int, now_ms: int) -> None:
        self.epoch = epoch
        self.batches: list[BatchMetadata] = []  # oldest first, at most BATCHES_REMEMBERED
        self.next_sequence = 0
        self.last_timestamp = -1
        self.last_seen_ms = now_ms  # by our clock: clients may write any timestamp they like
        self.coordinator_epoch = NO_EPOCH
        self.transaction_start = NO_OFFSET  # first offset of the open transaction


_logger = logging.getLogger("ottla.log")


class SnapshotDamaged(Exception):
    """The bytes are no producer snapshot."""


class Producers:
    """The producers of one log, by id."""

    __slots__ = ("_producers", "ids_max")

    def __init__(self, ids_max: int) -> None:
        assert ids_max > 0
        self.ids_max = ids_max
        self._producers: dict[int, ProducerStateEntry] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: int) -> ProducerStateEntry | None:
        return self._producers.get(producer_id)

    def items(self) -> ItemsView[int, ProducerStateEntry]:
        return self._producers.items()

    def expected(self, producer_id: int, epoch: int) -> int | None:
        """The sequence that its next batch should have; None if any would do."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return None
        return producer.next_sequence if producer.epoch == epoch else 0

    def check(self, header: BatchHeader) -> BatchMetadata | None:
        """None: append it. A remembered batch: it is a duplicate of that one. Refused: do not append it."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        epoch = header.producer_epoch
        sequence = header.base_sequence
        if epoch == producer.epoch:
            if sequence == producer.next_sequence:
                return None
            return self._explain(producer, header)
        if epoch < producer.epoch:
            raise Refused(
                ErrorCode.invalid_producer_epoch,
                f"producer {header.producer_id} has epoch {producer.epoch} by now, the batch has {epoch}",
            )
        if sequence != 0:
            raise Refused(
                ErrorCode.out_of_order_sequence_number,
                f"producer {header.producer_id} begins epoch {epoch} with sequence {sequence} instead of 0",
            )
        return None

    def _explain(self, producer: ProducerStateEntry, header: BatchHeader) -> BatchMetadata:
        """The batch is not the next one: which one is it?"""
        base, last = header.base_sequence, header.last_sequence
        for appended in producer.batches:
            if appended.base_sequence == base and appended.last_sequence == last:
                return appended
        if producer.batches:
            # Sequences run in a circle: what lies less than half of it behind the oldest remembered one is
            # older.
            behind = (producer.batches[0].base_sequence - last) % _SEQUENCES
            if 0 < behind < _SEQUENCES // 2:
                raise Refused(
                    ErrorCode.duplicate_sequence_number,
                    f"producer {header.producer_id} appended sequence {base} long ago",
                )
        raise Refused(
            ErrorCode.out_of_order_sequence_number,
            f"producer {header.producer_id} sends sequence {base}, expected is {producer.next_sequence}",
        )

    def record(self, header: BatchHeader, base_offset: int, now_ms: int, *, coordinator_epoch: int = NO_EPOCH) -> None:
        """The batch is in the log at `base_offset`. Checks nothing: batches in the log are accepted."""
        epoch = header.producer_epoch
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._add(header.producer_id, epoch, now_ms)
        elif epoch != producer.epoch:
            producer.epoch = epoch
            producer.batches.clear()
            producer.next_sequence = 0
        producer.last_seen_ms = now_ms
        producer.last_timestamp = header.max_timestamp
        attributes = header.attributes
        if attributes & CONTROL:  # the end of a transaction; has no sequence
            producer.transaction_start = NO_OFFSET
            producer.coordinator_epoch = max(producer.coordinator_epoch, coordinator_epoch)
            return
        if attributes & TRANSACTIONAL and producer.transaction_start == NO_OFFSET:
            producer.transaction_start = base_offset
        delta = header.last_offset_delta
        base_sequence = header.base_sequence
        last_sequence = (base_sequence + delta) & SEQUENCE_MAX if base_sequence >= 0 else NO_SEQUENCE
        producer.next_sequence = (last_sequence + 1) & SEQUENCE_MAX
        batches = producer.batches
        if len(batches) == BATCHES_REMEMBERED:
            del batches[0]
        batches.append(
            BatchMetadata(base_sequence, last_sequence, base_offset, base_offset + delta, header.max_timestamp)
        )

    def _add(self, producer_id: int, epoch: int, now_ms: int) -> ProducerStateEntry:
        if len(self._producers) >= self.ids_max:
            self._forget_some()
        producer = self._producers[producer_id] = ProducerStateEntry(epoch, now_ms)
        return producer

    def _forget_some(self) -> None:
        """Make room, a tenth at a time so that the search is paid rarely, and never inside a transaction."""
        idle = ((p.last_seen_ms, id_) for id_, p in self._producers.items() if p.transaction_start == NO_OFFSET)
        for _, producer_id in nsmallest(max(1, self.ids_max // 10), idle):
            del self._producers[producer_id]

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Expire producers that were silent for so long, unless a transaction is open. Returns how many."""
        silent = [
            producer_id
            for producer_id, producer in self._producers.items()
            if now_ms - producer.last_seen_ms >= expiration_ms and producer.transaction_start == NO_OFFSET
        ]
        for producer_id in silent:
            del self._producers[producer_id]
        return len(silent)

    def close_transactions(self) -> None:
        """Whether a transaction is open is unknown: a producer with an open one writes to it, or its coordinator ends
        it."""
        for producer in self._producers.values():
            producer.transaction_start = NO_OFFSET

    def clear(self) -> None:
        self._producers.clear()

    def encode(self) -> bytes:
        """Kafka's snapshot, version 1: of each producer the last batch."""
        parts = [_SNAPSHOT_COUNT.pack(len(self._producers))]
        for producer_id, producer in self._producers.items():
            last = producer.batches[-1] if producer.batches else None
            parts.append(
                _SNAPSHOT_ENTRY.pack(
                    producer_id,
                    producer.epoch,
                    last.last_sequence if last else NO_SEQUENCE,
                    last.last_offset if last else NO_OFFSET,
                    last.last_offset - last.base_offset if last else 0,
                    producer.last_timestamp,
                    producer.coordinator_epoch,
                    producer.transaction_start,
                )
            )
        body = b"".join(parts)
        return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, crc32c(body)) + body

    def load(self, data: bytes, now_ms: int) -> None:
        """Begin from a snapshot. SnapshotDamaged leaves everything as it was."""
        entries = _SNAPSHOT_HEAD.size + _SNAPSHOT_COUNT.size
        if len(data) < entries:
            raise SnapshotDamaged("it is too short")
        version, crc = _SNAPSHOT_HEAD.unpack_from(data)
        if version != _SNAPSHOT_VERSION:
            raise SnapshotDamaged(f"its version is {version}")
        if crc32c(memoryview(data)[_SNAPSHOT_HEAD.size :]) != crc:
            raise SnapshotDamaged("its checksum is wrong")
        (count,) = _SNAPSHOT_COUNT.unpack_from(data, _SNAPSHOT_HEAD.size)
        if count * _SNAPSHOT_ENTRY.size != len(data) - entries:
            raise SnapshotDamaged("its length does not fit its count")
        self._producers.clear()
        for entry in _SNAPSHOT_ENTRY.iter_unpack(data[entries:]):
            producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, transaction_start = entry
            producer = self._add(producer_id, epoch, now_ms)
            producer.last_timestamp = timestamp
            producer.coordinator_epoch = coordinator_epoch
            producer.transaction_start = transaction_start
            if offset >= 0:
                base_sequence = (sequence - delta) & SEQUENCE_MAX if sequence >= 0 else NO_SEQUENCE
                producer.next_sequence = (sequence + 1) & SEQUENCE_MAX
                producer.batches.append(BatchMetadata(base_sequence, sequence, offset - delta, offset, timestamp))


SUFFIX = ".snapshot"


class Snapshots:
    """Which snapshots there are, oldest first."""

    __slots__ = ("_crcs", "_disk", "_offsets", "_path", "_unsynced")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._offsets: list[int] = []
        self._unsynced: dict[int, Mark] = {}
        self._crcs: dict[int, int] = {}  # of the files, as far as it is known without reading them

    def claims(self) -> tuple[tuple[int, int], ...]:
        """Offset and checksum of each, for the manifest. Reads those that nothing else is known of."""
        for offset in self._offsets:
            if offset not in self._crcs and self._disk.exists(self._name(offset)):
                self._crcs[offset] = crc32c(self._read(offset))
        return tuple(sorted(self._crcs.items()))

    def expect(self, claims: Iterable[tuple[int, int]]) -> None:
        """What the manifest says of them."""
        self._crcs.update((offset, crc) for offset, crc in claims if crc >= 0 and offset in self._offsets)

    @property
    def offsets(self) -> list[int]:
        return list(self._offsets)

    def found(self, offset: int) -> None:
        """There is one at `offset`; called in ascending order."""
        self._offsets.append(offset)

    def write(self, offset: int, producers: Producers) -> None:
        """Not synced yet: until then a crash merely costs a longer replay."""
        file = self._file(offset, create=True)
        file.truncate(0)
        data = producers.encode()
        self._crcs.pop(offset, None)
        file.append(data)
        file.close()
        self._crcs[offset] = crc32c(data)
        if offset not in self._offsets:
            self._offsets.append(offset)
            self._offsets.sort()
        self._unsynced.setdefault(offset, Mark()).written()

    def unsynced(self, offset: int) -> list[Unsynced]:
        """The snapshot at `offset`, if it has to be synced."""
        mark = self._unsynced.get(offset)
        return mark.of(self._file(offset), passing=True) if mark else []

    def load(self, producers: Producers, offset_max: int, now_ms: int) -> int:
        """Put the newest whole snapshot up to `offset_max` into `producers`; returns its offset, or -1.

        Damaged ones are removed: they can only mislead.
        """
        producers.clear()
        for offset in reversed([offset for offset in self._offsets if offset <= offset_max]):
            try:
                producers.load(self._read(offset), now_ms)
            except (SnapshotDamaged, FileNotFoundError) as problem:
                if isinstance(problem, SnapshotDamaged):
                    name = self._name(offset)
                    _logger.warning("%s was removed: %s. An older snapshot and the log replace it.", name, problem)
                self.remove(offset)
            else:
                return offset
        return -1

    def is_damaged(self, offset: int) -> bool:
        """Blocks; for a thread."""
        try:
            Producers(ids_max=1).load(self._read(offset), now_ms=0)
        except SnapshotDamaged:
            return True
        except FileNotFoundError:
            pass
        return False

    def _read(self, offset: int) -> bytes:
        data = self._disk.read(self._name(offset))
        if self._crcs.get(offset, crc := crc32c(data)) != crc:
            raise SnapshotDamaged("it is not what was written to it")
        return data

    def truncate(self, log_end: int) -> None:
        """Snapshots after the log end are of truncated batches."""
        for offset in [offset for offset in self._offsets if offset > log_end]:
            self.remove(offset)

    def drop_before(self, offset: int) -> None:
        for old in [old for old in self._offsets if old < offset]:
            self.remove(old)

    def prune(self, wanted: Collection[int]) -> None:
        """Keep those at the given offsets."""
        for offset in set(self._offsets).difference(wanted):
            self.remove(offset)

    def remove(self, offset: int) -> None:
        self._disk.remove(self._name(offset))  # first: one that stays has to be removed later
        self._offsets.remove(offset)
        self._unsynced.pop(offset, None)
        self._crcs.pop(offset, None)

    def discard(self, offset: int) -> None:
        if offset in self._offsets:
            self.remove(offset)

    def _name(self, offset: int) -> str:
        return file_stem(self._path, offset) + SUFFIX

    def _file(self, offset: int, *, create: bool = False) -> File:
        return self._disk.open(self._name(offset), create=create)
