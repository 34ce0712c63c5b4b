"""The runtime interface: clock, disk, network and randomness enter a broker through one `Runtime` object only.

`runtime.real` implements it with the operating system; the simulator with a virtual clock, a virtual network and a disk
that loses its unsynced tail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ottla.errors import Fault, SyncFault

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
    from contextlib import AbstractContextManager
    from random import Random

T = TypeVar("T")

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """One file. There may be thousands: the disk opens descriptors when needed and closes the oldest ones."""

    @property
    def path(self) -> str: ...

    def size(self) -> int: ...

    def append(self, *buffers: Buffer) -> None:
        """Append all of it, or raise StorageFault: then part of it may be in the file, and the caller truncates."""

    def pread(self, length: int, offset: int) -> bytes: ...

    def pread_nowait(self, length: int, offset: int) -> bytes | bytearray | None:
        """Like `pread` if the page cache has all of it; None if not: then offload a `pread`."""

    def pread_into(self, buffer: memoryview, offset: int) -> int | None:
        """Fill the buffer as far as the page cache has the bytes. How many were read, 0 at the end of the file; None if
        the page cache has none of them."""

    def pread_once(self, length: int, offset: int) -> bytes:
        """Like `pread`, for reading a file once: pages that were not in the page cache are not in it afterwards. Use a
        handle of its own, because it turns off read-ahead."""

    def truncate(self, size: int) -> None: ...

    def rename(self, path: str) -> None:
        """Rename the file; the handle continues with the new name, and never sees another file with the old one."""

    def sync(self) -> None:
        """Block until the device has it."""

    def keep(self) -> File:
        """Another handle, which can read after this one is closed and the file is deleted. Its descriptor is closed
        with the last reference to it."""

    def close(self) -> None: ...


class ResponseSource(Protocol):
    """Bytes of a response that stay on disk until they are sent. A failed read closes the connection: the part of the
    response that was sent cannot be taken back. Zero-copy would be one more way to send such a source."""

    def __len__(self) -> int: ...

    def read_into(self, start: int, buffer: memoryview) -> int | None:
        """Fill the buffer from `start` on, as far as the page cache has the bytes. How many were read; None if the page
        cache has none of them: then offload `read`."""

    def read(self, start: int, size: int) -> Buffer:
        """So many bytes from `start` on. Blocks; may run in a thread."""

    def hold(self) -> None:
        """It is not sent at once: keep the files open, also if they are deleted, as long as it is referenced."""


class Lock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False) -> File:
        """A handle; nothing is opened yet. With `create` the first write creates the file."""

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """Sorted names; none when there is no such directory, also if a file has the name."""

    def mkdir(self, path: str) -> None: ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def rmtree(self, path: str) -> None: ...

    def read(self, path: str) -> bytes: ...

    def write_atomic(self, path: str, data: bytes) -> None:
        """Old or new content after a crash, never a mixture."""

    def overwrite(self, path: str, data: bytes, position: int) -> None:
        """Overwrite bytes in the middle of a file. Durable on return."""

    def sync_dir(self, path: str) -> None: ...

    def together(self, path: str) -> AbstractContextManager[None]:
        """Syncs inside this context happen at its end, with one call where the system can: for many files at a time.
        Nothing is durable before its end."""

    def mutex(self) -> AbstractContextManager[object]:
        """A mutex for a file that both the loop and threads write."""

    def on_sync_failure(self, callback: Callable[[SyncFault], object]) -> None:
        """Call, from any thread, when a sync has failed. No later sync succeeds."""

    def lock(self, path: str) -> Lock | None:
        """Exclusive until released or the process dies; None when another process holds it."""

    def usage(self, path: str) -> tuple[int, int]:
        """Total and free bytes of the filesystem."""


class Handle(Protocol):
    def cancel(self) -> None: ...


class ListeningSocket(Protocol):
    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    async def start(self) -> None:
        """Begin to accept connections."""

    async def close(self) -> None: ...


class Child(Protocol):
    """The runtime of work in a child process."""

    @property
    def disk(self) -> Disk: ...

    def pace(self, done_bytes: int) -> None:
        """So much was read or written: wait if that is above the allowed rate."""


class ChildKilled(Fault):
    """The child process was killed: the work may be tried again."""


class ChildStarved(ChildKilled):
    """The machine is too busy for a low-priority child: the work may be tried again with `insist`."""


class ChildFailed(Fault):
    """The child process failed for a permanent reason: its cause."""


class Runtime(Protocol):
    """Clock, disk, network, randomness, tasks, threads and child processes of a broker."""

    @property
    def disk(self) -> Disk: ...

    @property
    def random(self) -> Random: ...

    def entropy(self, count: int) -> bytes:
        """Cryptographically secure bytes, for secrets; `random` is for everything else."""

    def now(self) -> float:
        """Monotonic seconds, for timeouts."""

    def stopwatch(self) -> float:
        """Monotonic seconds, for measuring a duration: it advances also during one iteration of the loop, where `now`
        does not."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, for timestamps of records: may jump."""

    def call_soon(self, act: Callable[..., object], *args: object) -> Handle: ...

    def call_at(self, when: float, act: Callable[..., object], *args: object) -> Handle:
        """Call when `now()` reaches `when`."""

    def spawn(self, work: Coroutine[object, object, T], *, name: str) -> asyncio.Task[T]:
        """Run in the background; a failure is logged."""

    def offload(self, act: Callable[..., T], *args: object) -> Awaitable[T]:
        """Run a blocking call in a thread."""

    def own_thread(self, name: str) -> Callable[..., Awaitable[Any]]:
        """An `offload` with a thread of its own, for calls that must not wait behind a busy disk."""

    def offload_process(
        self, work: str, job: Mapping[str, Any], *, bytes_per_second: float | None = None, insist: bool = False
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Run a function in a child process, at low priority, and yield its reports as they come.

        `work` is `module:function`; the function takes a `Child` and the job, and yields reports of JSON types. It runs
        only when the processor is idle, unless it insists on a share. Its exceptions are raised here: Refused,
        StorageFault, or ChildKilled, ChildStarved and ChildFailed. The process ends when the generator is closed, and
        with this process.
        """

    async def listen(self, protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> ListeningSocket:
        """Bind the address; no connection is accepted before `start`. Port 0: the system chooses one."""

    async def connect(
        self, protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]: ...
