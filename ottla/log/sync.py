"""Making a log durable: the part that blocks, so that it can run beside the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.errors import StorageFault, SyncFault
from ottla.log.checkpoints import partition_metadata
from ottla.log.manifest import claim_of
from ottla.log.unsynced import Unsynced

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog
    from ottla.log.segment import Segment


class SyncJob:
    """What has to reach the device for the log to be durable up to `offset`. `run` may run in a thread."""

    __slots__ = ("_files", "_log", "_sealed", "epochs", "made_files", "offset", "truncations")

    def __init__(
        self,
        log: PartitionLog,
        offset: int,
        files: list[tuple[Segment, Unsynced]],
        sealed: list[tuple[Segment, int, int | None]],
    ) -> None:
        self._log = log
        self._files = files
        self._sealed = sealed
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
            if not log.dropped and not overtaken:  # or a file may be gone, and nothing comes of the job
                raise

    def done(self) -> None:
        """It has run, and was not overtaken by a truncation."""
        for _, file in self._files:
            file.done()
        if self.epochs is not None:
            self._log.epochs_file.written(self.epochs, self._log.epochs)

    def _run(self, log: PartitionLog) -> None:
        for segment, file in self._files:
            try:
                file.sync()
            except StorageFault:
                if not segment.deleted:  # meanwhile: nothing is left to be made durable
                    raise
        if log.dropped:
            return  # what is at its path now is not its own
        if self.epochs is not None:
            log.epochs_file.write()
        elif self.made_files:
            log.disk.sync_dir(log.path)
        if self._sealed:
            self._claim(log)

    def _claim(self, log: PartitionLog) -> None:
        """The segments were sealed, and now the device has them: the manifest may name them."""
        claims = [
            claim_of(log.disk, log.path, segment.base_offset, end, segment.size, txnindex_crc)
            for segment, end, txnindex_crc in self._sealed
            if not segment.deleted
        ]
        log.manifest.add(
            claims,
            log_start=log.log_start,
            topic_id=log.topic_id,
            still=lambda: self.truncations == log.truncations and not log.dropped,
        )


def prepare(log: PartitionLog, offset: int) -> SyncJob:
    """What makes the log durable up to `offset`, which is its end or the start of its active segment."""
    files: list[tuple[Segment, Unsynced]] = []
    sealed: list[tuple[Segment, int, int | None]] = []
    if log.made_files and log.topic_id is not None and log.disk.exists(log.path):
        files.append((log.active, Unsynced(partition_metadata(log.disk, log.path), passing=True)))
    ends = [*(segment.base_offset for segment in log.segments[1:]), log.log_end]
    for segment, following in zip(log.segments, ends, strict=True):
        if following > offset:
            continue
        # What the segment's batches tell may have been written after they were synced: when it was sealed.
        written = log.transactions.unsynced(segment.base_offset)
        if segment is not log.active:
            written += log.snapshots.unsynced(following)
        if following > log.recovery_point:
            if segment.size:
                written.append(Unsynced(segment.log))
            if segment is not log.active:
                segment.seal()
                written += segment.unsynced_indexes()
                sealed.append((segment, following, log.transactions.index_crc(segment.base_offset)))
        files += [(segment, file) for file in written]
    return SyncJob(log, offset, files, sealed)
