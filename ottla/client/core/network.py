"""Connections of one client: opened for the first request, one per broker and kind of request, dropped when they break.

A broker answers the requests of one connection in order, and some take their time: a fetch waits for records, a join
for the other members, a write for its replicas. So each kind has a connection of its own, and a question about
metadata never waits behind one of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from ottla.client.core.broker_connection import BrokerConnection, Reply
from ottla.client.core.requests import Node, Send
from ottla.client.errors import ClientError, ConnectionLost, NotUnderstood
from ottla.wire.schema.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.wire.schema.fetch import FetchRequest
from ottla.wire.schema.heartbeat import HeartbeatRequest
from ottla.wire.schema.join_group import JoinGroupRequest
from ottla.wire.schema.leave_group import LeaveGroupRequest
from ottla.wire.schema.produce import ProduceRequest
from ottla.wire.schema.sync_group import SyncGroupRequest
from ottla.wire.tree import Message

if TYPE_CHECKING:
    from ottla.runtime import Runtime


class Lane(IntEnum):
    OTHER = 0
    RECORDS = 1
    GROUP = 2


_LANES: Final[dict[type[Message], Lane]] = {
    ProduceRequest: Lane.RECORDS,
    FetchRequest: Lane.RECORDS,
    JoinGroupRequest: Lane.GROUP,
    SyncGroupRequest: Lane.GROUP,
    HeartbeatRequest: Lane.GROUP,
    LeaveGroupRequest: Lane.GROUP,
    ConsumerGroupHeartbeatRequest: Lane.GROUP,
}


class _Link:
    """A connection, or the attempt to make one and what waits for it."""

    def __init__(self, network: BrokerConnections, key: tuple[str, int, Lane]) -> None:
        self._network = network
        self._key = key
        self._waiting: deque[tuple[Send, Reply | None]] = deque()
        self.connection: BrokerConnection | None = None
        host, port, lane = key
        self.opening = network.runtime.spawn(self._open(), name=f"{lane.name.lower()} to {host}:{port}")

    def send(self, send: Send, reply: Reply | None) -> None:
        if self.connection is None:
            self._waiting.append((send, reply))
            return
        try:
            self.connection.send(send.request, reply, timeout_s=send.timeout_s, version_max=send.version_max)
        except NotUnderstood as error:
            if reply is not None:
                reply(error)

    @property
    def owes(self) -> bool:
        """A request without a response (acks=0) waits to be sent: its sender counts it as done."""
        return any(reply is None for _, reply in self._waiting)

    async def _open(self) -> None:
        network, (host, port, _) = self._network, self._key
        try:
            connection = await BrokerConnection.open(
                host, port, client_id=network.client_id, runtime=network.runtime, timeout_s=network.setup_timeout_s
            )
        except ClientError as error:
            self._give_up(error)
            return
        except asyncio.CancelledError:
            self._give_up(ConnectionLost("the client was stopped"))
            raise
        self.connection = connection
        network.features.update(connection.features)
        connection.when_lost = self._forget
        while self._waiting:
            self.send(*self._waiting.popleft())
        if connection.lost is not None:
            self._forget()

    def _give_up(self, error: ClientError) -> None:
        self._forget()
        while self._waiting:
            _, reply = self._waiting.popleft()
            if reply is not None:
                reply(error)

    def drop(self) -> None:
        if self.connection is not None:
            self.connection.drop()
        waiting, self._waiting = self._waiting, deque()
        for _, reply in waiting:
            if reply is not None:
                reply(ConnectionLost("it was given up"))

    def _forget(self) -> None:
        if self._network.links.get(self._key) is self:
            del self._network.links[self._key]


def _key(to: Node, kind: type[Message]) -> tuple[str, int, Lane]:
    return to.host, to.port, _LANES.get(kind, Lane.OTHER)


class BrokerConnections:
    def __init__(self, runtime: Runtime, *, client_id: str, setup_timeout_s: float) -> None:
        self.runtime = runtime
        self.client_id = client_id
        self.setup_timeout_s = setup_timeout_s
        self.links: dict[tuple[str, int, Lane], _Link] = {}
        self.features: dict[str, int] = {}
        """Finalized features, as reported by the broker that was connected last."""
        self.closed = False

    def send(self, send: Send, to: Node, reply: Reply | None) -> None:
        """`reply` is called once, perhaps before this returns; never if none is awaited."""
        if self.closed:
            if reply is not None:
                reply(ConnectionLost("the client was stopped"))
            return
        key = _key(to, type(send.request))
        link = self.links.get(key)
        if link is None:
            link = self.links[key] = _Link(self, key)
        link.send(send, reply)

    def drop(self, to: Node, kind: type[Message]) -> None:
        """Give up requests of this kind, and all others on the same connection."""
        link = self.links.get(_key(to, kind))
        if link is not None:
            link.drop()

    async def close(self) -> None:
        self.closed = True
        for link in list(self.links.values()):
            if link.owes:
                await asyncio.wait([link.opening], timeout=self.setup_timeout_s)
            link.opening.cancel()
            await asyncio.gather(link.opening, return_exceptions=True)
            if link.connection is not None:
                await link.connection.close()
        self.links.clear()
