"""The session lease: until when a broker may act as registered without asking the store again.

A process that was paused (SIGSTOP, a hanging loop) does not learn at once that its session has expired and that other
brokers lead its partitions: requests that waited for it are served first. So the last known session state is not
enough. The registration is an ephemeral node with the process's incarnation in it: a read that finds it proves that the
session was alive when the read was sent, and no session expires before its whole timeout has passed without a sign of
it. The lease therefore holds for half a session timeout after such a read. It is measured with the stopwatch, since
the clock of the loop stands still during one loop iteration, and an iteration may be interrupted for long.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ottla.cluster import layout
from ottla.cluster.store import SessionState, Store
from ottla.errors import Fault
from ottla.runtime import Runtime

READS_PER_SESSION_TIMEOUT: Final = 8


class SessionLease:
    """`path` is that of the registration, which is there when this begins."""

    def __init__(self, store: Store, runtime: Runtime, path: str, incarnation: str) -> None:
        self._store = store
        self._runtime = runtime
        self._path = path
        self._incarnation = incarnation
        self._proven_at = runtime.stopwatch()
        self._task = runtime.spawn(self._renew(), name="session-lease")

    @property
    def holds(self) -> bool:
        if self._store.state is not SessionState.connected:
            return False
        return self._runtime.stopwatch() - self._proven_at < self._store.session_seconds / 2

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._store.session_seconds / READS_PER_SESSION_TIMEOUT)
            asked_at = self._runtime.stopwatch()
            try:
                node = await self._store.read(self._path)
                if node is not None and layout.incarnation_of(node.data) == self._incarnation:
                    self._proven_at = asked_at
            except Fault:
                pass  # unreachable, as the session's state shows or will show
