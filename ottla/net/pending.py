"""Pending: a response that comes later. It holds back the following requests of its connection, unless it overlaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ottla.net.streaming import Streamed
from ottla.runtime import Buffer

if TYPE_CHECKING:
    from ottla.net.server import Connection

Reply = bytes | list[Buffer] | Streamed | None


class Pending:
    """A response that comes later. Unless `overlaps`, the next request of the connection waits for it."""

    __slots__ = ("_connection", "abandoned", "early_bytes", "ended", "expedite", "overlaps", "reply", "resolved")

    def __init__(self, *, overlaps: bool = False) -> None:
        self.overlaps = overlaps
        self.resolved = False
        self.reply: Reply = None
        self.early_bytes = 0
        """Of a response that is ready before an earlier one."""
        self.abandoned: Callable[[], object] | None = None
        """Called when the client disconnects before the response."""
        self.expedite: Callable[[], object] | None = None
        """Called when the next request of the connection has arrived."""
        self.ended: Callable[[], object] | None = None
        """Called when the response is ready."""
        self._connection: Connection | None = None

    def resolve(self, reply: Reply) -> None:
        assert not self.resolved, "a request is answered once"
        self.resolved = True
        self.reply = reply
        if self.ended is not None:
            self.ended()
        if self._connection is not None:
            self._connection.settle(self)

    def queue_on(self, connection: Connection) -> None:
        self._connection = connection


class Delayed(Protocol):
    """Delayed operations of all connections (`replication.waits`)."""

    @property
    def due(self) -> Sequence[object]:
        """Operations that are to be completed now."""

    def complete_due(self) -> None: ...


Serve = Callable[["Connection", memoryview], "Reply | Pending"]
