"""The network server: listeners, accepted connections (`connection`), and what they share."""

from __future__ import annotations

from ottla.net.connection import SCRATCH_BYTES, Connection
from ottla.net.connection_limits import ConnectionLimits, NetworkLimits
from ottla.net.replies import Delayed, Pending, Reply, Serve, WriteCoalescing
from ottla.net.request_memory import RequestMemory
from ottla.net.response_memory import ResponseMemory
from ottla.net.streaming import Pace
from ottla.runtime import Handle, ListeningSocket, Runtime

__all__ = ["Connection", "Pending", "Reply", "Serve", "Server"]


class Server:
    """All accepted connections of one broker, on all its listeners."""

    def __init__(self, runtime: Runtime, serve: Serve, limits: NetworkLimits, delayed: Delayed | None = None) -> None:
        self.runtime = runtime
        self.serve = serve
        self.delayed = delayed
        self.limits = limits
        self.write_coalescing = WriteCoalescing(runtime)
        self.request_memory = RequestMemory(runtime, lambda: self.limits.held_bytes_max)
        self.pace = Pace(runtime)
        self.response_memory = ResponseMemory(runtime, lambda: self.limits.unread_bytes_max)
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.received_bytes = 0
        self.connection_limits = ConnectionLimits(runtime, lambda: self.limits)
        self.connections = self.connection_limits.connections
        self.inter_broker_connections = self.connection_limits.inter_broker_connections
        self._listeners: list[ListeningSocket] = []
        self._sweep: Handle | None = None

    async def listen(self, name: str, host: str, port: int, *, inter_broker: bool = False) -> ListeningSocket:
        """Bind an address, so that its port is known; connections are accepted after `start`."""
        listener = await self.runtime.listen(lambda: Connection(self, name, inter_broker=inter_broker), host, port)
        self._listeners.append(listener)
        return listener

    async def start(self) -> None:
        """Accept on all listeners."""
        for listener in self._listeners:
            await listener.start()
        self._sweep_later()

    async def close(self) -> None:
        """Accept no more connections, and close all after what was answered already."""
        for listener in self._listeners:
            await listener.close()
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in [*self.connections, *self.inter_broker_connections]:
            connection.hang_up()

    # Idle connections (`connections.max.idle.ms`).

    def _sweep_later(self) -> None:
        if self.limits.idle_ms_max < 0:
            return
        period = min(max(self.limits.idle_ms_max / 4000, 0.05), 60.0)
        self._sweep = self.runtime.call_at(self.runtime.now() + period, self._close_idle)

    def _close_idle(self) -> None:
        self.connection_limits.close_idle(self.runtime.now() - self.limits.idle_ms_max / 1000)
        self._sweep_later()
