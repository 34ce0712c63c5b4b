"""Replies to requests: at once, later (`Pending`) or never; and write coalescing, which says when they leave.

A later reply holds the connection's following requests back, unless it overlaps with them.

Waking a process that sleeps costs more than sending to one that is awake, and the clients of many connections are often
one process. So of all replies of one loop iteration the first is written at once, and the others together at its end,
when everything that has arrived was served.

Delayed replies are sent by `answer_due`, never inside a request of another connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ottla.net.streaming import Streamed
from ottla.runtime import Buffer, Runtime

if TYPE_CHECKING:
    from ottla.net.connection import Connection

log = logging.getLogger("ottla.net")

LATE_BYTES_MAX = 16 * 1024
"""Larger replies are not kept until the end of the loop iteration."""

Reply = bytes | list[Buffer] | Streamed | None


class Pending:
    """A reply that comes later. Unless `overlaps`, the connection's next request waits for it."""

    __slots__ = ("abandoned", "connection", "early_bytes", "ended", "expedite", "overlaps", "reply", "resolved")

    def __init__(self, *, overlaps: bool = False) -> None:
        self.overlaps = overlaps
        self.resolved = False
        self.reply: Reply = None
        self.early_bytes = 0
        """A ready reply that waits for an earlier one."""
        self.abandoned: Callable[[], object] | None = None
        """Called when the peer goes away before the reply."""
        self.expedite: Callable[[], object] | None = None
        """Called when the next request has arrived behind it."""
        self.ended: Callable[[], object] | None = None
        """Called when the reply is there."""
        self.connection: Connection | None = None
        """The connection that has it in its queue."""

    def resolve(self, reply: Reply) -> None:
        assert not self.resolved, "a request is answered once"
        self.resolved = True
        self.reply = reply
        if self.ended is not None:
            self.ended()
        if self.connection is not None:
            self.connection.send_due(self)


class DueReply(Protocol):
    def complete(self) -> None:
        """Resolve its `Pending`."""


class Delayed(Protocol):
    """Replies that wait for something, of all connections."""

    @property
    def due(self) -> Sequence[object]:
        """What is to be answered now."""

    def take_due(self, next_iteration: bool = False) -> Sequence[DueReply]: ...


def answer_due(delayed: Delayed, next_iteration: bool = False) -> None:
    """Send the replies that have become due: after the requests of one read, after a deadline, or at the beginning of
    an iteration of the event loop."""
    due = delayed.take_due(next_iteration)
    while due:
        for operation in due:
            try:
                operation.complete()
            except Exception as failure:  # others wait for their answers
                log.error("%s cannot be completed", type(operation).__name__, exc_info=failure)
        due = delayed.take_due()


Serve = Callable[["Connection", memoryview], "Reply | Pending"]


class WriteCoalescing:
    """The writes of one broker to its clients."""

    __slots__ = ("_late", "_runtime", "sent_bytes")

    def __init__(self, runtime: Runtime) -> None:
        self.sent_bytes = 0
        self._runtime = runtime
        self._late: dict[asyncio.Transport, list[Buffer]] | None = None  # None: nothing was written in this iteration

    def send(self, transport: asyncio.Transport, replies: list[Buffer]) -> None:
        """Write now, or at the end of the loop iteration; always after earlier writes."""
        if not replies:
            return
        self.sent_bytes += len(replies[0]) if len(replies) == 1 else sum(map(len, replies))
        late = self._late
        if late is None:
            self._late = {}
            self._runtime.call_soon(self._end_iteration)
        elif (kept := late.pop(transport, None)) is not None:
            replies = kept + replies
        elif len(replies) == 1 and len(replies[0]) <= LATE_BYTES_MAX:
            late[transport] = [replies[0]]
            return
        if len(replies) == 1:
            transport.write(replies[0])
        else:
            transport.writelines(replies)

    def flush(self, transport: asyncio.Transport) -> None:
        """The connection is about to be closed, or to stream."""
        kept = self._late.pop(transport, None) if self._late else None
        if kept is not None and not transport.is_closing():
            transport.writelines(kept)

    def _end_iteration(self) -> None:
        late, self._late = self._late or {}, None
        for transport, kept in late.items():
            if not transport.is_closing():
                transport.write(kept[0])
