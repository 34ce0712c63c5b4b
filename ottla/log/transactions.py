"""Transactions in one log: open ones (last stable offset), aborted ones, and verification of new ones (KIP-890).

A transaction begins in a log with the first batch of its producer, and ends with a marker. The last stable offset is
the start of the first open transaction: every transaction before it has ended, and `read_committed` readers read up to
there. Aborted records stay in the log; such readers get the producer ids whose records they must skip, from an offset
to the next marker (`aborted`), from the transaction index of each segment.

A marker that is not committed may be lost, and the end of its transaction with it: until the high watermark has passed
the marker, the transaction counts as open (`last_stable`).

The coordinator must know every transaction that begins here: otherwise no marker would ever end it (KIP-890). So the
first batch needs a guard. It is taken before the coordinator is asked, and checked at the append: it is valid only if
no marker was written in between, because then the coordinator's answer was about a transaction that has ended.

All of this follows from the batches of the log: `record` is called for every batch of a producer, on a leader, on a
follower and in recovery.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ottla.errors import ErrorCode, Refused
from ottla.log import transaction_index
from ottla.log.manifest import NO_CRC, LostEnd
from ottla.log.producers import NO_EPOCH, NO_OFFSET, Producers
from ottla.log.segment import file_stem
from ottla.log.transaction_index import SUFFIX, AbortedTransaction, TransactionIndex, TransactionIndexDamaged
from ottla.log.unsynced import Unsynced
from ottla.runtime import Buffer, Disk
from ottla.wire import marker as markers
from ottla.wire.batch import CONTROL, TRANSACTIONAL, BatchHeader
from ottla.wire.marker import Marker

INDEXES_LOADED_MAX = 2


class Guard:
    """A guard for the first append of a transaction (KIP-890). Compared by identity."""

    __slots__ = ("producer_epoch", "producer_id")

    def __init__(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch


class _Ended(NamedTuple):
    first_offset: int
    marker_offset: int


class Transactions:
    __slots__ = (
        "_bases", "_disk", "_ended", "_guards", "_indexes", "_open", "_path", "_producers", "_rebuild", "_trusted",
        "lost", "undecided",
    )  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        path: str,
        producers: Producers,
        rebuild: Callable[[int], None] | None = None,
        trusted: Callable[[int], bool] | None = None,
    ) -> None:
        """`rebuild` rebuilds the transaction index of the segment with that base offset from the log; `trusted` says
        whether its file is the one in the manifest."""
        self._disk = disk
        self._path = path
        self._producers = producers
        self._rebuild = rebuild
        self._trusted = trusted
        self._open: dict[int, int] = {}  # producer id to first offset, in the order of offsets
        self._ended: deque[_Ended] = deque()  # those whose marker may not be committed yet, in the markers' order
        self._indexes: dict[int, TransactionIndex] = {}  # by base offset, where there are entries
        self._bases: Sequence[int] = ()
        self._guards: dict[int, Guard] = {}
        self.lost: tuple[LostEnd, ...] = ()
        """Aborted transactions whose marker is lost (`undecided`)."""
        self.undecided: tuple[LostEnd, ...] = ()
        """Transactions that may have ended in a lost range."""

    # -- the log moves -----------------------------------------------------------------------------------------

    def record(
        self, header: BatchHeader, batch: Buffer, base_offset: int, now_ms: int, *, segment_base: int | None = None
    ) -> None:
        """Record a batch of a producer that is in the log; by default in the active segment. Checks nothing."""
        attributes = header.attributes
        if not attributes & TRANSACTIONAL:
            self._producers.record(header, base_offset, now_ms)
        elif not attributes & CONTROL:
            self._producers.record(header, base_offset, now_ms)
            self._guards.pop(header.producer_id, None)
            self._open.setdefault(header.producer_id, base_offset)
        else:
            marker = self._record_marker(header, batch, base_offset, now_ms)
            first_offset = self._close(header.producer_id, base_offset)
            if first_offset is not None and marker is not None and not marker.committed:
                base = self._bases[-1] if segment_base is None else segment_base
                self._add_aborted(header.producer_id, first_offset, base_offset, base)

    def replay(self, header: BatchHeader, batch: Buffer, now_ms: int) -> None:
        """As `record`, for a batch that is in a transaction index already."""
        if not header.attributes & CONTROL:
            self.record(header, batch, header.base_offset, now_ms)
        else:
            self._record_marker(header, batch, header.base_offset, now_ms)
            self._close(header.producer_id, header.base_offset)

    def _record_marker(self, header: BatchHeader, batch: Buffer, base_offset: int, now_ms: int) -> Marker | None:
        marker = markers.read(batch)
        epoch = NO_EPOCH if marker is None else marker.coordinator_epoch
        self._producers.record(header, base_offset, now_ms, coordinator_epoch=epoch)
        return marker

    def _close(self, producer_id: int, marker_offset: int) -> int | None:
        """The first offset of the transaction that a marker ends."""
        self._guards.pop(producer_id, None)
        first_offset = self._open.pop(producer_id, None)
        ended = self._ended
        if first_offset is not None and not (ended and ended[-1].marker_offset >= marker_offset):  # or it is known
            ended.append(_Ended(first_offset, marker_offset))
        return first_offset

    def _add_aborted(self, producer_id: int, first_offset: int, marker_offset: int, segment_base: int) -> None:
        unstable = self.first_unstable
        last_stable = marker_offset + 1 if unstable is None else unstable
        index = self._indexes.get(segment_base)
        if index is None:
            index = self._indexes[segment_base] = TransactionIndex(self._disk, file_stem(self._path, segment_base))
        index.add(AbortedTransaction(producer_id, first_offset, marker_offset, last_stable))

    def load(self) -> None:
        """Producer state was loaded from a snapshot: its open transactions are open."""
        starts = [
            (producer.transaction_start, producer_id)
            for producer_id, producer in self._producers.items()
            if producer.transaction_start != NO_OFFSET
        ]
        self._open = {producer_id: start for start, producer_id in sorted(starts)}
        self._guards.clear()

    def look_for(self, base_offset: int) -> None:
        """Check whether the segment has a transaction index on disk."""
        stem = file_stem(self._path, base_offset)
        if self._disk.exists(stem + SUFFIX):
            self._indexes[base_offset] = TransactionIndex(self._disk, stem, found=True)
        else:
            self._indexes.pop(base_offset, None)

    def has_index(self, base_offset: int) -> bool:
        """Whether aborted transactions ended in the segment."""
        return base_offset in self._indexes

    def keep_index(self, base_offset: int) -> None:
        """Have the entries of the last segment in memory: no manifest claims its file while it is written to."""
        for _ in self._entries_from(base_offset):
            return

    def index_crc(self, base_offset: int) -> int | None:
        """The checksum of a segment's transaction index for the manifest; None: only the file has it."""
        index = self._indexes.get(base_offset)
        return NO_CRC if index is None else index.crc

    def adopt(self, bases: Sequence[int]) -> None:
        """These are the log's segments from now on, by base offset."""
        self._bases = bases
        for base in self._indexes.keys() - set(bases):
            self._indexes[base].remove()  # first: one that stays has to be removed later
            del self._indexes[base]

    def begin_again(self, base_offset: int) -> None:
        """The segment is read again, and its transaction index is rebuilt."""
        index = self._indexes.get(base_offset)
        if index is None:
            index = self._indexes[base_offset] = TransactionIndex(self._disk, file_stem(self._path, base_offset))
        index.begin_again()

    def finish(self, base_offset: int) -> None:
        """All of the segment was read, and recorded."""
        index = self._indexes[base_offset]
        index.finish()
        if not index.entries:
            del self._indexes[base_offset]

    def prepare_replacement(self, base_offset: int, entries: list[AbortedTransaction]) -> None:
        """The segment is about to be replaced by a compacted one with these entries. Durable on return. Until
        `replace`, readers use the old entries, from memory."""
        if base_offset in self._indexes:
            next(self._entries_from(base_offset), None)
        if base_offset in self._indexes or entries:
            transaction_index.write(self._disk, file_stem(self._path, base_offset) + SUFFIX, entries)

    def replace(self, base_offset: int) -> None:
        """The compacted segment has replaced it."""
        self.look_for(base_offset)

    def truncate(self, log_end: int) -> None:
        """After a truncation, transactions that ended after the log end are open again. The open ones follow from
        producer state (`load`, `replay`)."""
        self.adopt(self._bases)
        last = self._indexes.get(self._bases[-1])
        if last is not None:
            last.truncate(log_end)
        self._ended = deque(ended for ended in self._ended if ended.marker_offset < log_end)
        self.lost = tuple(each for each in self.lost if each.last_offset < log_end)
        self.undecided = tuple(each for each in self.undecided if each.last_offset < log_end)

    def unsynced(self, base_offset: int) -> list[Unsynced]:
        index = self._indexes.get(base_offset)
        return [] if index is None else index.unsynced()

    def release_memory(self, high_watermark: int) -> None:
        """Free the entries of all but the last segments, and of ended transactions: for housekeeping."""
        self._forget_settled(high_watermark)
        for base in sorted(self._indexes)[:-INDEXES_LOADED_MAX]:
            self._indexes[base].release_memory()

    # -- readers -----------------------------------------------------------------------------------------------

    @property
    def open_since(self) -> dict[int, int]:
        """Where the open transaction of each producer began."""
        return dict(self._open)

    def decided_limit(self, offset: int, limit: int) -> int:
        """The end of a `read_committed` read that begins at `offset`. Refused if the outcome of a transaction there is
        not known."""
        for each in self.undecided:
            if offset < each.first_offset:
                limit = min(limit, each.first_offset)
            elif offset <= each.last_offset:
                raise Refused(
                    ErrorCode.kafka_storage_error,
                    f"whether the transaction at offset {each.first_offset} was committed is lost with what is missing "
                    f"behind it in {self._path}",
                )
        return limit

    @property
    def first_unstable(self) -> int | None:
        """The first offset of the oldest open transaction."""
        for first_offset in self._open.values():
            return first_offset
        return None

    def last_stable(self, high_watermark: int) -> int:
        """Last stable offset: every transaction before it has ended, and its marker is committed."""
        self._forget_settled(high_watermark)
        limit = high_watermark
        for first_offset in self._open.values():
            limit = min(limit, first_offset)
            break
        for first_offset, _ in self._ended:
            limit = min(limit, first_offset)
        return limit

    def _forget_settled(self, high_watermark: int) -> None:
        ended = self._ended
        while ended and ended[0].marker_offset < high_watermark:
            ended.popleft()

    def aborted(self, from_offset: int, to_offset: int) -> list[tuple[int, int]]:
        """Producer id and first offset of each aborted transaction with records in `from_offset..to_offset`. From the
        index: the returned records are not read."""
        found = [
            (each.producer_id, each.first_offset)
            for each in self.lost
            if each.last_offset >= from_offset and each.first_offset < to_offset
        ]
        if not self._indexes:
            return found
        for entry in self._entries_from(from_offset):
            if entry.last_offset >= from_offset and entry.first_offset < to_offset:
                aborted = entry.producer_id, entry.first_offset
                if not self.lost or aborted not in found:
                    found.append(aborted)
            if entry.last_stable >= to_offset:
                break
        return found

    def _entries_from(self, offset: int) -> Iterator[AbortedTransaction]:
        """In the order in which they ended, from the segment that holds the offset on."""
        holder = self._bases[max(bisect_right(self._bases, offset) - 1, 0)]
        bases = sorted(self._indexes)
        for base in bases[bisect_left(bases, holder) :]:  # a copy: what cannot be read may go
            index = self._indexes[base]
            try:
                if not index.loaded and self._trusted is not None and not self._trusted(base):
                    raise TransactionIndexDamaged("it is not what the manifest says")
                entries = index.entries
            except TransactionIndexDamaged:
                assert self._rebuild is not None
                self._rebuild(base)
                found = self._indexes.get(base)
                entries = [] if found is None else found.entries
            yield from entries

    def aborted_before(self, end: int) -> list[AbortedTransaction]:
        """The aborted transactions that began before `end`, for compaction."""
        lost = [AbortedTransaction(*each, each.last_offset) for each in self.lost if each.first_offset < end]
        return lost + [entry for entry in self._entries_from(0) if entry.first_offset < end] if self._indexes else lost

    # -- verification ------------------------------------------------------------------------------------------

    def guard(self, producer_id: int, epoch: int) -> Guard | None:
        """The guard for the append after the coordinator has agreed; None: no verification is needed."""
        if self._has_open(producer_id, epoch):
            return None
        known = self._guards.get(producer_id)
        if known is not None and known.producer_epoch > epoch:
            raise Refused(ErrorCode.invalid_producer_epoch)
        if known is None or known.producer_epoch < epoch:
            if len(self._guards) >= self._producers.ids_max:
                del self._guards[next(iter(self._guards))]
            known = self._guards[producer_id] = Guard(producer_id, epoch)
        return known

    def _has_open(self, producer_id: int, epoch: int) -> bool:
        producer = self._producers.get(producer_id)
        return producer is not None and producer.transaction_start != NO_OFFSET and producer.epoch == epoch

    def holds(self, guard: Guard) -> bool:
        """Whether the guard is valid: no marker was written since it was taken."""
        return self._guards.get(guard.producer_id) is guard

    def check_append(self, header: BatchHeader, guard: Guard | None) -> None:
        """Whether a batch from a producer may be appended, as far as transactions are concerned."""
        if header.attributes & TRANSACTIONAL:
            self.check_within(header.producer_id, header.producer_epoch, guard)
        elif header.producer_id in self._open:
            raise Refused(ErrorCode.invalid_txn_state, f"producer {header.producer_id} is inside a transaction")

    def check_within(self, producer_id: int, epoch: int, guard: Guard | None) -> None:
        """Whether the producer may append within its transaction."""
        if self._has_open(producer_id, epoch):
            return
        producer = self._producers.get(producer_id)
        if producer is not None and epoch < producer.epoch:
            raise Refused(
                ErrorCode.invalid_producer_epoch,
                f"producer {producer_id} has epoch {producer.epoch} by now, the batch has {epoch}",
            )
        named = guard is not None and (guard.producer_id, guard.producer_epoch) == (producer_id, epoch)
        if guard is None or not named or not self.holds(guard):
            raise Refused(ErrorCode.invalid_txn_state, "there is no transaction this batch could belong to")
        if producer_id in self._open:
            raise Refused(ErrorCode.invalid_txn_state, f"producer {producer_id} is inside another transaction")

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, *, bumped: bool = False
    ) -> bool:
        """Whether a marker has to be written. False: it is in the log, or there was no transaction to end.

        `bumped`: the marker increments the producer epoch, so a transaction that is open under the marker's own epoch
        is the next one. Where the epoch stays, the marker of a newer coordinator is written again: it fences the
        previous coordinator, whose own marker may come late."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return True
        if producer_epoch < producer.epoch:
            raise Refused(
                ErrorCode.invalid_producer_epoch,
                f"producer {producer_id} has epoch {producer.epoch} by now, the marker has {producer_epoch}",
            )
        if coordinator_epoch < producer.coordinator_epoch:
            raise Refused(ErrorCode.transaction_coordinator_fenced)
        if producer_epoch > producer.epoch:
            return True
        ended = producer.transaction_start == NO_OFFSET
        if bumped and not ended:
            raise Refused(ErrorCode.invalid_producer_epoch, f"producer {producer_id} is inside its next transaction")
        if not bumped and (not ended or coordinator_epoch > producer.coordinator_epoch):
            return True
        self._guards.pop(producer_id, None)
        return False
