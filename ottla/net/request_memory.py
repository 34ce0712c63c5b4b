"""Request memory pool (`queued.max.request.bytes`, KIP-72): buffers of large requests that have not arrived whole.

The size of the buffer counts, not the length that the request claims: a connection asks again whenever its buffer has
to grow, and is not read from while the pool is full. One connection at a time may exceed the limit, or all could wait
for each other. It keeps that right until its request is whole; then the connection that waits longest gets it. A
connection that stops sending in the middle of a request while others wait is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ottla.runtime import Handle, Runtime

STALLED_SECONDS_MAX = 10.0


class RequestHolder(Protocol):
    def granted(self, size: int) -> None:
        """A buffer of that size may be allocated now."""

    def stalled(self, since: float) -> bool:
        """Whether it waits for the client, which has sent nothing since then."""

    def close(self, why: str) -> None: ...


class RequestMemory:
    def __init__(self, runtime: Runtime, most: Callable[[], int]) -> None:
        self._runtime = runtime
        self._most = most
        self._held: dict[RequestHolder, int] = {}
        self._bytes = 0
        self._exceeding: RequestHolder | None = None
        self._waiting: dict[RequestHolder, int] = {}  # in order of arrival
        self._timer: Handle | None = None

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def take(self, holder: RequestHolder, size: int) -> bool:
        """Memory for a buffer of that size, in place of its buffer so far. If False, `granted` is called later."""
        if not self._fits(holder, size):
            self._waiting[holder] = size
            self._close_stalled()
            return False
        self._bytes += size - self._held.get(holder, 0)
        self._held[holder] = size
        return True

    def release(self, holder: RequestHolder) -> None:
        self._waiting.pop(holder, None)
        self._bytes -= self._held.pop(holder, 0)
        if self._exceeding is holder:
            self._exceeding = None
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
        if self._exceeding is None:
            self._exceeding = holder
        return self._exceeding is holder

    def _close_stalled(self) -> None:
        """Now, and periodically as long as a connection waits."""
        now = self._runtime.now()
        since = now - STALLED_SECONDS_MAX
        if self._timer is None:
            self._timer = self._runtime.call_at(now + STALLED_SECONDS_MAX, self._check_again)
        for each in [each for each in self._held if each not in self._waiting and each.stalled(since)]:
            each.close("it has stopped sending a large request, and others wait for the memory")

    def _check_again(self) -> None:
        self._timer = None
        if self._waiting:
            self._close_stalled()
