"""The disk of the operating system: descriptors are opened on demand and limited, errors are StorageFault."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count

from ottla.errors import StorageFault, SyncFault
from ottla.runtime import Buffer
from ottla.runtime.filesystem import can_sync_filesystem, sync_filesystem

# A read with this flag fails if it would wait for the device. Linux only, and not on tmpfs.
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_PROBE = (bytearray(1),)
PROBE_BYTES = 128 * 1024
PAGES_PROBED_BYTES = 16 * 1024
DESCRIPTORS_UNLIMITED = 2**20


class RealFile:
    """One file, opened at its first use, and closed again when too many others are open."""

    __slots__ = ("_closed", "_create", "_disk", "_fd", "_nowait", "_pins", "_size", "path")

    def __init__(self, disk: RealDisk, path: str, create: bool) -> None:
        self.path = path
        self._disk = disk
        self._create = create
        self._closed = False
        self._fd = -1
        self._pins = 0
        self._size = -1
        self._nowait = bool(_NOWAIT)

    def size(self) -> int:
        if self._size < 0:
            try:
                self._size = os.stat(self.path).st_size
            except FileNotFoundError:
                return 0
            except OSError as failure:
                raise _fault("look at", self.path, failure) from failure
        return self._size

    def append(self, *buffers: Buffer) -> None:
        fd = self._fd if self._fd >= 0 else self._open(writing=True)
        try:
            if len(buffers) == 1:
                wanted = len(buffers[0])
                written = os.write(fd, buffers[0])
            else:
                wanted = sum(map(len, buffers))
                written = os.writev(fd, buffers)
        except OSError as failure:
            self._size = -1
            self._reopen()
            raise _fault("write to", self.path, failure) from failure
        if self._size >= 0:
            self._size += written
        if written != wanted:
            self._append_rest(b"".join(buffers), written)

    def _append_rest(self, data: bytes, written: int) -> None:
        """After a short write: on a full disk the next write raises the error."""
        self._size = -1
        while written < len(data):
            try:
                written += os.write(self._fd, memoryview(data)[written:])
            except OSError as failure:
                raise _fault("write to", self.path, failure) from failure

    def pread(self, length: int, offset: int) -> bytes:
        fd = self._pin(writing=False)
        try:
            data = os.pread(fd, length, offset)
            while len(data) < length:  # short at the end of the file, or after a signal
                more = os.pread(fd, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
            return data
        except OSError as failure:
            raise _fault("read", self.path, failure) from failure
        finally:
            self._unpin()

    def pread_nowait(self, length: int, offset: int) -> bytes | bytearray | None:
        if not self._nowait:
            return self.pread(length, offset)
        fd = self._fd if self._fd >= 0 else self._open(writing=False)
        try:
            if length > PROBE_BYTES:
                return self._pread_resident(fd, length, offset)
            data = bytearray(length)
            count = os.preadv(fd, (data,), offset, _NOWAIT)
        except BlockingIOError:
            return None
        except OSError as failure:
            if failure.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise _fault("read", self.path, failure) from failure
            self._nowait = False  # a filesystem in memory, or one without the flag
            return self.pread(length, offset)
        if count == length:
            return data
        # Short: either the end of the file, or the rest is not in memory.
        return data[:count] if offset + count >= self.size() else None

    def _pread_resident(self, fd: int, length: int, offset: int) -> bytes:
        """For large reads it is cheaper to probe single bytes and then to read normally than to allocate and clear a
        buffer for a read with the flag. Pages between two probes are cached if those are: the kernel reads ahead, and
        evicts, in larger pieces. BlockingIOError if a probe is not cached."""
        for position in range(offset, offset + length, PROBE_BYTES):
            os.preadv(fd, _PROBE, position, _NOWAIT)
        os.preadv(fd, _PROBE, offset + length - 1, _NOWAIT)
        return self.pread(length, offset)

    def pread_into(self, buffer: memoryview, offset: int) -> int | None:
        fd = self._fd if self._fd >= 0 else self._open(writing=False)
        try:
            return os.preadv(fd, (buffer,), offset, _NOWAIT if self._nowait else 0)
        except BlockingIOError:
            return None
        except OSError as failure:
            if not self._nowait or failure.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise _fault("read", self.path, failure) from failure
            self._nowait = False
            return self.pread_into(buffer, offset)

    def pread_once(self, length: int, offset: int) -> bytes:
        with self._pinned("read") as fd:
            if not hasattr(os, "posix_fadvise"):
                return os.pread(fd, length, offset)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # pages read ahead would stay
            cached = self._cached(fd, length, offset)
            data = os.pread(fd, length, offset)
            if not cached:
                os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)
            return data

    def _cached(self, fd: int, length: int, offset: int) -> bool:
        """Whether all of it is in the page cache, judged by single bytes."""
        if not self._nowait:
            return True
        try:
            for position in range(offset, offset + length, PAGES_PROBED_BYTES):
                os.preadv(fd, (bytearray(1),), position, _NOWAIT)
        except BlockingIOError:
            return False
        except OSError as failure:
            if failure.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            self._nowait = False
        return True

    def truncate(self, size: int) -> None:
        fd = self._fd if self._fd >= 0 else self._open(writing=True)
        self._size = -1
        with _faults("truncate", self.path):
            os.ftruncate(fd, size)

    def rename(self, path: str) -> None:
        with self._disk.guard:  # no thread may open it by its old name meanwhile
            with _faults("rename", self.path):
                os.replace(self.path, path)
            self.path = path

    def sync(self) -> None:
        if self._disk.deferred is not None:
            return
        self._disk.check_sync_failure()
        with self._pinned("sync", writing=True) as fd:
            self._disk.fsync(fd, self.path)

    def keep(self) -> RealFile:
        with self._pinned("keep open") as fd:
            return KeptFile(self._disk, self.path, os.dup(fd))

    def close(self) -> None:
        with self._disk.guard:
            self._disk.forget(self)
            if self._pins:
                self._closed = True  # the last unpin closes it
            elif self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _pin(self, writing: bool) -> int:
        """Keep the descriptor open while a thread is inside a call with it."""
        with self._disk.guard:
            fd = self._fd if self._fd >= 0 else self._open_locked(writing)
            self._pins += 1
            return fd

    @contextmanager
    def _pinned(self, verb: str, *, writing: bool = False) -> Iterator[int]:
        fd = self._pin(writing)
        try:
            with _faults(verb, self.path):
                yield fd
        finally:
            self._unpin()

    def _unpin(self) -> None:
        with self._disk.guard:
            self._pins -= 1
            if self._closed and not self._pins:
                self._closed = False
                self._disk.forget(self)
                os.close(self._fd)
                self._fd = -1

    def _open(self, writing: bool) -> int:
        with self._disk.guard:
            return self._fd if self._fd >= 0 else self._open_locked(writing)

    def _open_locked(self, writing: bool) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        try:
            self._fd = os.open(self.path, flags | (os.O_CREAT if self._create and writing else 0), 0o644)
        except OSError as failure:
            if failure.errno not in (errno.EROFS, errno.EACCES) or writing:
                raise _fault("open", self.path, failure) from failure
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)  # reads work on a read-only disk
            except OSError as again:
                raise _fault("open", self.path, again) from again
        self._disk.opened(self)
        return self._fd

    def _reopen(self) -> None:
        """After a failed write: the descriptor may be from a time when the disk was read-only."""
        with self._disk.guard:
            if self._fd >= 0 and self.evict():
                self._disk.forget(self)

    def evict(self) -> bool:
        """Close the descriptor, unless a thread is using it. The disk holds the guard."""
        if self._pins:
            return False
        os.close(self._fd)
        self._fd = -1
        return True


class KeptFile(RealFile):
    """A file that may be deleted. Its descriptor is its own, and is never closed by the disk."""

    __slots__ = ()

    def __init__(self, disk: RealDisk, path: str, fd: int) -> None:
        super().__init__(disk, path, create=False)
        self._fd = fd
        self._pins = 1

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def __del__(self) -> None:
        os.close(self._fd)


class RealLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        os.close(self._fd)


class RealDisk:
    """Files of the operating system. Errors leave as StorageFault, with the path in the message."""

    def __init__(self, *, open_files_max: int = 1000) -> None:
        self._open_files_max = min(open_files_max, _descriptors_max() // 2)  # the others are for connections
        self._open: OrderedDict[RealFile, None] = OrderedDict()
        self._owner = threading.get_ident()
        self._temporaries = count(1)
        self._sync_failure: SyncFault | None = None
        self._on_sync_failure: Callable[[SyncFault], object] | None = None
        self.deferred: dict[str, str] | None = None  # temporary paths of files that are renamed after the sync
        self.guard = threading.Lock()  # descriptors are opened and closed from the loop and from offloaded calls

    def open(self, path: str, *, create: bool = False) -> RealFile:
        return RealFile(self, path, create)

    def opened(self, file: RealFile) -> None:
        """The descriptor that was opened first is closed first: cheaper than LRU, and a busy file is soon open again.

        Only the thread that owns the disk closes descriptors: it may be between reading a descriptor and using it, and
        other threads pin theirs.
        """
        self._open[file] = None
        if threading.get_ident() != self._owner:
            return
        while len(self._open) > self._open_files_max:
            oldest, _ = self._open.popitem(last=False)
            if not oldest.evict():
                self._open[oldest] = None
                break

    def forget(self, file: RealFile) -> None:
        self._open.pop(file, None)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def listdir(self, path: str) -> list[str]:
        with _faults("list", path):
            try:
                return sorted(os.listdir(path))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def mkdir(self, path: str) -> None:
        with _faults("make the directory", path):
            os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        with _faults("rename", old):
            os.replace(old, new)

    def remove(self, path: str) -> None:
        with _faults("remove", path), suppress(FileNotFoundError):
            os.unlink(path)

    def rmtree(self, path: str) -> None:
        with _faults("remove", path), suppress(FileNotFoundError):
            shutil.rmtree(path)

    def read(self, path: str) -> bytes:
        try:
            with open(path if self.deferred is None else self.deferred.get(path, path), "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise
        except OSError as failure:
            raise _fault("read", path, failure) from failure

    def write_atomic(self, path: str, data: bytes) -> None:
        self.check_sync_failure()
        temporary = f"{path}.{next(self._temporaries)}.tmp"  # two threads may write the same file
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                if self.deferred is not None:
                    before, self.deferred[path] = self.deferred.get(path), temporary
                    if before is not None:
                        os.unlink(before)
                    return
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as failure:
            with suppress(OSError):
                os.unlink(temporary)  # a full disk needs the room
            raise _fault("write", path, failure) from failure
        self.sync_dir(os.path.dirname(path))

    def overwrite(self, path: str, data: bytes, position: int) -> None:
        self.check_sync_failure()
        with _faults("write to", path):
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(fd, data, position)
                self.fsync(fd, path)
            finally:
                os.close(fd)

    @contextmanager
    def together(self, path: str) -> Iterator[None]:
        if not can_sync_filesystem():
            yield  # every file is synced by itself
            return
        self.deferred = {}
        try:
            yield
        finally:
            renames, self.deferred = self.deferred, None
        with _faults("sync", path):
            sync_filesystem(path)
            for final, temporary in renames.items():
                os.replace(temporary, final)
            if renames:
                sync_filesystem(path)

    def sync_dir(self, path: str) -> None:
        if self.deferred is not None:
            return
        self.check_sync_failure()
        with _faults("sync", path):
            fd = os.open(path, os.O_RDONLY)
            try:
                self.fsync(fd, path)
            finally:
                os.close(fd)

    def fsync(self, fd: int, path: str) -> None:
        try:
            os.fsync(fd)
        except OSError as failure:
            self._sync_failure = SyncFault(str(_fault("sync", path, failure)))
            if self._on_sync_failure is not None:
                self._on_sync_failure(self._sync_failure)
            raise self._sync_failure from failure

    def mutex(self) -> threading.Lock:
        return threading.Lock()

    def on_sync_failure(self, callback: Callable[[SyncFault], object]) -> None:
        self._on_sync_failure = callback

    def check_sync_failure(self) -> None:
        """After a failed fsync every later sync fails: the system may have dropped pages and call the file clean."""
        if self._sync_failure is not None:
            raise SyncFault(str(self._sync_failure))

    def lock(self, path: str) -> RealLock | None:
        import fcntl  # not on Windows, where no broker runs

        with _faults("lock", path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return RealLock(fd)

    def usage(self, path: str) -> tuple[int, int]:
        with _faults("look at", path):
            stats = os.statvfs(path)
        return stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize


def _descriptors_max() -> int:
    try:
        import resource  # not on Windows, where no broker runs
    except ImportError:
        return DESCRIPTORS_UNLIMITED
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_UNLIMITED if soft == resource.RLIM_INFINITY else soft


@contextmanager
def _faults(verb: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as failure:
        raise _fault(verb, path, failure) from failure


def _fault(verb: str, path: str, failure: OSError) -> StorageFault:
    return StorageFault(f"cannot {verb} {path}: {failure.strerror or failure}")
