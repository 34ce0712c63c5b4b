"""Interfaces (protocols) that services need, beside the runtime, the cluster and the configuration."""

from __future__ import annotations

from typing import Protocol, TypeVar

from ottla.net.outbound import OutboundConnection
from ottla.wire.tree import Message

R = TypeVar("R", bound=Message)

CALL_TIMEOUT_S = 30.0


class Peers(Protocol):
    """The other brokers."""

    async def open(self, broker_id: int) -> OutboundConnection:
        """A new connection to a broker; the caller closes it. Raises Unreached."""

    async def call(self, broker_id: int, message: Message, answer: type[R], *, timeout_s: float = CALL_TIMEOUT_S) -> R:
        """Ask a broker. Raises PeerLost; if it is Unreached, nothing was asked."""

    async def ask_controller(self, message: Message, answer: type[R], *, timeout_s: float = CALL_TIMEOUT_S) -> R:
        """Send to the controller, which may be this broker. Raises Refused(not_controller) if there is none."""
