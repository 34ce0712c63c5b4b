"""Memory of answers that clients have not read: how much is loaded for all connections together.

What counts is what waits in memory for a socket. That is little for a large answer, whose bytes stay in their file
until the socket takes them (`streaming`): a few thousand bytes for each client that does not read, and a chunk for each
that waits for the device. Of an answer that was made in memory it is all that the socket has not taken.

When nothing is left of the limit, who wants to load more waits; those whose clients have taken nothing for a while are
closed then. Brokers never wait and are not counted. Neither are small answers: a connection whose client has not taken
them is served no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from ottla.runtime import Handle, Runtime

BUFFER_BYTES: Final = 1088 * 1024
"""How much is loaded to be sent at once: one partition's share (`max.partition.fetch.bytes`), and a bit."""
CHUNK_BYTES_MAX: Final = 256 * 1024
CHUNK_BYTES_MIN: Final = 4 * 1024
SHARES: Final = 16
"""A chunk that waits in memory is at most this part of what is free."""
SPARE_SHARES: Final = 8
"""While less than this part of the limit is used, the end of an answer waits in memory: it is not loaded again."""
STALLED_SECONDS_MAX = 10.0
"""How long a client may take nothing while others wait for the memory."""


class ResponseHolder(Protocol):
    def unread_bytes(self) -> int:
        """How much the socket has not taken yet."""

    def may_load(self) -> None:
        """There is room again."""

    def give_up(self, why: str) -> None:
        """Close, whatever has not been taken."""


class _Held:
    __slots__ = ("since", "size", "unread")

    def __init__(self) -> None:
        self.size = self.unread = 0
        self.since = 0.0


class ResponseMemory:
    """All answers of one broker's connections."""

    def __init__(self, runtime: Runtime, most: Callable[[], int]) -> None:
        """`most`: how many bytes may be held; -1 sets no limit."""
        self._runtime = runtime
        self._most = most
        self._held: dict[ResponseHolder, _Held] = {}
        self._waiting: dict[ResponseHolder, None] = {}  # in the order in which they came
        self._bytes = 0
        self._look: Handle | None = None
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        """To load into what is sent at once."""

    @property
    def held_bytes(self) -> int:
        return self._bytes

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def chunk_bytes(self, holder: ResponseHolder) -> int:
        """How much may be loaded for it and wait. 0: nothing, and `may_load` is called when there is room."""
        most = self._most()
        if most < 0:
            return CHUNK_BYTES_MAX
        free = most - self._bytes
        if free < CHUNK_BYTES_MIN and self._bytes:
            self._waiting[holder] = None
            self._watch()
            return 0
        return max(min(free // SHARES, CHUNK_BYTES_MAX), CHUNK_BYTES_MIN)

    def has_spare(self, size: int) -> bool:
        """Whether so much may wait for a socket though it could be loaded later: while next to nothing is used."""
        most = self._most()
        return most < 0 or (self._bytes + size) * SPARE_SHARES <= most

    def hold(self, holder: ResponseHolder, size: int) -> None:
        """So much is loaded for it and not sent, instead of what was before."""
        held = self._held.get(holder)
        if held is None:
            held = self._held[holder] = _Held()
        self._bytes += size - held.size
        held.size = size
        held.unread = holder.unread_bytes()
        held.since = self._runtime.now()
        if self._bytes > self._most() >= 0:
            self._watch()

    def release(self, holder: ResponseHolder) -> None:
        """Nothing is held for it, and nothing wanted."""
        self._waiting.pop(holder, None)
        held = self._held.pop(holder, None)
        if held is not None:
            self._bytes -= held.size
            self._grant()

    def _grant(self) -> None:
        """Let those go on who wait, as far as there is room for the smallest chunk of each."""
        if not self._waiting:
            return
        free = self._most() - self._bytes
        for holder in list(self._waiting):
            free -= CHUNK_BYTES_MIN
            if free < 0 and self._bytes:
                break
            del self._waiting[holder]
            self._runtime.call_soon(holder.may_load)

    # Those who do not read while others wait.

    def _watch(self) -> None:
        if self._look is None:
            self._look = self._runtime.call_at(self._runtime.now() + STALLED_SECONDS_MAX / 2, self._close_stalled)

    def _close_stalled(self) -> None:
        self._look = None
        now = self._runtime.now()
        stalled = []
        for holder, held in self._held.items():
            unread = holder.unread_bytes()
            if unread < held.unread:
                held.unread = unread
                held.since = now
            elif unread and now - held.since >= STALLED_SECONDS_MAX:
                stalled.append(holder)
        if self._waiting or self._bytes > self._most():
            for holder in stalled:
                holder.give_up("it does not read its answers, and others wait for the memory")
            self._watch()
        self._grant()
