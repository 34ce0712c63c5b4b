"""Connections to the other brokers.

Replica fetchers open connections of their own. All other requests use shared connections, in three lanes to each
broker: requests of a connection are served in order, so a request that waits for replication must not be before one
that lets replication proceed, and neither may a forwarded request of a client. A lane is connected on first use and
reconnected with growing backoff; it is closed when its broker leaves the cluster or registers again.

The address is the one that the broker has registered for the inter-broker listener. Both sides authenticate, so an
address that another process has taken does no harm.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum
from ipaddress import ip_address
from typing import Final, Protocol, TypeVar

from ottla.access.session import Session, encode_principal
from ottla.cluster import changes as c
from ottla.cluster.cluster import Cluster
from ottla.cluster.image import NO_BROKER, Image
from ottla.config.broker_config import LiveConfig
from ottla.config.listeners import REPLICATION, Listener
from ottla.errors import ErrorCode, Refused
from ottla.net.authentication import BrokerIdentity
from ottla.net.outbound import Loss, OutboundConnection, PeerLost, Unreached, open_to_broker
from ottla.net.server import Server
from ottla.replication.ports import CALL_TIMEOUT_S
from ottla.runtime import Buffer, Runtime
from ottla.wire.apis import ENVELOPE
from ottla.wire.frame import parse_response_header, request_header
from ottla.wire.schema.envelope import EnvelopeRequest, EnvelopeResponse
from ottla.wire.tree import Message

log = logging.getLogger("ottla.broker.peers")

R = TypeVar("R", bound=Message)

NOT_CONTROLLER: Final = "This is not the correct controller for this cluster."
BACKOFF_S_MIN: Final = 0.05
BACKOFF_S_MAX: Final = 1.0


def packed_address(address: str) -> bytes:
    """The bytes of an IP address, as an Envelope has them; none if the address is not known."""
    try:
        return ip_address(address).packed
    except ValueError:
        return b""


class Lane(Enum):
    peers = "peers"
    """Requests between brokers that may wait for replication."""
    controller = "controller"
    """Requests to the controller that replication needs; they never wait."""
    clients = "clients"
    """Forwarded requests of clients."""


class _Line:
    """A shared connection to one broker: open, opening, or waiting for its backoff."""

    __slots__ = ("broker_epoch", "connection", "failures", "opening", "retry_at")

    def __init__(self, broker_epoch: int) -> None:
        self.broker_epoch = broker_epoch
        self.connection: OutboundConnection | None = None
        self.opening: asyncio.Task[OutboundConnection | PeerLost] | None = None
        self.failures = 0
        self.retry_at = 0.0

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        if self.opening is not None:
            self.opening.cancel()


class AskHere(Protocol):
    async def __call__(self, message: Message, answer: type[R]) -> R: ...


class BrokerPeers:
    def __init__(self, runtime: Runtime, config: LiveConfig, cluster: Cluster) -> None:
        self.ask_here: AskHere
        """Serves a request by this broker's own handler."""
        self._runtime = runtime
        self._config = config
        self._cluster = cluster
        self._lines: dict[tuple[int, Lane], _Line] = {}
        self._closed = False

    async def listen(self, server: Server) -> list[Listener]:
        """Accept other brokers. The listener that was bound for them, if they do not share one with clients."""
        own = self._config.current.inter_broker_endpoint
        if own in self._config.current.endpoints:
            return []
        bound = await server.listen(own.name, own.host, own.port, inter_broker=True)
        return [own.bound(bound.port)]

    def close(self) -> None:
        self._closed = True
        while self._lines:
            self._lines.popitem()[1].close()

    @property
    def identity(self) -> BrokerIdentity:
        """For inter-broker authentication."""
        return BrokerIdentity(self._config.current.broker_id, self._cluster.secret)

    async def open(self, broker_id: int) -> OutboundConnection:
        """A new connection to a broker; the caller closes it. Raises Unreached."""
        host, port = self._address(broker_id)
        connection = await open_to_broker(self._runtime, host, port, self.identity, broker_id)
        connection.on_lost = self._lost
        return connection

    def _lost(self, lost: PeerLost) -> None:
        """If the peer has closed it, that broker may be gone."""
        if lost.kind is Loss.CLOSED:
            self._cluster.expedite()

    async def call(
        self,
        broker_id: int,
        message: Message,
        answer: type[R],
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        lane: Lane = Lane.peers,
    ) -> R:
        """Send a request to a broker. Raises PeerLost; Unreached: the request was not sent."""
        connection = await self._connected(broker_id, lane, timeout_s)
        return await connection.call(message, answer, timeout_s)

    async def ask_controller(
        self, message: Message, answer: type[R], *, timeout_s: float = CALL_TIMEOUT_S, lane: Lane = Lane.controller
    ) -> R:
        """Send a request to the controller, which may be this broker. Raises Refused(not_controller) if there is
        none."""
        controller_id = self.controller_id
        if controller_id == self._config.current.broker_id:
            return await self.ask_here(message, answer)
        return await self.call(controller_id, message, answer, timeout_s=timeout_s, lane=lane)

    async def forward(
        self,
        api_key: int,
        version: int,
        body: Buffer,
        session: Session,
        client_id: str | None,
        *,
        timeout_s: float,
    ) -> memoryview:
        """Forward a client's request to the controller, another broker, with the client's principal (Envelope,
        KIP-590). The body of its response. Raises Refused(not_controller) if it is not the controller."""
        controller_id = self.controller_id
        if controller_id == self._config.current.broker_id:
            raise Refused(ErrorCode.not_controller, "This broker is about to be, or was just now, the controller.")
        connection = await self._connected(controller_id, Lane.clients, timeout_s)
        if not connection.supports(api_key, version):
            raise Refused(ErrorCode.unsupported_version, "The controller does not speak this version yet.")
        if not connection.supports(ENVELOPE, 0):  # an earlier release, without principals
            return await connection.call_raw(api_key, version, [body], timeout_s)
        request = EnvelopeRequest(
            request_data=request_header(api_key, version, 0, client_id) + body,
            request_principal=encode_principal(session.principal),
            client_host_address=packed_address(session.address),
        )
        answer = await connection.call(request, EnvelopeResponse, timeout_s)
        if answer.error_code:
            code = ErrorCode(answer.error_code)
            not_controller = code == ErrorCode.not_controller
            raise Refused(code, NOT_CONTROLLER if not_controller else f"The controller answered {code.name.upper()}.")
        response = memoryview(answer.response_data or b"")
        _, pos = parse_response_header(response, api_key, version)
        return response[pos:]

    @property
    def controller_id(self) -> int:
        """The controller in this broker's image. Raises Refused(not_controller) if there is none."""
        controller_id = self._cluster.image.controller_id
        if controller_id == NO_BROKER:
            raise Refused(ErrorCode.not_controller, "The cluster has no controller at the moment.")
        return controller_id

    def _address(self, broker_id: int) -> tuple[str, int]:
        live = self._cluster.image.brokers.get(broker_id)
        if live is None:
            raise Unreached(f"broker {broker_id} is not there")
        name = self._config.current.inter_broker_endpoint.name
        endpoint = live.endpoint(name) or live.endpoint(REPLICATION)
        if endpoint is None:
            raise Unreached(
                f"broker {broker_id} has no listener {name}: "
                "inter.broker.listener.name must name the same listener on all brokers"
            )
        return endpoint.host, endpoint.port

    # Shared connections.

    async def _connected(self, broker_id: int, lane: Lane, timeout_s: float) -> OutboundConnection:
        """The lane's connection, opened if necessary; concurrent callers wait for the same attempt."""
        if self._closed:
            raise Unreached("this broker is stopping")
        line = self._line(broker_id, lane)
        connection = line.connection
        if connection is not None and not connection.closed and not self._stale(connection):
            return connection
        if line.opening is None:
            line.opening = self._runtime.spawn(self._open_line(broker_id, line), name=f"connect to broker {broker_id}")
        opening = line.opening
        await asyncio.wait([opening], timeout=timeout_s)
        if not opening.done():
            raise Unreached(f"no connection to broker {broker_id} within {timeout_s:g} s")
        if opening.cancelled():
            raise Unreached(f"broker {broker_id} has gone")
        opened = opening.result()
        if isinstance(opened, PeerLost):
            raise Unreached(str(opened))
        return opened

    def _line(self, broker_id: int, lane: Lane) -> _Line:
        line = self._lines.get((broker_id, lane))
        if line is None:
            live = self._cluster.image.brokers.get(broker_id)
            if live is None:
                raise Unreached(f"broker {broker_id} is not there")
            line = self._lines[broker_id, lane] = _Line(live.epoch)
        return line

    def _stale(self, connection: OutboundConnection) -> bool:
        """Idle for so long that the peer may be about to close it (`connections.max.idle.ms`)."""
        idle_ms_max = self._config.current.connections_max_idle_ms
        unused_ms = (self._runtime.now() - connection.used_at) * 1000
        return connection.idle and 0 <= idle_ms_max <= unused_ms * 2

    async def _open_line(self, broker_id: int, line: _Line) -> OutboundConnection | PeerLost:
        """A failure is returned, not raised: perhaps no caller waits any more."""
        try:
            if line.connection is not None:
                line.connection.close()
                line.connection = None
            await asyncio.sleep(max(0.0, line.retry_at - self._runtime.now()))
            line.connection = await self.open(broker_id)
        except PeerLost as lost:
            backoff = min(BACKOFF_S_MIN * 2**line.failures, BACKOFF_S_MAX)
            line.failures = min(line.failures + 1, 16)
            line.retry_at = self._runtime.now() + backoff
            return lost
        else:
            line.failures = 0
            return line.connection
        finally:
            line.opening = None

    def image_changed(self, old: Image, new: Image, change: c.Change) -> None:
        """Close connections to brokers that have left or registered again."""
        if isinstance(change, c.BrokerGone | c.BrokerRegistered | c.ControllerChanged):
            for key, line in list(self._lines.items()):
                live = new.brokers.get(key[0])
                if live is None or live.epoch != line.broker_epoch:
                    del self._lines[key]
                    line.close()
