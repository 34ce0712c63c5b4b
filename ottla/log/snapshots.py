"""The producer snapshots of one log: `<offset>.snapshot`, the state of its producers before that offset.

One is written where a segment begins, so that cutting the log back need not replay all of it, and one at the
log end on a clean close. A snapshot carries its own checksum: a damaged one is passed over for an older one.
"""

from __future__ import annotations

from collections.abc import Collection

from ottla.log.producers import Producers, SnapshotDamaged
from ottla.log.segment import file_stem
from ottla.log.unsynced import Mark, Unsynced
from ottla.runtime import Disk, File

SUFFIX = ".snapshot"


class Snapshots:
    """Which snapshots there are, oldest first."""

    __slots__ = ("_disk", "_offsets", "_path", "_unsynced")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._offsets: list[int] = []
        self._unsynced: dict[int, Mark] = {}

    @property
    def offsets(self) -> list[int]:
        return list(self._offsets)

    def found(self, offset: int) -> None:
        """There is one at `offset`; called in ascending order."""
        self._offsets.append(offset)

    def write(self, offset: int, producers: Producers) -> None:
        """Not synced yet: until then a crash merely costs a longer replay."""
        file = self._file(offset, create=True)
        file.truncate(0)
        file.append(producers.encode())
        file.close()
        if offset not in self._offsets:
            self._offsets.append(offset)
            self._offsets.sort()
        self._unsynced.setdefault(offset, Mark()).written()

    def unsynced(self, offset: int) -> list[Unsynced]:
        """The snapshot at `offset`, if it has to be synced."""
        mark = self._unsynced.get(offset)
        return mark.of(self._file(offset), passing=True) if mark else []

    def load(self, producers: Producers, offset_max: int, now_ms: int) -> int:
        """Put the newest whole snapshot up to `offset_max` into `producers`; returns its offset, or -1.

        Damaged ones are removed: they can only mislead.
        """
        producers.clear()
        for offset in reversed([offset for offset in self._offsets if offset <= offset_max]):
            try:
                producers.load(self._disk.read(self._name(offset)), now_ms)
            except (SnapshotDamaged, FileNotFoundError):
                self._remove(offset)
            else:
                return offset
        return -1

    def truncate(self, log_end: int) -> None:
        """What is behind the log end tells of a history that did not happen."""
        for offset in [offset for offset in self._offsets if offset > log_end]:
            self._remove(offset)

    def drop_before(self, offset: int) -> None:
        for old in [old for old in self._offsets if old < offset]:
            self._remove(old)

    def prune(self, wanted: Collection[int]) -> None:
        """Keep those at the given offsets."""
        for offset in set(self._offsets).difference(wanted):
            self._remove(offset)

    def _remove(self, offset: int) -> None:
        self._disk.remove(self._name(offset))  # first: one that stays has to be removed later
        self._offsets.remove(offset)
        self._unsynced.pop(offset, None)

    def _name(self, offset: int) -> str:
        return file_stem(self._path, offset) + SUFFIX

    def _file(self, offset: int, *, create: bool = False) -> File:
        return self._disk.open(self._name(offset), create=create)
