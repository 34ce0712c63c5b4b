"""Connection limits: `max.connections`, `max.connections.per.ip`, and unauthenticated inter-broker connections.

On a listener for brokers only, a connection that has not authenticated yet may send small frames only, has to
authenticate in time, and there are few of them. The limits on clients do not apply to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ottla.config.broker_config import BrokerConfig
from ottla.runtime import Handle, Runtime

if TYPE_CHECKING:
    from ottla.net.server import Connection

log = logging.getLogger("ottla.net")

UNAUTHENTICATED_FRAME_BYTES_MAX = 16 * 1024
UNAUTHENTICATED_SECONDS_MAX = 10.0
UNAUTHENTICATED_MAX = 200


class NetworkLimits(NamedTuple):
    frame_bytes_max: int = 104_857_600
    connections_max: int = 2**31 - 1
    connections_per_address_max: int = 2**31 - 1
    idle_ms_max: int = 600_000
    held_bytes_max: int = -1
    """Buffers of all large requests that have not arrived whole; -1: no limit."""
    unread_bytes_max: int = -1
    """Loaded and unread bytes of large responses, of all clients; -1: no limit."""
    pending_max: int = 1000
    """Requests of one connection without a response."""
    pending_bytes_max: int = 104_857_600
    """Unread responses, or requests read ahead, of one connection."""

    @classmethod
    def of(cls, config: BrokerConfig) -> NetworkLimits:
        return cls(
            frame_bytes_max=config.socket_request_max_bytes,
            connections_max=config.max_connections,
            connections_per_address_max=config.max_connections_per_ip,
            idle_ms_max=config.connections_max_idle_ms,
            held_bytes_max=config.queued_max_request_bytes,
            unread_bytes_max=config.ottla_queued_max_response_bytes,
            pending_max=config.connection_inflight_requests_max,
            pending_bytes_max=config.connection_inflight_bytes_max,
        )


class ConnectionLimits:
    def __init__(self, runtime: Runtime, limits: Callable[[], NetworkLimits]) -> None:
        self._runtime = runtime
        self._limits = limits
        self.connections: dict[Connection, None] = {}  # in the order in which they came
        self.inter_broker_connections: dict[Connection, None] = {}
        """On listeners for brokers only."""
        self._per_address: dict[str, int] = {}
        self._unauthenticated: dict[Connection, Handle] = {}

    def admit(self, connection: Connection) -> bool:
        if connection.inter_broker:
            return self._admit_unauthenticated(connection)
        if len(self.connections) >= self._limits().connections_max:
            log.warning("refusing a connection: there are %d already (max.connections)", len(self.connections))
            return False
        from_there = self._per_address.get(connection.address, 0)
        if from_there >= self._limits().connections_per_address_max:
            log.warning(
                "refusing a connection from %s: it has %d already (max.connections.per.ip)",
                connection.address, from_there,
            )  # fmt: skip
            return False
        self._per_address[connection.address] = from_there + 1
        self.connections[connection] = None
        return True

    def _admit_unauthenticated(self, connection: Connection) -> bool:
        """Not counted among the clients: clients cannot keep brokers from replicating."""
        if len(self._unauthenticated) >= UNAUTHENTICATED_MAX:
            log.warning("refusing a connection from %s: too many are unauthenticated", connection.address)
            return False
        deadline = self._runtime.now() + UNAUTHENTICATED_SECONDS_MAX
        self._unauthenticated[connection] = self._runtime.call_at(
            deadline, connection.close, "it has not authenticated in time"
        )
        self.inter_broker_connections[connection] = None
        return True

    def authenticated(self, connection: Connection) -> None:
        timer = self._unauthenticated.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def close_idle(self, since: float) -> None:
        """Close connections that have sent and read nothing since then."""
        for connection in [
            each for each in (*self.connections, *self.inter_broker_connections) if each.idle_since(since)
        ]:
            log.debug("closing the connection from %s: idle", connection.address)
            connection.abort()

    def closed(self, connection: Connection) -> None:
        self.authenticated(connection)
        self.inter_broker_connections.pop(connection, None)
        if connection not in self.connections:
            return
        del self.connections[connection]
        left = self._per_address[connection.address] - 1
        if left:
            self._per_address[connection.address] = left
        else:
            del self._per_address[connection.address]
