"""A disk that refuses what one log wants to append, for as long as a test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.broker.broker import Broker
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


def refuse_checkpoints(broker: Broker, name: str, *, while_: Callable[[], bool]) -> None:
    """The disk has no room for this checkpoint file for as long as a condition holds."""
    disk: Any = broker.runtime.disk
    write = disk.write_atomic

    def refusing(path: str, data: bytes) -> None:
        if path.endswith(name) and while_():
            raise StorageFault(f"cannot write {path}: {FULL}")
        write(path, data)

    disk.write_atomic = refusing
