"""One accepted connection.

A frame is a length of four bytes and that many bytes. Each is given to `serve`, which answers at once, later, or
never (`acks=0`). Replies leave in the order of the requests: a connection keeps a queue of what it still owes. A later
answer holds the following requests back, as Kafka does, unless it says they may overlap (Produce does: its effect is
done when `serve` returns, only the acknowledgement is outstanding).

Buffers. While nothing is held back, all connections read into one scratch buffer: frames in it are served before the
next read, and only the part of a frame at its end is copied away. A large frame then gets a buffer of its own, which
grows with what has arrived, never with what the length prefix promises, and the socket reads straight into it.

Answers. As long as the socket has not taken all that was sent, nothing further is served. A large answer is a list of
parts that are loaded as they are sent (`streaming`), and what is loaded and unread has a limit (`response_memory`).
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from typing import TYPE_CHECKING, cast

from ottla.access.session import Session
from ottla.errors import BadFrame
from ottla.net.connection_limits import UNAUTHENTICATED_FRAME_BYTES_MAX
from ottla.net.replies import Pending, Reply, answer_due
from ottla.net.streaming import Stream, Streamed
from ottla.runtime import Buffer, Handle
from ottla.wire.frame import refused_length

if TYPE_CHECKING:
    from ottla.net.server import Server

log = logging.getLogger("ottla.net")

_LENGTH = struct.Struct(">i")
SCRATCH_BYTES = 256 * 1024
HELD_BYTES_MIN = 4 * 1024
GROWTH = 8
"""A buffer for a frame is at most this many times larger than what has arrived of the frame."""
BACKLOG_BYTES_MAX = 64 * 1024
"""How much of the following requests is read ahead while one is being answered: enough to notice that the peer left."""
FRAMES_PER_ITERATION = 128
ITERATION_BYTES = 1024 * 1024
"""How much of one connection is served before other connections are."""
COLLECTED_BYTES_MAX = 64 * 1024
"""How much is answered before it is sent; and what a connection may leave unread of it without being counted."""


class Connection(asyncio.BufferedProtocol):
    """One accepted connection. All methods run on the event loop; the transport calls them."""

    __slots__ = (
        "_early_bytes", "_filled", "_held", "_need", "_owed", "_read_bytes", "_resuming", "_server", "_starting",
        "_stopped_reading", "_stream", "_takes_room", "_transport", "_unread", "_writable", "active_at", "address",
        "authentication", "closed", "frame_bytes_max", "inter_broker", "session",
    )  # fmt: skip

    def __init__(self, server: Server, listener_name: str, *, inter_broker: bool = False) -> None:
        self._server = server
        self.session = Session(listener_name)
        self.inter_broker = inter_broker
        """The connection came through an inter-broker listener."""
        self.authentication: object = None
        """The state of its SASL authentication; used by the handlers of SaslHandshake and SaslAuthenticate only."""
        self.frame_bytes_max = UNAUTHENTICATED_FRAME_BYTES_MAX if inter_broker else server.limits.frame_bytes_max
        self.address = "?"
        self.closed = False
        self.active_at = server.runtime.now()
        self._transport: asyncio.Transport
        self._owed: deque[Pending] = deque()
        self._held: bytearray | None = None
        self._filled = 0
        self._need = 0
        self._read_bytes = 0
        self._early_bytes = 0
        self._takes_room = False
        self._writable = True
        self._stream: Stream | None = None
        self._starting = False
        self._unread = 0
        self._stopped_reading = False
        self._resuming: Handle | None = None

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from it
        peer = transport.get_extra_info("peername")
        self.address = self.session.address = str(peer[0]) if peer else "?"
        self._transport.set_write_buffer_limits(high=0)  # say so as soon as the socket does not take all
        if not self._server.connection_limits.admit(self):
            self.closed = True
            self._transport.abort()
        log.debug("connection from %s on %s", self.address, self.session.listener_name)

    def get_buffer(self, sizehint: int) -> memoryview:
        held = self._held
        if held is None:
            return self._server.scratch
        if self._filled == len(held):
            held = self._enlarge(held, len(held) * GROWTH)
        return memoryview(held)[self._filled :]

    def buffer_updated(self, count: int) -> None:
        self.active_at = self._server.runtime.now()
        self._server.received_bytes += count
        held = self._held
        if held is None:
            data = self._server.scratch[:count]
        else:
            self._filled += count
            if self._filled < self._need:
                if self._filled == len(held):
                    self._grow(held)
                return
            data = memoryview(held)[: self._filled]
        self._consume(data)
        self._read_bytes += count
        if self._read_bytes >= ITERATION_BYTES:
            self._read_bytes = 0
            self._rest()

    def eof_received(self) -> bool:
        return False  # close

    def connection_lost(self, failure: Exception | None) -> None:
        self.closed = True
        why = failure or "it was closed"
        log.debug("connection from %s on %s ended: %s", self.address, self.session.listener_name, why)
        self._let_go()
        self._stream = None
        self._server.response_memory.release(self)
        if self._resuming is not None:
            self._resuming.cancel()
        owed, self._owed = self._owed, deque()
        for pending in owed:
            if not pending.resolved and pending.abandoned is not None:
                pending.abandoned()
        self._server.connection_limits.closed(self)

    def pause_writing(self) -> None:
        self._writable = False
        self._unread = self._transport.get_write_buffer_size()
        if self._stream is not None:
            self._stream.paused = True
        if self.session.broker_id is None and (self._stream is not None or self._unread > COLLECTED_BYTES_MAX):
            self._server.response_memory.hold(self, self._unread)

    def resume_writing(self) -> None:
        self.active_at = self._server.runtime.now()
        self._server.response_memory.release(self)
        if self._stream is not None:
            self._stream.resumed()
        else:
            self._writable = True
            self._proceed()

    def authenticated_as_broker(self, broker_id: int) -> None:
        """The peer has authenticated as this broker."""
        self.session.authenticated_as_broker(broker_id)
        self.frame_bytes_max = self._server.limits.frame_bytes_max
        self._server.connection_limits.authenticated(self)

    # Requests in.

    @property
    def _blocked(self) -> bool:
        if not self._writable or self._resuming is not None:
            return True
        owed = self._owed
        return bool(owed) and (
            not owed[-1].overlaps
            or len(owed) >= self._server.limits.pending_max
            or self._early_bytes >= self._server.limits.pending_bytes_max
        )

    def _consume(self, data: memoryview) -> None:
        """Serve the whole frames in `data`, keep the rest."""
        pos = 0
        end = len(data)
        need = 4
        replies: list[Buffer] = []
        collected = 0  # bytes of them: a client that does not read responses gets no more requests served
        server = self._server
        send = server.write_coalescing.send
        frames_left = FRAMES_PER_ITERATION
        while end - pos >= 4:
            if (self._owed or not self._writable or self._resuming is not None) and self._blocked:
                break
            (size,) = _LENGTH.unpack_from(data, pos)
            start = pos + 4
            if not 8 <= size <= self.frame_bytes_max:
                send(self._transport, replies)
                return self.close(refused_length(size, self.frame_bytes_max))
            if end - start < size:
                need = size + 4
                break
            if not frames_left:
                self._resuming = server.runtime.call_soon(self._next_iteration)
                break
            frames_left -= 1
            pos = start + size
            try:
                reply = server.serve(self, data[start:pos])
            except BadFrame as failure:
                send(self._transport, replies)
                return self.close(str(failure))
            if type(reply) is bytes and not self._owed:
                replies.append(reply)
                collected += len(reply)
            elif reply is not None:
                collected += self._take(reply, replies)
            if collected >= COLLECTED_BYTES_MAX:
                send(self._transport, replies)
                replies = []
                collected = 0
        if server.delayed is not None and server.delayed.due:
            answer_due(server.delayed)  # what these requests have brought about for others
        if replies:  # one call for all of a read: clients that pipeline cost fewer system calls
            send(self._transport, replies)
        if pos == end:
            if self._held is not None or self._takes_room:
                self._let_go()
        else:
            self._keep(data[pos:], need)
        return None

    def _take(self, reply: Reply | Pending, replies: list[Buffer]) -> int:
        """Queue a response that is not ready, or not the next one; add a ready one to those that are sent after this
        read, and return its size."""
        if isinstance(reply, Pending) and reply.resolved:
            reply = reply.reply
        if replies and isinstance(reply, Pending | Streamed):  # what was answered before goes before it
            self._server.write_coalescing.send(self._transport, replies)
            replies.clear()
        if isinstance(reply, Pending):
            self._owed.append(reply)
            reply.connection = self
        elif self._owed:
            late = Pending(overlaps=True)
            late.resolve(reply)
            self._owed.append(late)
            self._came_early(late)
        elif isinstance(reply, Streamed):
            self._begin(reply)
        elif reply is not None:
            answer = [reply] if isinstance(reply, bytes) else reply
            replies += answer
            return sum(map(len, answer))
        return 0

    def _came_early(self, pending: Pending) -> None:
        reply = pending.reply
        if isinstance(reply, Streamed):
            reply.hold()
        elif reply is not None:
            pending.early_bytes = len(reply) if isinstance(reply, bytes) else sum(map(len, reply))
            self._early_bytes += pending.early_bytes

    def _keep(self, rest: memoryview, need: int) -> None:
        """Keep the start of a frame, or requests that must wait."""
        filled = len(rest)
        size = max(HELD_BYTES_MIN, filled * GROWTH)
        if not self._blocked:
            size = self._affordable(min(need, size), filled)
        else:
            need = 0
            if filled <= SCRATCH_BYTES:
                self._leave_room()
            if self._owed and (expedite := self._owed[-1].expedite) is not None:
                self._server.runtime.call_soon(expedite)
            if filled >= min(BACKLOG_BYTES_MAX, self._server.limits.pending_bytes_max):
                self._stop_reading()
                size = filled
        held = bytearray(size)
        held[:filled] = rest
        self._held = held
        self._filled = filled
        self._need = need

    def _grow(self, held: bytearray) -> None:
        size = self._affordable(min(self._need, len(held) * GROWTH), len(held))
        if size > len(held):
            self._enlarge(held, size)

    def _enlarge(self, held: bytearray, size: int) -> bytearray:
        larger = bytearray(size)
        larger[: self._filled] = memoryview(held)[: self._filled]
        self._held = larger
        return larger

    def _affordable(self, size: int, least: int) -> int:
        """The possible size of the buffer: as small as possible while the memory pool has no room for a large one."""
        # What brokers send is never behind what clients do not finish sending.
        if size <= SCRATCH_BYTES or self.session.broker_id is not None:
            self._leave_room()
            return size
        self._takes_room = True
        if self._server.request_memory.take(self, size):
            return size
        self._stop_reading()
        return least

    def _let_go(self) -> None:
        self._held = None
        self._filled = self._need = 0
        self._leave_room()

    def _leave_room(self) -> None:
        if self._takes_room:
            self._takes_room = False
            self._server.request_memory.release(self)

    def stalled(self, since: float) -> bool:
        return self._filled < self._need and self.active_at < since

    def granted(self, size: int) -> None:
        """The memory pool has room for more of the large frame that this connection is receiving."""
        self.active_at = self._server.runtime.now()
        if self._held is not None:
            self._enlarge(self._held, size)
        if self._stopped_reading and not self.closed:
            self._stopped_reading = False
            self._transport.resume_reading()

    def _rest(self) -> None:
        """The event loop reads from one connection as long as there is data: stop, so that others are served."""
        if not self._stopped_reading and not self.closed:
            self._transport.pause_reading()
            self._server.runtime.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._stopped_reading and not self.closed:
            self._transport.resume_reading()

    def _stop_reading(self) -> None:
        if not self._stopped_reading:
            self._stopped_reading = True
            self._transport.pause_reading()

    def _next_iteration(self) -> None:
        self._resuming = None
        self._proceed()

    def _proceed(self) -> None:
        """Continue with requests that were held back."""
        if self.closed or self._blocked:
            return
        held = self._held
        if held is not None and self._filled and self._filled >= self._need:
            self._held = None
            self._consume(memoryview(held)[: self._filled])
        if (
            self._stopped_reading
            and not self.closed
            and not self._blocked
            and not self._server.request_memory.waits(self)
        ):
            self._stopped_reading = False
            self._transport.resume_reading()

    # Replies out.

    def send_due(self, resolved: Pending | None = None) -> None:
        """A response is ready, or a streamed one is complete: send all responses that are next in order, then continue
        with the requests after them."""
        owed = self._owed
        if resolved is not None:
            if self.closed or not owed:
                return
            if self._stream is not None or not owed[0].resolved:
                return self._came_early(resolved)
        while owed and owed[0].resolved and self._stream is None:
            due = owed.popleft()
            self._early_bytes -= due.early_bytes
            reply = due.reply
            if isinstance(reply, Streamed):
                self._begin(reply)
            elif reply is not None:
                self._server.write_coalescing.send(self._transport, [reply] if isinstance(reply, bytes) else reply)
        if self._held is None or self._filled < self._need:
            self._proceed()
        elif self._resuming is None:  # not here: the caller is sending a response
            self._resuming = self._server.runtime.call_soon(self._next_iteration)
        return None

    def _begin(self, answer: Streamed) -> None:
        """Begin to send a response. While a part of it is left, nothing else is served."""
        self._writable = False
        self._stream = Stream(self._server, self, self._transport, answer, self._sent_all)
        self._starting = True
        self._stream.pump()
        self._starting = False

    def _sent_all(self) -> None:
        self._stream = None
        self._writable = True
        if not self._starting:
            self.send_due()

    def may_load(self) -> None:
        if self._stream is not None:
            self._stream.pump()

    def unread_bytes(self) -> int:
        return 0 if self.closed else self._transport.get_write_buffer_size()

    @property
    def held_bytes(self) -> int:
        """Memory kept for requests that are not whole yet, or not yet due."""
        return len(self._held) if self._held is not None else 0

    def idle_since(self, then: float) -> bool:
        """Whether it has sent nothing and read nothing since, and is not waiting for this broker."""
        if self.active_at >= then or (self._owed and self._writable):
            return False
        if self._stream is not None and not self._stream.paused:
            return False
        before, self._unread = self._unread, self.unread_bytes()
        if self._unread < before and not self._writable:
            self.active_at = self._server.runtime.now()
        return self.active_at < then

    def close(self, why: str) -> None:
        """Close: the peer has sent something that has no response."""
        if not self.closed:
            log.info("closing the connection from %s: %s", self.address, why)
            self.hang_up()

    def hang_up(self) -> None:
        """Close after the responses that are ready have been sent."""
        self.closed = True
        self._server.write_coalescing.flush(self._transport)
        self._transport.close()

    def give_up(self, why: str) -> None:
        """As `close`, without waiting for unsent bytes."""
        if not self.closed:
            log.info("closing the connection from %s: %s", self.address, why)
            self.abort()

    def abort(self) -> None:
        self.closed = True
        self._transport.abort()
