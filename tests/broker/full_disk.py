"""A disk that refuses what one log wants to append, for as long as a test says so."""

from __future__ import annotations

from typing import Any

from ottla.errors import StorageFault
from ottla.replication.partition import Partition

FULL = "No space left on device"


class FullFile:
    """A segment's file that takes no more, and is the real one in everything else."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.full = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def append(self, *buffers: Any) -> None:
        if self.full:
            raise StorageFault(f"cannot write {self._file.path}: {FULL}")
        self._file.append(*buffers)


def fill_disk(partition: Partition) -> FullFile:
    file = FullFile(partition.log.active.log)
    partition.log.active.log = file
    return file
