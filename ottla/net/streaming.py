"""Streamed responses: large responses are loaded from disk as the socket takes them.

A chunk is loaded into one buffer that all connections share, and written to the socket (`_write`); a response of one
partition, about 1 MB, is one chunk. Bytes that the socket does not take are dropped and loaded again later; only a few
are left with the transport, which reports when they are sent. So a client that does not read costs a few thousand
bytes. While little memory is used, the whole end of a response is left with the transport. Zero-copy (sendfile) could
replace loading and writing. A transport without a socket of its own, in the simulator or with TLS, gets copies.

The connection serves no other request meanwhile. A response that cannot be finished (its log was truncated, or the disk
cannot be read) closes the connection.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.errors import Refused, StorageFault
from ottla.net.response_memory import BUFFER_BYTES, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN
from ottla.runtime import Buffer, ResponseSource, Runtime

if TYPE_CHECKING:
    import asyncio
    import socket

    from ottla.net.server import Connection, Server

ITERATION_BYTES: Final = 1024 * 1024
"""How much of large responses is loaded in one loop iteration."""
BUFFERS_MAX: Final = 1000
"""How many buffers one writev takes."""
REACH_BYTES_MIN: Final = 64 * 1024
"""The least that is loaded for a socket that has taken little before."""


class Streamed:
    """A response of which some parts are read when they are sent."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Buffer | ResponseSource]) -> None:
        self.parts = parts

    def load(self) -> bytes:
        """The whole response, read from disk."""
        return b"".join(
            part if isinstance(part, (bytes, bytearray, memoryview)) else part.read(0, len(part)) for part in self.parts
        )

    def hold(self) -> None:
        """An earlier response has to be sent first: keep the files."""
        for part in self.parts:
            if not isinstance(part, (bytes, bytearray, memoryview)):
                part.hold()


class Pace:
    """Limits how much of all large responses is loaded in one loop iteration."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiting: deque[Stream] = deque()
        self._ends = False
        self.left_bytes = ITERATION_BYTES

    def loaded(self, size: int) -> None:
        self.left_bytes -= size
        if not self._ends:
            self._ends = True
            self._runtime.call_soon(self._next_iteration)

    def wait(self, stream: Stream) -> None:
        """Until the next loop iteration, or a later one."""
        self._waiting.append(stream)

    def _next_iteration(self) -> None:
        self._ends = False
        self.left_bytes = ITERATION_BYTES
        for _ in range(len(self._waiting)):
            if self.left_bytes <= 0:
                break
            self._waiting.popleft().pump()
        if self._waiting:
            self.loaded(0)


class Stream:
    """One response that is being sent. `done` is called when the socket has taken the last byte."""

    __slots__ = (
        "_at", "_connection", "_done", "_ended", "_held", "_loading", "_memory", "_next", "_parts", "_reach",
        "_runtime", "_server", "_socket", "_transport", "paused",
    )  # fmt: skip

    def __init__(
        self,
        server: Server,
        connection: Connection,
        transport: asyncio.Transport,
        answer: Streamed,
        done: Callable[[], object],
    ) -> None:
        self._server = server
        self._connection = connection
        self._transport = transport
        plain = transport.get_extra_info("sslcontext") is None
        self._socket: socket.socket | None = transport.get_extra_info("socket") if plain else None
        self._parts = answer.parts
        self._runtime = server.runtime
        self._memory = server.response_memory
        self._done = done
        self._next = 0  # the first part that is not sent
        self._at = 0  # and how much of it is
        self._reach = BUFFER_BYTES  # how much the socket may take at once
        self._held = False
        self._loading = False
        self._ended = False
        server.write_coalescing.flush(transport)
        self.paused = transport.get_write_buffer_size() > 0
        """The socket is full."""

    def pump(self) -> None:
        """Send until the socket is full, memory or the disk have to be waited for, or all is sent."""
        connection, pace = self._connection, self._server.pace
        while not (connection.closed or self.paused or self._loading or self._ended):
            if self._next == len(self._parts):
                self._ended = True
                self._done()
                return
            if pace.left_bytes <= 0:
                pace.wait(self)
                break
            is_broker = connection.session.broker_id is not None
            waits = CHUNK_BYTES_MAX if is_broker else self._memory.chunk_bytes(connection)
            if not waits:
                break
            try:
                chunk = self._gather(self._reach if self._socket is not None else waits)
            except (Refused, StorageFault) as failure:
                connection.give_up(f"a response cannot be finished: {failure}")
                return
            if chunk:
                pace.loaded(self._send(chunk))
            else:
                self._load(waits)
        if not self._held:
            self._hold()

    def _gather(self, most: int) -> list[Buffer]:
        """The next parts, with at most this many bytes from files. Fewer, or none, if the disk has to be waited for."""
        buffer = self._memory.buffer
        chunk: list[Buffer] = []
        filled, at = 0, self._at
        for part in self._parts[self._next : self._next + BUFFERS_MAX]:
            if isinstance(part, (bytes, bytearray, memoryview)):
                chunk.append(memoryview(part)[at:] if at else part)
                at = 0
                continue
            rest = len(part) - at
            wanted = min(rest, most - filled)
            piece = buffer[filled : filled + wanted]
            count = part.read_into(at, piece)
            if count is None:
                break
            if not count:
                raise StorageFault("the file has become shorter")
            chunk.append(piece if count == wanted else piece[:count])
            filled += count
            if count < rest or filled == most:
                break
            at = 0
        return chunk

    def _send(self, chunk: list[Buffer]) -> int:
        """Write a chunk to the socket, and leave a few of the remaining bytes with the transport. The size of the
        chunk."""
        connection = self._connection
        size = sum(map(len, chunk))
        taken = self._write(chunk)
        if taken < size and not (connection.closed or self.paused):
            self._reach = min(max(2 * taken, REACH_BYTES_MIN), BUFFER_BYTES)
            rest = _cut(chunk, taken, self._left_with_transport(size, taken))
            taken += len(rest)
            self._transport.write(rest)
        self._server.write_coalescing.sent_bytes += taken
        self._advance(taken)
        return size

    def _left_with_transport(self, size: int, taken: int) -> int:
        """How many of the remaining bytes are left with the transport: all, if the chunk ends the response and there is
        enough memory."""
        ends = size == sum(map(len, self._parts[self._next :])) - self._at
        return size - taken if ends and self._memory.has_spare(size - taken) else CHUNK_BYTES_MIN

    def _write(self, chunk: list[Buffer]) -> int:
        """How many bytes were taken, or copied."""
        connection, transport = self._connection, self._transport
        if transport.is_closing():
            connection.closed = True  # connection_lost follows
        elif self._socket is None:
            transport.write(b"".join(chunk))
            return sum(map(len, chunk))
        elif not transport.get_write_buffer_size():
            try:
                return os.writev(self._socket.fileno(), chunk)
            except BlockingIOError:
                pass
            except OSError as failure:
                connection.give_up(failure.strerror or str(failure))
        return 0

    def _advance(self, count: int) -> None:
        at = self._at + count
        parts = self._parts
        while self._next < len(parts) and at >= len(parts[self._next]):
            at -= len(parts[self._next])
            self._next += 1
        self._at = at

    # Reading from disk.

    def _load(self, most: int) -> None:
        part = self._parts[self._next]
        assert not isinstance(part, (bytes, bytearray, memoryview))
        wanted = min(len(part) - self._at, most)
        self._loading = True
        if self._connection.session.broker_id is None:
            self._memory.hold(self._connection, wanted)
        self._runtime.spawn(self._read(part, wanted), name="cold fetch")

    async def _read(self, part: ResponseSource, wanted: int) -> None:
        connection = self._connection
        try:
            data = await self._runtime.offload(part.read, self._at, wanted)
            if len(data) != wanted:
                raise StorageFault("the file has become shorter")
        except (Refused, StorageFault) as failure:
            connection.give_up(f"a response cannot be finished: {failure}")
            return
        finally:
            self._loading = False
            self._memory.release(connection)
        if not connection.closed:
            self._send([data])
            self.pump()

    # Continuing.

    def resumed(self) -> None:
        """The socket has taken all written bytes."""
        self.paused = False
        self.pump()

    def _hold(self) -> None:
        """The rest is sent later: keep its files until then."""
        self._held = True
        for part in self._parts[self._next :]:
            if not isinstance(part, (bytes, bytearray, memoryview)):
                part.hold()


def _cut(chunk: list[Buffer], start: int, size: int) -> bytes:
    """A copy of `size` bytes from `start` on."""
    found = bytearray()
    for part in chunk:
        if start < len(part):
            found += memoryview(part)[start : start + size - len(found)]
            if len(found) == size:
                break
        start = max(start - len(part), 0)
    return bytes(found)
