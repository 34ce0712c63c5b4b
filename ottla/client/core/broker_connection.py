"""A client's connection to one broker: messages out, answers in, and errors as users know them.

`net.outbound` carries them; each request goes out in the highest version that both sides know.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from ottla.client.errors import (
    BUSY,
    SILENT,
    ClientError,
    ConnectionLost,
    HungUp,
    NoAnswer,
    NotUnderstood,
    TimedOut,
    Unreachable,
)
from ottla.errors import ErrorCode
from ottla.net.outbound import Loss, OutboundConnection, PeerLost
from ottla.wire.messages import decode, encode, message_class
from ottla.wire.tree import Message

if TYPE_CHECKING:
    from ottla.runtime import Runtime

R = TypeVar("R", bound=Message)

CONNECT_TIMEOUT_S: Final = 10.0
RESPONSE_BYTES_MAX: Final = 256 * 2**20

Reply = Callable[[Message | ClientError], object]
"""Called once, with the answer or with what came instead."""


class BrokerConnection:
    """Made by `open`. Requests may be sent from many tasks at once."""

    def __init__(self, outbound: OutboundConnection) -> None:
        self.address = outbound.name
        self.features = outbound.versions.features
        """Finalized features of the cluster, by name (KIP-584)."""
        self.when_lost: Callable[[], object] = lambda: None
        self._outbound = outbound
        outbound.on_lost = lambda _: self.when_lost()

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str = "ottla",
        runtime: Runtime | None = None,
        timeout_s: float | None = None,
    ) -> BrokerConnection:
        """Connect and agree on versions, or ClientError. Without a runtime: the real one, on the running loop."""
        if runtime is None:
            from ottla.runtime.real import RealRuntime

            runtime = RealRuntime()
        limit_s = CONNECT_TIMEOUT_S if timeout_s is None else timeout_s
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            return cls(
                await OutboundConnection.open(
                    runtime,
                    host,
                    port,
                    name=address,
                    client_id=client_id,
                    timeout_s=limit_s,
                    answer_bytes_max=RESPONSE_BYTES_MAX,
                )
            )
        except OSError as error:
            raise Unreachable(f"cannot connect to {address}: {_reason(error)}") from None
        except PeerLost as lost:
            if lost.kind is Loss.UNREACHED:
                raise Unreachable(f"no answer from {address} within {limit_s:g} s") from None
            raise _error(lost, address, agreed=False) from None

    @property
    def lost(self) -> ClientError | None:
        """Why nothing goes any more."""
        lost = self._outbound.lost
        return None if lost is None else _error(lost, self.address)

    def send(
        self, request: Message, reply: Reply | None, *, timeout_s: float = 30.0, version_max: int | None = None
    ) -> None:
        """In the highest common version. Without `reply` no answer is awaited. NotUnderstood: there is no version."""
        lost = self.lost
        if lost is not None:
            if reply is not None:
                reply(lost)
            return
        api_key = request.API_KEY
        version = self._outbound.versions.common(api_key, request.VERSIONS, version_max)
        if version is None:
            name = type(request).__name__.removesuffix("Request")
            unknown = f"{self.address}: the broker supports no version of {name} that we support"
            raise NotUnderstood(unknown, code=ErrorCode.unsupported_version)
        spoken = version

        def received(body: memoryview | PeerLost) -> None:
            assert reply is not None
            if isinstance(body, PeerLost):
                reply(_error(body, self.address))
            else:
                reply(decode(message_class(api_key, "response"), spoken, body))

        self._outbound.send(
            api_key, version, (encode(request, version),), None if reply is None else received, timeout_s
        )

    async def call(self, request: Message, answer: type[R], *, timeout_s: float = 30.0) -> R:
        """Send a request and wait for its answer."""
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.send(request, lambda received: resolve(future, received), timeout_s=timeout_s)
        received = await future
        assert isinstance(received, answer)
        return received

    def drop(self) -> None:
        """Close it: written requests are still sent, requests without a response fail."""
        self._outbound.close_gently()

    async def close(self) -> None:
        self.drop()
        await self._outbound.wait_closed()


def resolve(future: asyncio.Future[Message], received: Message | ClientError) -> None:
    """Unless the caller has given up."""
    if future.done():
        return
    if isinstance(received, ClientError):
        future.set_exception(received)
    else:
        future.set_result(received)


def _error(lost: PeerLost, address: str, *, agreed: bool = True) -> ClientError:
    """`agreed`: the broker had answered ApiVersions."""
    match lost.kind:
        case Loss.TIMED_OUT if not agreed:  # it closed the connection without a response
            return NoAnswer(f"{address} {SILENT}")
        case Loss.TIMED_OUT:
            return TimedOut(f"no answer from {address} in time", hint=BUSY)
        case Loss.CLOSED if not agreed:
            return HungUp(f"{address} closed the connection before it said anything")
        case Loss.MALFORMED:
            return NotUnderstood(f"{address} does not speak Kafka's protocol: {lost.why}")
        case Loss.DROPPED:
            return ConnectionLost(f"the connection to {address} was closed")
    return ConnectionLost(f"{address} closed the connection")


def _reason(error: OSError) -> str:
    """In a person's words. For a name with several addresses asyncio has all failures in one text."""
    if isinstance(error, socket.gaierror):
        return error.strerror or "the name is not known"
    codes = [error.errno] if error.errno else [int(code) for code in re.findall(r"\[Errno (\d+)\]", str(error))]
    return ", ".join(dict.fromkeys(os.strerror(code) for code in codes)) or str(error)
