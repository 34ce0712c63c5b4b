"""The seam between what decides and what does.

Time, disk, network and randomness enter the broker through one `Runtime` object and nowhere else. `runtime.real` wears
the operating system; the simulator wears a virtual clock, a virtual network and a disk that loses its unsynced tail.
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
    """One file. Thousands may exist: the disk opens descriptors when needed and keeps only the recently used ones."""

    @property
    def path(self) -> str: ...

    def size(self) -> int: ...

    def append(self, *buffers: Buffer) -> None:
        """Add all of it at the end, or raise StorageFault: then part of it may be there, and the caller truncates."""

    def pread(self, length: int, offset: int) -> bytes: ...

    def pread_nowait(self, length: int, offset: int) -> bytes | bytearray | None:
        """What `pread` gives if that takes no waiting for the device; None if it would: then offload a `pread`."""

    def pread_into(self, buffer: memoryview, offset: int) -> int | None:
        """Fill the buffer as far as that takes no waiting for the device. How many bytes were read, 0 at the end of the
        file; None if there are none without waiting."""

    def pread_once(self, length: int, offset: int) -> bytes:
        """As `pread`, for whoever reads a file through and does not come back soon: what was not in the page cache is
        not in it afterwards. With a handle of its own, for it turns off reading ahead."""

    def truncate(self, size: int) -> None: ...

    def rename(self, path: str) -> None:
        """Give the file another name, and go on with it under that one: whoever holds this handle never sees another
        file that takes the old name."""

    def sync(self) -> None:
        """Block until the device has it."""

    def keep(self) -> File:
        """Another handle, to read with when this one is closed and the file has no name any more. What it holds of the
        system goes with the last reference to it."""

    def close(self) -> None: ...


class ResponseSource(Protocol):
    """Bytes of an answer that stay where they are until they are sent. What a read raises ends the connection: the part
    of the answer that is out cannot be taken back. Zero-copy would be one more way to send such a source."""

    def __len__(self) -> int: ...

    def read_into(self, start: int, buffer: memoryview) -> int | None:
        """Fill the buffer from there on, as far as that takes no waiting for the device. How many bytes there are in it
        now; None if there are none without waiting: then offload `read`."""

    def read(self, start: int, size: int) -> Buffer:
        """So many bytes from there on, waiting. May run in a thread."""

    def hold(self) -> None:
        """It is not sent at once: keep what it needs, whatever is deleted, as long as somebody refers to it."""


class Lock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False) -> File:
        """A handle; nothing is opened yet. With `create` the file is made at the first write."""

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """Sorted names; none when there is no such directory, be it that a file has the name."""

    def mkdir(self, path: str) -> None: ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def rmtree(self, path: str) -> None: ...

    def read(self, path: str) -> bytes: ...

    def write_atomic(self, path: str, data: bytes) -> None:
        """Old or new content after a crash, never a mixture."""

    def overwrite(self, path: str, data: bytes, position: int) -> None:
        """Put these bytes in the place of as many others, in the middle of a file. Durable on return."""

    def sync_dir(self, path: str) -> None: ...

    def together(self, path: str) -> AbstractContextManager[None]:
        """What is synced inside is synced when it ends, all of it with one call where the system can: for many files
        at a time when nobody needs any of them meanwhile. Nothing inside may be taken for durable."""

    def mutex(self) -> AbstractContextManager[object]:
        """For a file that the loop and threads write: each waits until the other is done."""

    def on_sync_failure(self, callback: Callable[[SyncFault], object]) -> None:
        """Tell, from whatever thread, when the device has not kept something. Nothing is called durable after that."""

    def lock(self, path: str) -> Lock | None:
        """Exclusive until released or the process dies; None when somebody else holds it."""

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
        """Accept connections from now on."""

    async def close(self) -> None: ...


class Child(Protocol):
    """What work in a process of its own may ask of the world."""

    @property
    def disk(self) -> Disk: ...

    def pace(self, done_bytes: int) -> None:
        """So much was read or written: wait if that is more than the work may do in this time."""


class ChildKilled(Fault):
    """The process that did the work was killed: it may be tried again."""


class ChildStarved(ChildKilled):
    """The machine is so busy that the work got nowhere: it may be tried again with more insistence."""


class ChildFailed(Fault):
    """The process that did the work gave up, for a reason that will not go away: its cause."""


class Runtime(Protocol):
    """Everything a broker may ask of the world."""

    @property
    def disk(self) -> Disk: ...

    @property
    def random(self) -> Random: ...

    def entropy(self, count: int) -> bytes:
        """Bytes that nobody can guess, for secrets; `random` is for everything else."""

    def now(self) -> float:
        """Monotonic seconds, for timeouts: never jumps."""

    def stopwatch(self) -> float:
        """Monotonic seconds, for measuring how long something took: goes on where `now` stands still, which may be for
        a whole turn of the loop."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, for timestamps in records: may jump."""

    def call_soon(self, act: Callable[..., object], *args: object) -> Handle: ...

    def call_at(self, when: float, act: Callable[..., object], *args: object) -> Handle:
        """Call when `now()` reaches `when`."""

    def spawn(self, work: Coroutine[object, object, T], *, name: str) -> asyncio.Task[T]:
        """Run in the background; a failure is logged, never swallowed."""

    def offload(self, act: Callable[..., T], *args: object) -> Awaitable[T]:
        """Run a blocking call beside the loop."""

    def own_thread(self, name: str) -> Callable[..., Awaitable[Any]]:
        """An `offload` with a thread of its own, for what must not wait behind a busy disk."""

    def offload_process(
        self, work: str, job: Mapping[str, Any], *, bytes_per_second: float | None = None, insist: bool = False
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Run a function in a process of its own, at low priority, and give its reports as they come.

        It is named `module:function`, takes a `Child` and the job, and is an iterator of reports, as JSON knows them.
        It runs only when nobody else wants to, unless it insists on its share. What it raises is raised here: Refused,
        StorageFault, or ChildKilled, ChildStarved and ChildFailed. Closing it ends the process, and so does the end of
        this one.
        """

    async def listen(self, protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> ListeningSocket:
        """Bind the address; nobody is accepted before `start`. Port 0: the system chooses one."""

    async def connect(
        self, protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]: ...
