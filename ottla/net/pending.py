"""Answers to requests: at once, later, or never.

A later answer holds the connection's following requests back, unless it overlaps with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ottla.net.streaming import Streamed
from ottla.runtime import Buffer

if TYPE_CHECKING:
    from ottla.net.server import Connection

Reply = bytes | list[Buffer] | Streamed | None


class Pending:
    """An answer that comes later. Unless `overlaps`, the connection's next request waits for it."""

    __slots__ = ("_connection", "abandoned", "early_bytes", "ended", "expedite", "overlaps", "reply", "resolved")

    def __init__(self, *, overlaps: bool = False) -> None:
        self.overlaps = overlaps
        self.resolved = False
        self.reply: Reply = None
        self.early_bytes = 0
        """Of an answer that is there and not due."""
        self.abandoned: Callable[[], object] | None = None
        """Called when the peer goes away before the answer."""
        self.expedite: Callable[[], object] | None = None
        """Called when the next request has arrived behind it."""
        self.ended: Callable[[], object] | None = None
        """Called when the answer is there."""
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
    """Answers that wait for something, of all connections."""

    @property
    def due(self) -> Sequence[object]:
        """What is to be answered now."""

    def complete_due(self) -> None: ...


Serve = Callable[["Connection", memoryview], "Reply | Pending"]
