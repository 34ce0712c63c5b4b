"""A real disk that refuses changes in one directory, as long as a test wants."""

from __future__ import annotations

from ottla.runtime import Buffer
from ottla.runtime.disk import RealDisk, RealFile


class FailingFile(RealFile):
    def __init__(self, disk: FailingDisk, path: str, create: bool) -> None:
        super().__init__(disk, path, create)
        self.disk = disk

    def append(self, *buffers: Buffer) -> None:
        self.disk.check(self.path)
        super().append(*buffers)

    def sync(self) -> None:
        self.disk.check(self.path)
        super().sync()

    def keep(self) -> RealFile:
        self.disk.check(self.path)
        return super().keep()


class FailingDisk(RealDisk):
    """`fail` names the directory, and what is raised."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = ""
        self._failure: Exception | None = None

    def fail(self, directory: str, failure: Exception | None) -> None:
        self._directory, self._failure = f"/{directory}/", failure

    def check(self, path: str) -> None:
        if self._failure is not None and self._directory in path:
            raise self._failure

    def open(self, path: str, *, create: bool = False) -> FailingFile:
        return FailingFile(self, path, create)

    def write_atomic(self, path: str, data: bytes) -> None:
        self.check(path)
        super().write_atomic(path, data)
