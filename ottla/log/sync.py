"""Making a log durable: the part that blocks, so that it can run beside the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.log.epochs import FILE_NAME as EPOCHS_FILE
from ottla.runtime import File

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog


class SyncJob:
    """What has to reach the device for the log to be durable up to `offset`. `run` may run in a thread."""

    __slots__ = ("_disk", "_files", "_path", "epochs", "made_files", "offset", "truncations")

    def __init__(self, log: PartitionLog, offset: int, files: list[File], *, made_files: bool) -> None:
        self._disk = log.disk
        self._path = log.path
        self._files = files
        self.offset = offset
        self.made_files = made_files
        self.epochs = log.epochs.encode() if log.epochs.dirty else None
        self.truncations = log.truncations

    def run(self) -> None:
        for file in self._files:
            file.sync()
        if self.epochs is not None:
            self._disk.write_atomic(f"{self._path}/{EPOCHS_FILE}", self.epochs)
        elif self.made_files:
            self._disk.sync_dir(self._path)
