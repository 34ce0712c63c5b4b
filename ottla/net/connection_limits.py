"""Who comes in: how many clients, how many from one address, and strangers.

Strangers. A listener may be for brokers only. Until a connection there has proved which broker it is, it may send small
frames only, has little time, and is one of few; from then on no limit on clients applies to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.net.limits import Limits
from ottla.runtime import Handle, Runtime

if TYPE_CHECKING:
    from ottla.net.server import Connection

log = logging.getLogger("ottla.net")

UNAUTHENTICATED_FRAME_BYTES_MAX = 16 * 1024
UNAUTHENTICATED_SECONDS_MAX = 10.0
UNAUTHENTICATED_MAX = 200


class ConnectionLimits:
    def __init__(self, runtime: Runtime, limits: Callable[[], Limits]) -> None:
        self._runtime = runtime
        self._limits = limits
        self.connections: dict[Connection, None] = {}  # in the order in which they came
        self.inter_broker_connections: dict[Connection, None] = {}
        """Connections on listeners for brokers only."""
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
        """Brokers are not counted among the clients: whatever clients do, replication goes on."""
        if len(self._unauthenticated) >= UNAUTHENTICATED_MAX:
            log.warning("refusing a connection from %s: too many have not said who they are", connection.address)
            return False
        deadline = self._runtime.now() + UNAUTHENTICATED_SECONDS_MAX
        self._unauthenticated[connection] = self._runtime.call_at(
            deadline, connection.close, "it has not said who it is"
        )
        self.inter_broker_connections[connection] = None
        return True

    def authenticated(self, connection: Connection) -> None:
        timer = self._unauthenticated.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def close_idle(self, since: float) -> None:
        """Hang up on those who have sent nothing since, and taken nothing."""
        for connection in [
            each for each in (*self.connections, *self.inter_broker_connections) if each.idle_since(since)
        ]:
            log.debug("closing the connection from %s: idle", connection.address)
            connection.abort()

    def gone(self, connection: Connection) -> None:
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
