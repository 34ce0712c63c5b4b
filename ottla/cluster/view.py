"""The metadata view of a broker: loads the image once, then follows the change log with one watch.

Changes are applied in the order of the log, and only here. Position and image change together in one step of the loop,
so every reader sees an image that the cluster really had. After a gap (the log was trimmed) or an unknown change (of a
newer release) the image is loaded again, and subscribers get the difference as if it had come through the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from ottla.cluster import layout
from ottla.cluster.changes import Change, UnknownChange, decoded
from ottla.cluster.diff import changes_between
from ottla.cluster.image import EMPTY, Image
from ottla.cluster.store import Store, sequence_of
from ottla.errors import Fault
from ottla.runtime import Runtime

log = logging.getLogger("ottla.cluster.view")

Subscriber = Callable[[Image, Image, Change], None]

RETRY_SECONDS: Final = 1.0


class ClusterView:
    """`image`: the current one; `position`: the number of the last change in it (-1: none)."""

    def __init__(self, runtime: Runtime) -> None:
        self.image = EMPTY
        self.position = -1
        self.store: Store
        """From `open` or `load` on."""
        self._runtime = runtime
        self._subscribers: list[Subscriber] = []
        self._news = asyncio.Event()
        self._writers = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._loading = asyncio.Lock()
        self._tail: asyncio.Task[None] | None = None
        self._unwatch: Callable[[], None] | None = None

    async def load(self, store: Store) -> None:
        """Read the image once."""
        self.store = store
        await self.reload()

    async def open(self, store: Store) -> None:
        """Read the image, and follow the change log from there on."""
        self.store = store
        self._unwatch = self.store.watch(layout.CHANGES, self._news.set)
        await self.reload()
        self._tail = self._runtime.spawn(self._follow(), name="cluster-view")

    async def close(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        if self._tail is not None:
            self._tail.cancel()
            await asyncio.wait([self._tail])
            self._tail = None

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Call with (image before, image after, change) for every change from now on; changes that were committed
        together share the two images. Returns a function that ends it. A subscriber must not raise."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def committed(self, position: int, changes: tuple[Change, ...]) -> bool:
        """Apply a change that this broker has committed; False if others come before it in the log."""
        if position == self.position + 1:
            self._advance(position, changes)
        return position <= self.position

    @contextmanager
    def writing(self) -> Iterator[None]:
        """While this broker commits, it applies its changes itself (`committed`) and reads none back."""
        self._writers += 1
        self._quiet.clear()
        try:
            yield
        finally:
            self._writers -= 1
            if not self._writers:
                self._quiet.set()

    async def catch_up(self) -> None:
        """Return when everything that was committed before the call is in the image."""
        while True:
            nodes = await self.store.children_from(layout.CHANGES, layout.change_name(self.position + 1))
            if not nodes:
                return
            try:
                entries = [(sequence_of(node.path), decoded(node.data)) for node in nodes]
            except UnknownChange:
                await self.reload()
                continue
            for position, changes in entries:
                if position > self.position and not self.committed(position, changes):
                    await self.reload()  # a gap: the log was trimmed past our position
                    break
            if self.position >= entries[-1][0]:
                return

    async def reload(self) -> None:
        """Load the image again. The end of the log is read first: what is committed in between is applied once more.
        One at a time: of two with the same position the one that was read first must not come last."""
        async with self._loading:
            while True:
                names = await self.store.children(layout.CHANGES)
                position = sequence_of(names[-1]) if names else -1
                nodes = await self.store.tree(*layout.IMAGE_PATHS)
                if position >= self.position:  # otherwise the view has advanced during the read
                    break
            old, new = self.image, Image.load(nodes, version=self.image.version + 1)
            self.image, self.position = new, position
        if old is not EMPTY:
            self._notify(old, new, changes_between(old, new))

    def _advance(self, position: int, changes: tuple[Change, ...]) -> None:
        old = self.image
        self.image, self.position = old.apply(*changes), position
        if log.isEnabledFor(logging.DEBUG):
            log.debug("change %d: %s", position, "; ".join(map(str, changes)))
        self._notify(old, self.image, changes)

    def _notify(self, old: Image, new: Image, changes: Iterable[Change]) -> None:
        for change in changes:
            for callback in list(self._subscribers):
                callback(old, new, change)

    async def _follow(self) -> None:
        while True:
            await self._news.wait()
            await self._quiet.wait()
            self._news.clear()
            try:
                await self.catch_up()
            except Fault as fault:
                log.warning("cannot follow the change log, trying again: %s", fault)
            except Exception as failure:  # a broker that stops following would act on an old image
                log.error("following the change log failed, trying again", exc_info=failure)
            else:
                continue
            await asyncio.sleep(RETRY_SECONDS)
            self._news.set()
