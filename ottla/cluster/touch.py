"""Whether a broker may believe that the store still holds it for alive, and that nobody has taken its place.

A process that was stopped, and goes on, is not told at once that its session has ended meanwhile and that others lead
what it led: requests that have waited for it come first. So what it heard last is not enough. That its registration,
an ephemeral node with its incarnation in it, is found in the store proves that the session lasted when it was looked
for, and no session ends before a whole lease has passed without a sign of it. So for half a lease after such a proof it
can be relied on. (By the stopwatch: the clock of the loop stands still for a whole turn of it, and a turn may be
interrupted for long.)
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, runtime_checkable

from ottla.cluster import layout
from ottla.cluster.store import SessionState, Store
from ottla.errors import Fault
from ottla.runtime import Runtime

LOOKS: Final = 8
"""Within a lease."""


@runtime_checkable
class Agreed(Protocol):
    """A store whose servers have a say in how long a session lasts."""

    @property
    def session_seconds(self) -> float: ...


class Touch:
    """`path` is that of the registration, which is there when this begins."""

    def __init__(self, store: Store, runtime: Runtime, path: str, incarnation: str, lease_seconds: float) -> None:
        self._store = store
        self._runtime = runtime
        self._path = path
        self._incarnation = incarnation
        self._lease_seconds = lease_seconds
        self._agreed = store if isinstance(store, Agreed) else None
        self._proven = runtime.stopwatch()
        self._task = runtime.spawn(self._look(), name="store-touch")

    @property
    def holds(self) -> bool:
        if self._store.state is not SessionState.connected:
            return False
        return self._runtime.stopwatch() - self._proven < self._lease / 2

    @property
    def _lease(self) -> float:
        if self._agreed is None:
            return self._lease_seconds
        return min(self._lease_seconds, self._agreed.session_seconds)

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._lease / LOOKS)
            asked = self._runtime.stopwatch()
            try:
                node = await self._store.read(self._path)
                if node is not None and layout.incarnation_of(node.data) == self._incarnation:
                    self._proven = asked
            except Fault:
                pass  # out of touch, as the session's state tells or will tell
