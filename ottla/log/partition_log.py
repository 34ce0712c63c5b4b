"""The log of one partition on one disk: segments, indexes, leader epochs, producer state, transactions.

Who calls: the replica of the partition, on the event loop. A leader calls `append`, a follower `append_replicated`;
`read` returns slices up to an offset that the caller gives (high watermark, last stable offset or log end).

What is durable: an append by itself is not. `prepare_sync` says what to flush, the flush runs in a thread, and
`finish_sync` raises the recovery point, which the caller writes into its checkpoint. Up to the recovery point the log
is on the device, with the indexes, epochs and producer snapshots of all closed segments. After it, a crash may lose any
part of the log; `recovery` finds the last whole batch and rebuilds the rest from the batch headers. A truncation is
durable when it returns, because truncated records that came back after a crash would diverge from the other replicas.
After `truncate_to` and `truncate_fully_and_start_at` the caller writes its checkpoints before it continues.

What can fail: an append on a full disk is undone and refused, and the next one tries again. If it cannot be undone, the
log refuses appends until it can.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn

from ottla.errors import ErrorCode, Refused, StorageFault
from ottla.log import manifest_file, recovery, sync, transaction_recovery, truncation
from ottla.log.checkpoints import write_partition_metadata
from ottla.log.damage import Damage, read_limit, trim
from ottla.log.epochs import EpochsFile, LeaderEpochs
from ottla.log.evidence import NOT_KNOWN, Evidence
from ottla.log.index import RELATIVE_OFFSET_MAX
from ottla.log.log_config import LogConfig
from ottla.log.manifest import Range
from ottla.log.manifest_file import ManifestFile
from ottla.log.producers import Producers, Snapshots
from ottla.log.quarantine import quarantine_directories
from ottla.log.retention import retain
from ottla.log.scan import checked
from ottla.log.segment import Segment
from ottla.log.slice import SegmentSlice
from ottla.log.sync import SyncJob
from ottla.log.transactions import Transactions
from ottla.runtime import Disk
from ottla.wire.batch import LENGTH_OVERHEAD, BatchHeader, batches, stamp

if TYPE_CHECKING:
    from ottla.log.recovery import Recovery
    from ottla.log.swap import Swap

_HINTS_MAX = 64
_INDEXES_LOADED_MAX = 2


class PartitionLog:
    """See the module. Offsets are half-open: the log holds `log_start..log_end`."""

    __slots__ = (
        "_bases", "_config", "_hints", "_segment_bytes", "active", "before_files", "checkpointed_end", "cleaned",
        "damage", "disk", "dropped", "epochs", "epochs_file", "failure", "given_up", "latest_epoch", "log_end",
        "log_start", "made_files", "manifest", "on_refused", "path", "producers", "recovery", "recovery_point",
        "segments", "snapshots", "swap", "topic_id", "transactions", "truncations",
    )  # fmt: skip

    def __init__(self, disk: Disk, path: str, config: LogConfig) -> None:
        """Empty-handed; `open` is the way to a log."""
        self.disk = disk
        self.path = path
        self.segments: list[Segment] = []
        self._bases: list[int] = []
        self.active: Segment
        self.log_start = 0
        self.log_end = 0
        self.recovery_point = 0
        self.checkpointed_end = 0  # checkpoints may say that it reaches so far
        self.cleaned = 0  # up to where it has been compacted
        self.swap: Swap | None = None
        self.epochs = LeaderEpochs()
        self.epochs_file = EpochsFile(disk, path)
        self.latest_epoch = self.epochs.latest
        self.producers = Producers(config.producer_ids_max)
        self.transactions = Transactions(
            disk,
            path,
            self.producers,
            lambda base: transaction_recovery.rebuild_index(self, base),
            lambda base: manifest_file.holds_aborted(self, base),
        )
        self.snapshots = Snapshots(disk, path)
        self.manifest = ManifestFile(disk, path)
        self.topic_id: bytes | None = None
        self.recovery: Recovery
        self.truncations = 0
        self._config = config
        self._segment_bytes = config.segment_bytes
        self._hints: dict[int, int] = {}  # offset to position in the active segment, where readers stopped
        self.damage: Damage | None = None  # missing ranges
        self.given_up: tuple[Range, ...] = ()  # gaps that another replica may not have
        self.made_files = False
        self.before_files: Callable[[], None] | None = None  # what has to be done before it makes its directory
        self.dropped = False  # another topic may have its name and its path by now
        self.failure: StorageFault | None = None  # why nothing can be appended at present
        self.on_refused: Callable[[StorageFault], object] | None = None  # called for every append that the disk refuses

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        config: LogConfig,
        *,
        recovery_point: int = 0,
        log_start: int = 0,
        high_watermark: int = 0,
        closed_start: int = NOT_KNOWN,
        closed_end: int = NOT_KNOWN,
        started: int = NOT_KNOWN,
        alone: bool = False,
        cleaned: int = 0,
        clean: bool = False,
        topic_id: bytes | None = None,
        now_ms: int,
    ) -> PartitionLog:
        """Load the files, and repair them unless the log was closed cleanly; `log.recovery` has the result."""
        evidence = Evidence(recovery_point, high_watermark, closed_start, closed_end, started, alone)
        quarantined: list[str] = []
        while True:
            log = cls(disk, path, config)
            log.topic_id, log.cleaned, log.checkpointed_end = topic_id, cleaned, high_watermark
            try:
                recovery.load(log, evidence, log_start=log_start, clean=clean, now_ms=now_ms)
                break
            except StorageFault:
                if quarantined or not (quarantined := quarantine_directories(disk, path)):
                    raise
        log.cleaned = min(cleaned, log.log_end)
        log.recovery = log.recovery._replace(notes=(*quarantined, *log.recovery.notes))
        return log

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self._segment_bytes = config.segment_bytes
        self.producers.ids_max = config.producer_ids_max
        if self.active.awake and self.failure is None:  # else once it is repaired
            self.active.configure(config)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def adopt(self, segments: list[Segment]) -> None:
        """Take these segments as the log, the last one as the one to append to."""
        if self.swap is not None and not self.swap.fits(segments):
            self.swap.abandon()
        self.segments = segments
        self._bases = [segment.base_offset for segment in segments]
        for segment in segments:
            segment.claims = self.manifest
        self.active = segments[-1]
        self._hints.clear()
        self.transactions.adopt(self._bases)

    # -- appending -------------------------------------------------------------------------------------------

    def append(self, view: memoryview, header: BatchHeader, *, leader_epoch: int, now_ms: int) -> int:
        """Append one batch as the leader: it gets the next offset, stamped in place. Returns that offset."""
        base_offset = self.log_end
        size = header.length + LENGTH_OVERHEAD
        last_offset = base_offset + header.last_offset_delta
        max_timestamp = header.max_timestamp
        segment = self.active
        if (
            max_timestamp > segment.roll_timestamp
            or segment.size + size > self._segment_bytes
            or last_offset > segment.offset_max
        ):
            segment = self._make_room(base_offset, size, last_offset, max_timestamp, now_ms)
        if leader_epoch != self.latest_epoch:
            self.assign_epoch(leader_epoch)
        stamp(view, base_offset, leader_epoch)
        try:
            segment.log.append(view)
        except StorageFault as fault:
            self._undo(segment, fault)
        segment.note(size, last_offset, max_timestamp)
        self.log_end = last_offset + 1
        if header.producer_id >= 0:
            self.transactions.record(header, view, base_offset, now_ms)
        return base_offset

    def append_replicated(self, data: memoryview, now_ms: int) -> int:
        """Append batches from the leader, already stamped, up to the first partial or damaged one. Refused if the first
        one cannot be appended. Returns the new log end."""
        for run in self._runs(data, now_ms):
            segment = self.active
            start, end = run[0][0], run[-1][0] + run[-1][1].size
            try:
                segment.log.append(data[start:end])
            except StorageFault as fault:
                self._undo(segment, fault)
            for at, header in run:
                self.assign_epoch(header.leader_epoch, header.base_offset)
                segment.note(header.size, header.last_offset, header.max_timestamp)
                if header.producer_id >= 0:
                    self.transactions.record(header, data[at : at + header.size], header.base_offset, now_ms)
            self.log_end = run[-1][1].next_offset
        return self.log_end

    def _runs(self, data: memoryview, now_ms: int) -> Iterator[list[tuple[int, BatchHeader]]]:
        """Adjacent batches that go into the active segment at once. Behind each run a segment is rolled, if need be."""
        run: list[tuple[int, BatchHeader]] = []
        run_bytes = 0
        next_offset = self.log_end
        for position, _ in batches(data):
            try:
                header = checked(data, position, next_offset)
            except Refused:
                if not position:
                    raise
                break
            segment = self.active
            if (
                header.max_timestamp > segment.roll_timestamp
                or segment.size + run_bytes + header.size > self._segment_bytes
                or header.last_offset > segment.offset_max
            ):
                if run:
                    yield run
                run, run_bytes = [], 0
                near = header.last_offset - next_offset <= RELATIVE_OFFSET_MAX
                # A segment begins where the one before ends, even if the leader has nothing for these offsets any
                # more: so after a crash a hole between two segments is known for one.
                base = next_offset if near else header.base_offset
                self._make_room(base, header.size, header.last_offset, header.max_timestamp, now_ms)
            run.append((position, header))
            run_bytes += header.size
            next_offset = header.next_offset
        if run:
            yield run

    def _make_room(self, base_offset: int, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> Segment:
        """The slow path of an append: the segment that shall take the batch, awake."""
        config = self._config
        if size > config.segment_bytes:
            raise Refused(
                ErrorCode.record_list_too_large,
                f"the batch of {size} bytes is larger than a segment may be ({config.segment_bytes})",
            )
        segment = self.active
        try:
            self._repair(now_ms)
            if not segment.awake:
                segment.wake(config)
            if segment.must_roll(config, size, last_offset, max_timestamp, now_ms):
                segment = self.begin_segment(base_offset, now_ms)
            if not segment.size:
                self.make_directory()
                self.made_files = True
                segment.create_indexes()
                segment.begin(max_timestamp, config)
        except StorageFault as fault:
            self._refuse(fault)
        return segment

    def make_directory(self) -> None:
        """Only now: a partition without appends has no files."""
        if self.before_files is not None:
            self.before_files()
            self.before_files = None
        self.disk.mkdir(self.path)
        if self.topic_id is not None:
            write_partition_metadata(self.disk, self.path, self.topic_id)

    def _undo(self, segment: Segment, fault: StorageFault) -> NoReturn:
        """Part of a batch may be in the file. No reader may see it, and the next append must not follow it."""
        try:
            segment.log.truncate(segment.size)
        except StorageFault:
            self.fail(fault)
        self._refuse(fault)

    def _refuse(self, fault: StorageFault) -> NoReturn:
        if self.on_refused is not None:
            self.on_refused(fault)
        raise Refused(ErrorCode.kafka_storage_error, str(fault)) from fault

    def fail(self, fault: StorageFault) -> None:
        self.failure = fault
        self.active.offset_max = -1  # sends every append past _make_room

    def _repair(self, now_ms: int) -> None:
        if self.failure is not None:
            self.active.truncate(self.active.size)
            truncation.settle(self, now_ms)  # it may have been a truncation that failed

    def assign_epoch(self, epoch: int, start_offset: int | None = None) -> None:
        """The leader of `epoch` writes from `start_offset` on, by default the log end."""
        if epoch != self.latest_epoch:
            self.epochs.assign(epoch, self.log_end if start_offset is None else start_offset)
            self.latest_epoch = self.epochs.latest

    def drop_empty_epochs(self) -> None:
        """Forget epochs that began at the log end: nothing was written in them, and no other log knows of them."""
        self.epochs.truncate_from_end(self.log_end)
        self.latest_epoch = self.epochs.latest

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self, offset: int, bytes_max: int, *, limit: int, whole_first_batch: bool = True) -> SegmentSlice | None:
        """The batches from the one that holds `offset` on, none of which reaches past `limit`.

        None when there is nothing to read yet. Whole batches of together at most `bytes_max`, but for the first
        one if that is to come whole however large it is; of length 0 if not even the first one fits.
        """
        log_end = self.log_end
        if not self.log_start <= offset <= log_end:
            raise Refused(ErrorCode.offset_out_of_range, f"offset {offset} is not within {self.log_start}..{log_end}")
        if limit > log_end:
            limit = log_end
        if offset >= limit:
            if offset == log_end:
                self._hint(offset, self.active.size)
            return None
        segment = self.active
        hints = self._hints
        start_hint = -1
        asked = limit
        if self.damage is not None or self.given_up:
            limit = read_limit(self, offset, limit)
        if offset >= segment.base_offset:
            start_hint = hints.get(offset, -1)
        else:
            segment = self.segments[max(bisect_right(self._bases, offset) - 1, 0)]
        piece = SegmentSlice(self, segment, offset, bytes_max, limit, whole_first_batch)
        if bytes_max <= 0 and not whole_first_batch:
            piece.leave_out()
            return piece
        if not piece.locate(start_hint, hints.get(limit, -1)):
            return piece
        if piece.reaches_limit and piece.segment is self.active:
            self._hint(limit, piece.position + piece.length)
        if piece.reaches_limit and not piece.length:  # the limit lies in the very batch, or is a gap
            return self.read(limit, bytes_max, limit=asked) if limit < asked else None
        return piece

    def _hint(self, offset: int, position: int) -> None:
        """A consumer that has read up to here fetches the next records soon: remember their position in the active
        segment."""
        hints = self._hints
        if len(hints) >= _HINTS_MAX:
            del hints[next(iter(hints))]
        hints[offset] = position

    def segment_after(self, segment: Segment) -> Segment | None:
        """The next segment, if there is one."""
        at = bisect_right(self._bases, segment.base_offset)
        segments = self.segments
        return segments[at] if at < len(segments) else None

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        return self.epochs.end_offset_for(epoch, self.log_end)

    def release_memory(self, high_watermark: int) -> None:
        """Give back the indexes of all but the last few closed segments that were read: for housekeeping."""
        loaded = [segment for segment in self.segments if segment.offsets.loaded and not segment.awake]
        for segment in loaded[:-_INDEXES_LOADED_MAX]:
            segment.drop_indexes()
        if self.swap is None:  # or the files may be ahead of the segments
            self.transactions.release_memory(high_watermark)

    # -- rolling, syncing, closing ---------------------------------------------------------------------------

    def roll(self, now_ms: int) -> Segment:
        """Seal the active segment and begin another one at the log end, unless it is empty."""
        if self.active.size and not self.dropped:
            self._repair(now_ms)
            self.begin_segment(self.log_end, now_ms)
        return self.active

    def begin_segment(self, base_offset: int, now_ms: int) -> Segment:
        """Seal the active segment and begin another one. On a StorageFault the log is as it was: it may be tried
        again."""
        old = self.active
        fresh = Segment(self.disk, self.path, base_offset, created_ms=now_ms)
        kept = self.segments
        if old.size:
            old.seal()
            self.snapshots.write(self.log_end, self.producers)
        else:
            kept = kept[:-1]  # the log was never written, and continues at a higher offset
            self.make_directory()
        fresh.create()
        fresh.wake(self._config)
        if not old.size:
            old.delete()
            old.unlink()
        old.awake = False
        self.adopt([*kept, fresh])
        self.snapshots.prune(self._bases)
        self.made_files = True
        return fresh

    def go_on_at(self, offset: int, now_ms: int) -> None:
        """No batch will ever be between the log end and `offset`: continue there."""
        self._repair(now_ms)
        self.begin_segment(offset, now_ms)
        self.log_end = offset

    def prepare_sync(self, *, closed_only: bool = False) -> SyncJob | None:
        """What makes the log durable up to its end, or up to its active segment; None when it is already."""
        return sync.prepare(self, self.active.base_offset if closed_only else self.log_end, closed_only=closed_only)

    def finish_sync(self, job: SyncJob) -> int:
        """The job has run. Returns the recovery point to be written into the checkpoint."""
        job.finish()
        return self.recovery_point

    def sync(self) -> int:
        """Block until everything is durable. Returns the recovery point."""
        job = self.prepare_sync()
        if job is not None:
            job.run()
            self.finish_sync(job)
        return self.recovery_point

    def close(self) -> None:
        """Leave everything so that the next `open` with `clean=True` has nothing to do. Blocks."""
        self._repair(0)  # otherwise its files would have more than the log, and would be trusted
        sync.close(self)

    # -- losing ----------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int, now_ms: int) -> list[Segment]:
        """Drop what lies at `offset` or behind, and the whole of a batch that reaches across it.

        The log then ends at or before `offset`. Durable on return. Returns the segments that may be unlinked.
        """
        if offset >= self.log_end:
            return []
        if offset < self._bases[0]:
            return self.truncate_fully_and_start_at(offset, now_ms)
        return truncation.truncate(self, offset, now_ms)

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> list[Segment]:
        """Remove everything; the empty log continues at `offset`. Durable on return."""
        return truncation.truncate_fully(self, offset, now_ms)

    def settle_swap(self) -> list[Segment]:
        return [] if self.swap is None else self.swap.settle()

    def raise_log_start(self, offset: int) -> bool:
        """Records before `offset` are gone (DeleteRecords); `retain` drops their segments. True if it moved."""
        if offset > self.log_end:
            raise Refused(ErrorCode.offset_out_of_range, f"offset {offset} is behind the log end {self.log_end}")
        if offset <= self.log_start:
            return False
        self.log_start = offset
        self.epochs.truncate_from_start(offset)
        trim(self)
        return True

    def prove_start(self, offset: int) -> None:
        """Write down that the log starts at `offset`, so that followers may believe it. Blocks; for a thread."""
        if not self.dropped and self.disk.exists(self.path):
            self.manifest.start_at(offset, self.topic_id)

    @property
    def proven_start(self) -> int:
        """The log start that followers may get: that of the manifest on the device; -1 if there is none. A start at 0
        needs no proof."""
        return min(self.log_start, self.manifest.proven_start) if self.log_start else 0

    def retain(self, now_ms: int, high_watermark: int) -> list[Segment]:
        """Drop the expired segments: the caller unlinks them after `file_delete_delay_ms`."""
        return [] if self.dropped else retain(self, now_ms, high_watermark)
