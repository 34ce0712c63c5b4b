"""The embedded store: the tree in one SQLite file, for the brokers of one machine.

Who speaks: each process that opens the file has a session; `embedded_file` describes when one counts as dead, and what
is durable. All SQLite calls run in one thread of their own, one at a time, on one connection: the order of calls is the
order of commits, and no call waits behind readers of a slow disk. Commits of other processes are noticed by polling
`PRAGMA data_version`, which reads shared memory and not the disk. The loop starts each poll, and only a poll sends a
heartbeat: if the loop hangs, the session expires.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from ottla.cluster.embedded_file import StoreFile, remedy_for
from ottla.cluster.failure_detector import LEASE_SECONDS
from ottla.cluster.store import Check, Node, Op, SessionState, parent_of
from ottla.errors import Fault, StorageFault
from ottla.runtime import Runtime

log = logging.getLogger("ottla.cluster.embedded")

T = TypeVar("T")

POLL_SECONDS: Final = 0.1
POLL_ALONE_SECONDS: Final = 0.5
"""While there is no other session."""
POLL_EXPEDITED_SECONDS: Final = 0.01
EXPEDITED_SECONDS: Final = 1.0
"""How long polls stay frequent after `expedite`: until the controller's changes are seen, too."""


class EmbeddedStore:
    """The store of `embedded:PATH`."""

    def __init__(self, file: StoreFile, runtime: Runtime) -> None:
        self._file = file
        self._runtime = runtime
        self._offload = runtime.own_thread("store")
        self._connection_lock = asyncio.Lock()  # in the order of the calls
        self._watches: list[tuple[str, Callable[[], None]]] = []
        self._state_callbacks: list[Callable[[SessionState], None]] = []
        self._state = SessionState.connected
        self._closed = False
        self._expedited = asyncio.Event()
        self._expedited_until = 0.0
        self._poller = runtime.spawn(self._poll(), name="store-poll")

    @classmethod
    async def open(cls, path: str, runtime: Runtime, *, lease_seconds: float = LEASE_SECONDS) -> EmbeddedStore:
        """`lease_seconds`: the session timeout; the loop may hang for so long."""
        file = StoreFile(path, runtime, lease_seconds)
        await runtime.offload(file.open)
        return cls(file, runtime)

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def session_seconds(self) -> float:
        return self._file.lease_seconds

    def on_state(self, callback: Callable[[SessionState], None]) -> None:
        self._state_callbacks.append(callback)

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        watch = (path, callback)
        self._watches.append(watch)
        return lambda: self._watches.remove(watch)

    async def read(self, path: str) -> Node | None:
        return await self._call(self._file.read, path)

    async def children(self, path: str) -> list[str]:
        return await self._call(self._file.children, path)

    async def children_from(self, path: str, first: str) -> list[Node]:
        return await self._call(self._file.children_from, path, first)

    async def tree(self, *paths: str) -> list[Node]:
        return await self._call(self._file.tree, paths)

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        paths = await self._call(self._file.commit, ops)
        written = [path for path, op in zip(paths, ops, strict=True) if not isinstance(op, Check)]
        changed = {*written, *map(parent_of, written)}
        for path, callback in list(self._watches):
            if path in changed:
                callback()
        return paths

    def expedite(self) -> None:
        self._expedited_until = self._runtime.now() + EXPEDITED_SECONDS
        self._expedited.set()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._poller.cancel()
        await asyncio.wait([self._poller])
        try:
            await self._call(self._file.close)
        except Fault as fault:
            log.warning("the session was not ended, others will find it dead: %s", fault)

    async def _call(self, act: Callable[..., T], *args: object) -> T:
        """Run in the thread of the store. A cancelled caller still waits for it: no other call may begin meanwhile."""
        import sqlite3

        async with self._connection_lock:
            job = asyncio.ensure_future(self._offload(act, *args))
            try:
                return await asyncio.shield(job)
            except asyncio.CancelledError:
                await asyncio.wait([job])
                job.exception()  # its caller is gone
                raise
            except sqlite3.Error as failure:
                raise StorageFault(f"the store {self._file.path} failed: {failure}{remedy_for(failure)}") from failure

    async def _poll(self) -> None:
        pause = POLL_SECONDS
        reported = ""
        while True:
            await self._wait(pause)
            try:
                seen = await self._call(self._file.poll, self._runtime.now())
                if not seen.alive:
                    await self._begin_new_session()
            except Fault as fault:
                if reported != str(fault):  # logged once, the polls continue
                    reported = str(fault)
                    log.warning("%s", fault)
                continue
            except Exception as failure:  # without polls the session would expire unnoticed
                log.error("looking at the store failed", exc_info=failure)
                continue
            reported = ""
            pause = POLL_ALONE_SECONDS if seen.alone else POLL_SECONDS
            if seen.changed:
                for _, callback in list(self._watches):
                    callback()

    async def _wait(self, seconds: float) -> None:
        """Until the next poll is due, or is expedited."""
        if self._runtime.now() < self._expedited_until:
            await asyncio.sleep(POLL_EXPEDITED_SECONDS)
            return
        self._expedited.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._expedited.wait()
        except TimeoutError:
            pass

    async def _begin_new_session(self) -> None:
        """Our session has expired, and our ephemeral nodes are gone. Begin a new one; its owner registers again."""
        if self._state is not SessionState.lost:
            log.warning(
                "the broker has hung for more than %g s: its session has expired, it registers again",
                self._file.lease_seconds,
            )
            self._become(SessionState.lost)
        await self._call(self._file.begin_session)
        self._become(SessionState.connected)

    def _become(self, state: SessionState) -> None:
        self._state = state
        for callback in self._state_callbacks:
            callback(state)
