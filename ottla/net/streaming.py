"""A large answer on its way out: parts of it are loaded as the socket takes them.

A chunk is loaded into one buffer that all connections share, and given to the socket (`_write`); an answer of one
partition, about 1 MB, is one chunk. What the socket does not take is forgotten, and loaded again later; only a little
of it is left with the transport, which says when that was taken. So a client that does not read costs a few thousand
bytes. While next to nothing waits in memory, the end of an answer is left with the transport as a whole. Zero-copy
(sendfile) would take the place of loading and giving. A transport without a socket of its own, in the simulator or with
TLS, is given copies.

The connection serves nothing else meanwhile. An answer that cannot be finished (its log was truncated, the device does
not give the bytes) ends the connection: what is out cannot be taken back.
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

TURN_BYTES: Final = 1024 * 1024
"""How much is loaded of large answers before everything else has its turn, be it taken or not."""
BUFFERS_MAX: Final = 1000
"""How many the system takes at once."""
REACH_BYTES_MIN: Final = 64 * 1024
"""How much is loaded at least for a socket that has taken little before."""


class Streamed:
    """An answer of which some parts are read when they are sent."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Buffer | ResponseSource]) -> None:
        self.parts = parts

    def load(self) -> bytes:
        """All of it, waiting for the device."""
        return b"".join(
            part if isinstance(part, (bytes, bytearray, memoryview)) else part.read(0, len(part)) for part in self.parts
        )

    def hold(self) -> None:
        """It is not due yet."""
        for part in self.parts:
            if not isinstance(part, (bytes, bytearray, memoryview)):
                part.hold()


class Pace:
    """Large answers of all connections, one after the other: so much of them in one turn of the loop."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiting: deque[Stream] = deque()
        self._ends = False
        self.left_bytes = TURN_BYTES

    def loaded(self, size: int) -> None:
        self.left_bytes -= size
        if not self._ends:
            self._ends = True
            self._runtime.call_soon(self._next_turn)

    def wait(self, stream: Stream) -> None:
        """Until the next turn of the loop, or a later one."""
        self._waiting.append(stream)

    def _next_turn(self) -> None:
        self._ends = False
        self.left_bytes = TURN_BYTES
        for _ in range(len(self._waiting)):
            if self.left_bytes <= 0:
                break
            self._waiting.popleft().pump()
        if self._waiting:
            self.loaded(0)


class Stream:
    """One answer that is being sent. `done` is called when the socket has taken the last of it."""

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
        """The socket takes no more for now."""

    def pump(self) -> None:
        """Send until the socket takes no more, memory or the device are waited for, or nothing is left."""
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
                connection.give_up(f"an answer cannot be finished: {failure}")
                return
            if chunk:
                pace.loaded(self._send(chunk))
            else:
                self._load(waits)
        if not self._held:
            self._hold()

    def _gather(self, most: int) -> list[Buffer]:
        """What comes next: at most so much of files, and what is small beside it. Less, or nothing, where the device
        has to be waited for."""
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
        """Give it to the socket. What that does not take is sent later, but for a little that tells us when. How much
        there was to give."""
        connection = self._connection
        size = sum(map(len, chunk))
        taken = self._write(chunk)
        if taken < size and not (connection.closed or self.paused):
            self._reach = min(max(2 * taken, REACH_BYTES_MIN), BUFFER_BYTES)
            rest = _cut(chunk, taken, self._left_with_transport(size, taken))
            taken += len(rest)
            self._transport.write(rest)
        self._server.sent_bytes += taken
        self._advance(taken)
        return size

    def _left_with_transport(self, size: int, taken: int) -> int:
        """How much of a chunk of this size is not forgotten though the socket did not take it: all of it when nothing
        comes behind it and there is memory enough."""
        ends = size == sum(map(len, self._parts[self._next :])) - self._at
        return size - taken if ends and self._memory.has_spare(size - taken) else CHUNK_BYTES_MIN

    def _write(self, chunk: list[Buffer]) -> int:
        """How much of it was taken, or copied."""
        connection, transport = self._connection, self._transport
        if transport.is_closing():
            connection.closed = True  # and it will be told so
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

    # What has to come from the device.

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
            connection.give_up(f"an answer cannot be finished: {failure}")
            return
        finally:
            self._loading = False
            self._memory.release(connection)
        if not connection.closed:
            self._send([data])
            self.pump()

    # Going on.

    def resumed(self) -> None:
        """The socket has taken all that it was given."""
        self.paused = False
        self.pump()

    def _hold(self) -> None:
        """The rest is sent later: until then nobody may take it away."""
        self._held = True
        for part in self._parts[self._next :]:
            if not isinstance(part, (bytes, bytearray, memoryview)):
                part.hold()


def _cut(chunk: list[Buffer], start: int, size: int) -> bytes:
    """A copy of so many bytes, from there on."""
    found = bytearray()
    for part in chunk:
        if start < len(part):
            found += memoryview(part)[start : start + size - len(found)]
            if len(found) == size:
                break
        start = max(start - len(part), 0)
    return bytes(found)
