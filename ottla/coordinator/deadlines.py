"""Many timers, nearly all of which are moved later before they fire: moving one costs a dictionary entry."""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import Generic, TypeVar

K = TypeVar("K", bound=tuple[object, ...])


class Deadlines(Generic[K]):
    """A timer that is moved later keeps its position in the heap, and is corrected when it comes first."""

    __slots__ = ("_due", "_heap", "_queued")

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._queued: dict[K, float] = {}  # the valid entry of the heap; others of the same key are outdated
        self._heap: list[tuple[float, K]] = []

    def __contains__(self, key: K) -> bool:
        return key in self._due

    def set(self, key: K, when: float) -> None:
        self._due[key] = when
        queued = self._queued.get(key)
        if queued is None or when < queued:
            self._queued[key] = when
            heappush(self._heap, (when, key))

    def drop(self, key: K) -> None:
        self._due.pop(key, None)

    def clear(self) -> None:
        self._due.clear()
        self._queued.clear()
        self._heap.clear()

    @property
    def first(self) -> float | None:
        heap = self._heap
        while heap:
            when, key = heap[0]
            due = self._due.get(key)
            if self._queued.get(key) != when:
                heappop(heap)
            elif due is None:
                heappop(heap)
                del self._queued[key]
            elif due > when:
                self._queued[key] = due
                heapreplace(heap, (due, key))
            else:
                return when
        return None

    def take_first(self, now: float) -> K | None:
        """Remove and return the first timer that is due."""
        first = self.first
        if first is None or first > now:
            return None
        key = self._heap[0][1]
        self.drop(key)
        return key

    def take(self, now: float) -> list[K]:
        """Remove and return all timers that are due."""
        taken = []
        while (key := self.take_first(now)) is not None:
            taken.append(key)
        return taken
