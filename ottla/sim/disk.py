"""A disk in memory that fails as disks do, reproducibly from a seed.

What is durable: the content of a file as of its last `sync`, and names as of the last `sync_dir` (or
`write_atomic`). What `crash` does with the rest, file by file: of bytes appended since the last sync any
prefix survives, and sectors in it may come back as zeros; a truncation since the last sync may be undone.
Names are changed in order, as by a journal: the first so many creations, renames and removals survive, the
others never happened.

A full disk writes what fits and then refuses; `broken` refuses everything that changes something; `flip_bit`
damages what is already durable. `cold` is the chance that a read without waiting is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from random import Random

from ottla.errors import StorageFault, SyncFault
from ottla.runtime import Buffer

_SECTOR_BYTES = 512
UNLIMITED = 2**62


class _Inode:
    """The content of a file: the current one, and the durable one."""

    __slots__ = ("content", "durable", "kept_bytes")

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = b""
        self.kept_bytes = 0  # how many bytes of `durable` have not changed since

    def sync(self) -> None:
        self.durable = bytes(self.content)
        self.kept_bytes = len(self.durable)

    def crash(self, random: Random) -> None:
        if self.kept_bytes < len(self.durable) and random.random() < 0.5:
            survived = bytearray(self.durable)  # as if nothing had happened since
        else:
            survived = self.content[: random.randint(self.kept_bytes, len(self.content))]
            if random.random() < 0.3 and len(survived) > self.kept_bytes:
                hole = random.randrange(self.kept_bytes, len(survived))
                end = min(hole + _SECTOR_BYTES, len(survived))
                survived[hole:end] = bytes(end - hole)
        self.content = survived
        self.sync()


class SimFile:
    """A handle; like the real one it finds its file by path, and then keeps to that file through a rename."""

    def __init__(self, disk: SimDisk, path: str, create: bool) -> None:
        self.path = path
        self._disk = disk
        self._create = create
        self._inode: _Inode | None = None
        self._life = disk.life

    def _open(self, *, writing: bool = False) -> _Inode:
        assert self._life == self._disk.life, f"{self.path} was opened before the crash"
        if self._inode is None:
            self._inode = self._disk.find(self.path, create=self._create and writing)
        return self._inode

    def size(self) -> int:
        if self._inode is None and not self._disk.exists(self.path):
            return 0
        return len(self._open().content)

    def append(self, *buffers: Buffer) -> None:
        inode = self._open(writing=True)
        data = b"".join(buffers)
        room = self._disk.room(self.path)
        inode.content += data[:room]
        if room < len(data):
            raise StorageFault(f"cannot write to {self.path}: No space left on device")

    def pread(self, length: int, offset: int) -> bytes:
        data = bytes(self._open().content[offset : offset + length])
        self._disk.bytes_read[self.path] += len(data)
        return data

    def pread_nowait(self, length: int, offset: int) -> bytes | bytearray | None:
        if self._disk.random.random() < self._disk.cold:
            return None
        return self.pread(length, offset)

    def pread_into(self, buffer: memoryview, offset: int) -> int | None:
        data = self.pread_nowait(len(buffer), offset)
        if data is None:
            return None
        buffer[: len(data)] = data
        return len(data)

    def pread_once(self, length: int, offset: int) -> bytes:
        return self.pread(length, offset)

    def truncate(self, size: int) -> None:
        inode = self._open(writing=True)
        self._disk.room(self.path)
        inode.kept_bytes = min(inode.kept_bytes, size)
        del inode.content[size:]
        inode.content += bytes(size - len(inode.content))

    def rename(self, path: str) -> None:
        self._disk.rename(self.path, path)
        self.path = path

    def sync(self) -> None:
        inode = self._open()
        self._disk.room(self.path)
        inode.sync()

    def keep(self) -> SimFile:
        kept = SimFile(self._disk, self.path, create=False)
        kept._inode = self._open()
        return kept

    def close(self) -> None:
        self._inode = None


class SimLock:
    def __init__(self, held: set[str], path: str) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:
        self._held.discard(self._path)


def _apply(files: dict[str, _Inode], names: Iterable[tuple[str, _Inode | None]]) -> None:
    for path, inode in names:
        if inode is None:
            files.pop(path, None)
        else:
            files[path] = inode


class SimDisk:
    """One machine's disk. It outlives the processes that use it: `crash` ends them all."""

    def __init__(self, random: Random, *, capacity_bytes: int = UNLIMITED) -> None:
        self.random = random
        self.capacity_bytes = capacity_bytes
        self.broken = False
        self.cold = 0.0
        self.bytes_read: Counter[str] = Counter()
        """Through handles, by path."""
        self.life = 0
        self._files: dict[str, _Inode] = {}
        self._durable_files: dict[str, _Inode] = {}
        self._journal: list[list[tuple[str, _Inode | None]]] = []  # names and what they mean from then on, together
        self._directories: set[str] = set()
        self._listed: dict[str, list[str]] = {}
        """Answers of `listdir`, until a name comes or goes."""
        self._locks: set[str] = set()

    # -- faults ----------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Lose unsynced bytes, or some of them. Every earlier handle is invalid."""
        self.life += 1
        self._commit(self.random.randint(0, len(self._journal)))
        self._journal.clear()
        self._files = dict(self._durable_files)
        self._listed.clear()
        self._locks.clear()
        for path in sorted(self._files):
            self._files[path].crash(self.random)

    def process_died(self) -> None:
        """Nothing is lost, but all files and locks are closed."""
        self.life += 1
        self._locks.clear()

    def flip_bit(self, path: str, position: int | None = None) -> int:
        """Damage one bit for good. Returns the position of the byte."""
        inode = self._files[path]
        at = self.random.randrange(len(inode.content)) if position is None else position
        inode.content[at] ^= 1 << self.random.randrange(8)
        inode.sync()
        return at

    def room(self, path: str) -> int:
        """How many bytes may still be written; StorageFault when nothing may be changed at all."""
        if self.broken:
            raise StorageFault(f"cannot write to {path}: Input/output error")
        return UNLIMITED if self.capacity_bytes == UNLIMITED else max(self.capacity_bytes - self.used(), 0)

    def used(self) -> int:
        return sum(len(inode.content) for inode in self._files.values())

    # -- names -----------------------------------------------------------------------------------------------

    def find(self, path: str, *, create: bool) -> _Inode:
        inode = self._files.get(path)
        if inode is None:
            if not create:
                raise StorageFault(f"cannot open {path}: No such file or directory")
            self.room(path)
            if path.rpartition("/")[0] not in self._directories:
                raise StorageFault(f"cannot open {path}: No such file or directory")
            inode = _Inode()
            self._name((path, inode))
        return inode

    def _name(self, *names: tuple[str, _Inode | None]) -> None:
        self._journal.append(list(names))
        for path, inode in names:
            if (path in self._files) != (inode is not None):
                self._listed.pop(path.rpartition("/")[0], None)
        _apply(self._files, names)

    def _commit(self, count: int) -> None:
        for names in self._journal[:count]:
            _apply(self._durable_files, names)
        del self._journal[:count]

    def open(self, path: str, *, create: bool = False) -> SimFile:
        return SimFile(self, path, create)

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._directories

    def is_directory(self, path: str) -> bool:
        return path in self._directories

    def listdir(self, path: str) -> list[str]:
        listed = self._listed.get(path)
        if listed is None:
            prefix = path + "/"
            names = [*self._files, *self._directories]
            found = {name[len(prefix) :].partition("/")[0] for name in names if name.startswith(prefix)}
            listed = self._listed[path] = sorted(found)
        return listed.copy()

    def mkdir(self, path: str) -> None:
        self.room(path)
        parts = path.split("/")
        self._listed.clear()
        self._directories.update("/".join(parts[: end + 1]) for end in range(len(parts)))

    def rename(self, old: str, new: str) -> None:
        self.room(old)
        inode = self._files.get(old)
        if inode is not None:
            self._name((new, inode), (old, None))
        elif old in self._directories:
            self._rename_directory(old, new)
        else:
            raise StorageFault(f"cannot rename {old}: No such file or directory")

    def _rename_directory(self, old: str, new: str) -> None:
        """With everything in it, at once; as on a real disk it replaces only an empty directory."""
        if new != old and any(path.startswith(new + "/") for path in (*self._files, *self._directories)):
            raise StorageFault(f"cannot rename {old}: Directory not empty")
        names: list[tuple[str, _Inode | None]] = []
        for path in [path for path in self._files if path.startswith(old + "/")]:
            names += [(new + path[len(old) :], self._files[path]), (path, None)]
        self._name(*names)
        self._listed.clear()
        for path in [path for path in self._directories if path == old or path.startswith(old + "/")]:
            self._directories.discard(path)
            self._directories.add(new + path[len(old) :])

    def remove(self, path: str) -> None:
        self.room(path)
        if path in self._files:
            self._name((path, None))

    def rmtree(self, path: str) -> None:
        self.room(path)
        for name in [name for name in self._files if name.startswith(path + "/")]:
            self._name((name, None))
        self._listed.clear()
        self._directories = {name for name in self._directories if name != path and not name.startswith(path + "/")}

    def read(self, path: str) -> bytes:
        inode = self._files.get(path)
        if inode is None:
            raise FileNotFoundError(path)
        return bytes(inode.content)

    def write_atomic(self, path: str, data: bytes) -> None:
        if len(data) > self.room(path):
            raise StorageFault(f"cannot write {path}: No space left on device")
        directory = path.rpartition("/")[0]
        if directory and directory not in self._directories:
            raise StorageFault(f"cannot write {path}: No such file or directory")
        inode = _Inode()
        inode.content += data
        inode.sync()
        self._name((path, inode))
        self._commit(len(self._journal))

    def overwrite(self, path: str, data: bytes, position: int) -> None:
        self.room(path)
        inode = self.find(path, create=False)
        inode.content[position : position + len(data)] = data
        inode.sync()

    def sync_dir(self, path: str) -> None:
        self.room(path)
        self._commit(len(self._journal))

    def together(self, path: str) -> AbstractContextManager[None]:
        return nullcontext()

    def mutex(self) -> AbstractContextManager[None]:
        return nullcontext()

    def on_sync_failure(self, tell: Callable[[SyncFault], object]) -> None:
        """Nothing to do: synced bytes are durable here."""

    def lock(self, path: str) -> SimLock | None:
        if path in self._locks:
            return None
        self._locks.add(path)
        return SimLock(self._locks, path)

    def usage(self, path: str) -> tuple[int, int]:
        return self.capacity_bytes, max(self.capacity_bytes - self.used(), 0)
