"""Disk without fsync, for data that nobody needs after a power cut."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ottla.errors import StorageFault
from ottla.runtime.disk import RealDisk, RealFile


class UnsyncedFile(RealFile):
    def sync(self) -> None:
        pass


class UnsyncedDisk(RealDisk):
    """The real one in everything else: a process that dies loses nothing either."""

    def open(self, path: str, *, create: bool = False) -> UnsyncedFile:
        return UnsyncedFile(self, path, create)

    def write_atomic(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        try:
            with open(temporary, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except OSError as failure:
            raise StorageFault(f"cannot write {path}: {failure.strerror}") from failure

    @contextmanager
    def together(self, path: str) -> Iterator[None]:
        yield

    def sync_dir(self, path: str) -> None:
        pass
