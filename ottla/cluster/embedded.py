"""The embedded store: the tree in one SQLite file, for brokers of one machine.

Who speaks: each process that opens the file is a session; `embedded_file` says when one counts as dead, and what is
durable. All SQLite calls run beside the loop, one at a time, on one connection: the order of calls is the order of
commits. Commits of other processes are noticed by polling `PRAGMA data_version`, which reads shared memory and no disk.
They have a thread to themselves: behind readers of a slow disk, a poll could come too late.
The loop is what polls, and only a poll shows the others that this session lives: if the loop hangs, the session ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from ottla.cluster.embedded_file import StoreFile, mended_by
from ottla.cluster.leases import LEASE_SECONDS
from ottla.cluster.store import Check, Node, Op, SessionState, parent_of
from ottla.errors import Fault, StorageFault
from ottla.runtime import Runtime

log = logging.getLogger("ottla.cluster.embedded")

T = TypeVar("T")

POLL_SECONDS: Final = 0.1
POLL_ALONE_SECONDS: Final = 0.5
"""With no other session about, all that can happen is that one begins."""
POLL_HURRIED_SECONDS: Final = 0.01
HURRY_SECONDS: Final = 1.0
"""Whoever saw a broker go wants to see what the controller makes of it, too."""


class EmbeddedStore:
    """The store of `embedded:PATH`."""

    def __init__(self, file: StoreFile, runtime: Runtime) -> None:
        self._file = file
        self._runtime = runtime
        self._offload = runtime.own_thread("store")
        self._turn = asyncio.Lock()  # one thread at a time in the connection, in the order of asking
        self._watches: list[tuple[str, Callable[[], None]]] = []
        self._tell_state: list[Callable[[SessionState], None]] = []
        self._state = SessionState.connected
        self._closed = False
        self._hurried = asyncio.Event()
        self._hurried_until = 0.0
        self._poller = runtime.spawn(self._poll(), name="store-poll")

    @classmethod
    async def open(cls, path: str, runtime: Runtime, *, lease_seconds: float = LEASE_SECONDS) -> EmbeddedStore:
        """`lease_seconds`: for how long the loop may hang before others end the session."""
        file = StoreFile(path, runtime, lease_seconds)
        await runtime.offload(file.open)
        return cls(file, runtime)

    @property
    def state(self) -> SessionState:
        return self._state

    def on_state(self, tell: Callable[[SessionState], None]) -> None:
        self._tell_state.append(tell)

    def watch(self, path: str, tell: Callable[[], None]) -> Callable[[], None]:
        watch = (path, tell)
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
        touched = {*written, *map(parent_of, written)}
        for path, tell in list(self._watches):
            if path in touched:
                tell()
        return paths

    def hurry(self) -> None:
        self._hurried_until = self._runtime.now() + HURRY_SECONDS
        self._hurried.set()

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
        """Run beside the loop. A caller that is cancelled still waits for it: nobody else may enter meanwhile."""
        import sqlite3

        async with self._turn:
            job = asyncio.ensure_future(self._offload(act, *args))
            try:
                return await asyncio.shield(job)
            except asyncio.CancelledError:
                await asyncio.wait([job])
                job.exception()  # nobody is there any more to be told
                raise
            except sqlite3.Error as failure:
                raise StorageFault(f"the store {self._file.path} failed: {failure}{mended_by(failure)}") from failure

    async def _poll(self) -> None:
        pause = POLL_SECONDS
        complaint = ""
        while True:
            await self._rest(pause)
            try:
                seen = await self._call(self._file.poll, self._runtime.now())
                if not seen.alive:
                    await self._begin_again()
            except Fault as fault:
                if complaint != str(fault):  # once is enough, the poll goes on
                    complaint = str(fault)
                    log.warning("%s", fault)
                continue
            except Exception as failure:  # a session that is not counted up any more ends, and nobody would notice
                log.error("looking at the store failed", exc_info=failure)
                continue
            complaint = ""
            pause = POLL_ALONE_SECONDS if seen.alone else POLL_SECONDS
            if seen.changed:
                for _, tell in list(self._watches):
                    tell()

    async def _rest(self, seconds: float) -> None:
        """Until the next look is due, or somebody is in a hurry."""
        if self._runtime.now() < self._hurried_until:
            await asyncio.sleep(POLL_HURRIED_SECONDS)
            return
        self._hurried.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._hurried.wait()
        except TimeoutError:
            pass

    async def _begin_again(self) -> None:
        """Somebody held us for dead, and our ephemeral nodes are gone. A new session; its owner registers again."""
        if self._state is not SessionState.lost:
            log.warning(
                "the broker has stood still for more than %g s: its session was ended, it registers again",
                self._file.lease_seconds,
            )
            self._become(SessionState.lost)
        await self._call(self._file.begin_session)
        self._become(SessionState.connected)

    def _become(self, state: SessionState) -> None:
        self._state = state
        for tell in self._tell_state:
            tell(state)
