"""Response memory (`ottla.queued.max.response.bytes`): bytes that are loaded for clients and not read by them.

Bytes that wait in memory for a socket count. For a large response that is little, for its bytes stay in their file
until the socket takes them (`streaming`): a few thousand bytes for a client that does not read, a chunk for a
connection that waits for the disk. Of a response that was built in memory, everything counts that the socket has not
taken.

At the limit a connection waits before it loads more, and connections whose clients have read nothing for a while are
closed. Brokers never wait and are not counted. Small responses are not counted either: no further requests are served
until the client has read them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from ottla.runtime import Handle, Runtime

BUFFER_BYTES: Final = 1088 * 1024
"""How much is loaded and sent at once: a bit more than one partition (`max.partition.fetch.bytes`)."""
CHUNK_BYTES_MAX: Final = 256 * 1024
CHUNK_BYTES_MIN: Final = 4 * 1024
SHARES: Final = 16
"""A chunk in memory is at most this fraction of what is free."""
SPARE_SHARES: Final = 8
"""While less than this fraction of the limit is used, the end of a response stays in memory: it is not loaded again."""
STALLED_SECONDS_MAX = 10.0
"""How long a client may read nothing while others wait for memory."""


class ResponseHolder(Protocol):
    def unread_bytes(self) -> int:
        """How much the socket has not taken yet."""

    def may_load(self) -> None:
        """More may be loaded now."""

    def give_up(self, why: str) -> None:
        """Close; unread bytes are dropped."""


class _Loaded:
    __slots__ = ("since", "size", "unread")

    def __init__(self) -> None:
        self.size = self.unread = 0
        self.since = 0.0


class ResponseMemory:
    """Of all connections of one broker."""

    def __init__(self, runtime: Runtime, most: Callable[[], int]) -> None:
        """`most`: how many bytes may be held; -1 sets no limit."""
        self._runtime = runtime
        self._most = most
        self._held: dict[ResponseHolder, _Loaded] = {}
        self._waiting: dict[ResponseHolder, None] = {}  # in order of arrival
        self._bytes = 0
        self._timer: Handle | None = None
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        """The buffer for bytes that are sent at once."""

    @property
    def held_bytes(self) -> int:
        return self._bytes

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def chunk_bytes(self, holder: ResponseHolder) -> int:
        """How much may be loaded for it and wait. 0: nothing now, `may_load` is called later."""
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
        """Whether this many bytes may stay in memory though they could be loaded again: while little is used."""
        most = self._most()
        return most < 0 or (self._bytes + size) * SPARE_SHARES <= most

    def hold(self, holder: ResponseHolder, size: int) -> None:
        """Set how many bytes are loaded for it and not sent."""
        held = self._held.get(holder)
        if held is None:
            held = self._held[holder] = _Loaded()
        self._bytes += size - held.size
        held.size = size
        held.unread = holder.unread_bytes()
        held.since = self._runtime.now()
        if self._bytes > self._most() >= 0:
            self._watch()

    def release(self, holder: ResponseHolder) -> None:
        """Nothing is loaded for it, and it waits for nothing."""
        self._waiting.pop(holder, None)
        held = self._held.pop(holder, None)
        if held is not None:
            self._bytes -= held.size
            self._grant()

    def _grant(self) -> None:
        """Let waiting connections go on, as far as there is memory for the smallest chunk of each."""
        if not self._waiting:
            return
        free = self._most() - self._bytes
        for holder in list(self._waiting):
            free -= CHUNK_BYTES_MIN
            if free < 0 and self._bytes:
                break
            del self._waiting[holder]
            self._runtime.call_soon(holder.may_load)

    # Clients that do not read while others wait.

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = self._runtime.call_at(self._runtime.now() + STALLED_SECONDS_MAX / 2, self._close_stalled)

    def _close_stalled(self) -> None:
        self._timer = None
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
                holder.give_up("it does not read its responses, and others wait for the memory")
            self._watch()
        self._grant()
