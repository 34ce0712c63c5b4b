"""A real disk that refuses appends to files of one name, as long as a test wants."""

from __future__ import annotations

from collections.abc import Callable

from ottla.errors import StorageFault
from ottla.runtime import Buffer
from ottla.runtime.disk import RealDisk, RealFile

FULL = "No space left on device"


class FullFile(RealFile):
    def __init__(self, disk: FullDisk, path: str, create: bool) -> None:
        super().__init__(disk, path, create)
        self.disk = disk

    def append(self, *buffers: Buffer) -> None:
        self.disk.check(self.path)
        super().append(*buffers)


class FullDisk(RealDisk):
    def __init__(self) -> None:
        super().__init__()
        self._refuses: Callable[[str], bool] = lambda path: False

    def fill(self, name: str, while_: Callable[[], bool] = lambda: True) -> None:
        """Refuse to append to files, and to replace files, that have this name in their path."""
        self._refuses = lambda path: name in path and while_()

    def make_room(self) -> None:
        self._refuses = lambda path: False

    def check(self, path: str) -> None:
        if self._refuses(path):
            raise StorageFault(f"cannot write {path}: {FULL}")

    def open(self, path: str, *, create: bool = False) -> FullFile:
        return FullFile(self, path, create)

    def write_atomic(self, path: str, data: bytes) -> None:
        self.check(path)
        super().write_atomic(path, data)
