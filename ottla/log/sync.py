"""Flush (fsync) of a log, and its clean close: the part that blocks, so that it can run beside the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.errors import StorageFault, SyncFault
from ottla.log import manifest_file
from ottla.log.checkpoints import partition_metadata, write_partition_metadata
from ottla.log.manifest import claim_of
from ottla.log.unsynced import Unsynced

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog
    from ottla.log.segment import Segment


class SyncJob:
    """The files to flush for a log that is durable up to `offset`. `run` may run in a thread."""

    __slots__ = ("_closed_segments", "_files", "_log", "epochs", "made_files", "offset", "truncations")

    def __init__(
        self,
        log: PartitionLog,
        offset: int,
        files: list[tuple[Segment, Unsynced]],
        closed_segments: list[tuple[Segment, int, int | None]],
    ) -> None:
        self._log = log
        self._files = files
        self._closed_segments = closed_segments
        self.offset = offset
        self.made_files = log.made_files
        self.epochs = log.epochs_file.hand_out(log.epochs) if log.epochs.dirty else None
        self.truncations = log.truncations

    def run(self) -> None:
        log = self._log
        try:
            self._run(log)
        except StorageFault as fault:
            overtaken = self.truncations != log.truncations and not isinstance(fault, SyncFault)
            if not log.dropped and not overtaken:  # otherwise a file may be missing, and the job fails
                raise

    def finish(self) -> None:
        """The job has run: raise the recovery point, unless the log was truncated meanwhile."""
        log = self._log
        if self.truncations != log.truncations:
            return
        for _, file in self._files:
            file.done()
        if self.epochs is not None:
            log.epochs_file.written(self.epochs, log.epochs)
        log.recovery_point = max(log.recovery_point, self.offset)
        if self.offset == log.log_end:
            log.made_files = False

    def _run(self, log: PartitionLog) -> None:
        for segment, file in self._files:
            try:
                file.sync()
            except StorageFault:
                if not segment.deleted:  # the log was removed: nothing is left to flush
                    raise
        if log.dropped:
            return  # the file at its path now belongs to another log
        if self.epochs is not None:
            log.epochs_file.write()
        elif self.made_files:
            log.disk.sync_dir(log.path)
        if self._closed_segments:
            self._claim(log)

    def _claim(self, log: PartitionLog) -> None:
        """Claim the closed segments in the manifest: they are flushed."""
        claims = [
            claim_of(log.disk, log.path, segment.base_offset, end, segment.size, txnindex_crc)
            for segment, end, txnindex_crc in self._closed_segments
            if not segment.deleted
        ]
        log.manifest.add(log, claims, lambda: self.truncations == log.truncations and not log.dropped)


def prepare(log: PartitionLog, offset: int, *, closed_only: bool) -> SyncJob | None:
    """The flush job for `offset`, the log end or the base offset of the active segment; None: it is durable already."""
    if offset <= log.recovery_point and (closed_only or not log.epochs.dirty or not log.disk.exists(log.path)):
        return None  # the directory is made by the first append, and until then there is nothing to keep
    files: list[tuple[Segment, Unsynced]] = []
    closed_segments: list[tuple[Segment, int, int | None]] = []
    if log.made_files and log.topic_id is not None and log.disk.exists(log.path):
        write_partition_metadata(log.disk, log.path, log.topic_id)  # it may have been removed
        files.append((log.active, Unsynced(partition_metadata(log.disk, log.path), passing=True)))
    ends = [*(segment.base_offset for segment in log.segments[1:]), log.log_end]
    for segment, following in zip(log.segments, ends, strict=True):
        if following > offset:
            continue
        # Derived files may have been written after the segment's batches were synced: when it was closed.
        written = log.transactions.unsynced(segment.base_offset)
        if segment is not log.active:
            written += log.snapshots.unsynced(following)
        if following > log.recovery_point:
            if segment.size:
                written.append(Unsynced(segment.log))
            if segment is not log.active:
                segment.seal()
                written += segment.unsynced_indexes()
                closed_segments.append((segment, following, log.transactions.index_crc(segment.base_offset)))
        files += [(segment, file) for file in written]
    return SyncJob(log, offset, files, closed_segments)


def close(log: PartitionLog) -> None:
    """Flush everything, and claim it in the manifest as after a clean stop. Blocks."""
    if log.log_end > log.log_start:
        if log.log_end not in log.snapshots.offsets:
            log.snapshots.write(log.log_end, log.producers)
        log.snapshots.prune([*(segment.base_offset for segment in log.segments), log.log_end])
    if log.active.awake and log.active.size:
        log.active.seal()
    log.sync()
    written = log.snapshots.unsynced(log.log_end)
    for segment in log.segments:
        written += segment.unsynced_indexes() + log.transactions.unsynced(segment.base_offset)
    for file in written:
        file.sync()
        file.done()
    if written:
        log.disk.sync_dir(log.path)
    if log.disk.exists(log.path):
        manifest_file.close(log, {file.file.path for file in written})
    for segment in log.segments:
        segment.close()
