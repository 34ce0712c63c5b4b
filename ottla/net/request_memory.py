"""RequestMemory for requests that have not arrived whole.

What counts is the memory they take, not the length they promise: a connection asks again whenever its buffer has to
grow, and is not read from while there is no room. One connection at a time may go beyond the limit, or all of them
could wait for each other; it keeps that right until its request is whole, and then the one that waits longest has it.
Whoever stops sending in the middle while others wait is hung up on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ottla.runtime import Handle, Runtime

STALLED_SECONDS_MAX = 10.0


class RequestHolder(Protocol):
    def granted(self, size: int) -> None:
        """There is room now for a buffer of that size."""

    def stalled(self, since: float) -> bool:
        """Whether all that is missing is what the other end has not sent since then."""

    def close(self, why: str) -> None: ...


class RequestMemory:
    def __init__(self, runtime: Runtime, most: Callable[[], int]) -> None:
        self._runtime = runtime
        self._most = most
        self._held: dict[RequestHolder, int] = {}
        self._bytes = 0
        self._beyond: RequestHolder | None = None
        self._waiting: dict[RequestHolder, int] = {}  # in the order in which they came
        self._look: Handle | None = None

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def take(self, holder: RequestHolder, size: int) -> bool:
        """Memory for a buffer of that size, instead of what was taken before. Otherwise `granted` is called later."""
        if not self._fits(holder, size):
            self._waiting[holder] = size
            self._hang_up_on_stalled()
            return False
        self._bytes += size - self._held.get(holder, 0)
        self._held[holder] = size
        return True

    def release(self, holder: RequestHolder) -> None:
        self._waiting.pop(holder, None)
        self._bytes -= self._held.pop(holder, 0)
        if self._beyond is holder:
            self._beyond = None
        for each, size in list(self._waiting.items()):
            if not self._fits(each, size):
                break
            del self._waiting[each]
            self._bytes += size - self._held.get(each, 0)
            self._held[each] = size
            each.granted(size)

    def waits(self, holder: RequestHolder) -> bool:
        return holder in self._waiting

    def _fits(self, holder: RequestHolder, size: int) -> bool:
        most = self._most()
        if most < 0 or self._bytes - self._held.get(holder, 0) + size <= most:
            return True
        if self._beyond is None:
            self._beyond = holder
        return self._beyond is holder

    def _hang_up_on_stalled(self) -> None:
        """Now, and again as long as somebody waits: who waits is not read from, and so does not ask again."""
        now = self._runtime.now()
        since = now - STALLED_SECONDS_MAX
        if self._look is None:
            self._look = self._runtime.call_at(now + STALLED_SECONDS_MAX, self._look_again)
        for each in [each for each in self._held if each not in self._waiting and each.stalled(since)]:
            each.close("it does not go on with a large request, and others wait for the room")

    def _look_again(self) -> None:
        self._look = None
        if self._waiting:
            self._hang_up_on_stalled()
