"""Files that were written and not flushed yet.

A file counts as flushed when an fsync has returned that began after the last write to it. A planned fsync does not
count: it may fail or not happen. Neither does an fsync if the file was written again meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.runtime import File


class Mark:
    """How often a file was written, and up to which write it is synced."""

    __slots__ = ("_synced", "_written")

    def __init__(self) -> None:
        self._written = 0
        self._synced = 0

    def __bool__(self) -> bool:
        return self._synced < self._written

    def written(self) -> None:
        self._written += 1

    def synced(self, version: int | None = None) -> None:
        """Up to that write; by default up to the last one."""
        self._synced = max(self._synced, self._written if version is None else version)

    def of(self, file: File, *, passing: bool = False) -> list[Unsynced]:
        """The file, if it has to be synced."""
        return [Unsynced(file, self, self._written, passing)] if self else []


class Unsynced(NamedTuple):
    """A file as it was written by then. `done` when it is synced."""

    file: File
    mark: Mark | None = None
    version: int = 0
    passing: bool = False
    """It was opened for the sync, and has no other user."""

    def sync(self) -> None:
        """Blocks; for a thread."""
        try:
            self.file.sync()
        finally:
            if self.passing:
                self.file.close()

    def done(self) -> None:
        if self.mark is not None:
            self.mark.synced(self.version)
