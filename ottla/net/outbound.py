"""Outbound connections of brokers and clients: requests out, responses in.

To open one: connect (`Runtime.connect`, which is where TLS belongs), authenticate if the caller asks for it, then agree
on versions (ApiVersions, KIP-511). After that many requests may be in flight; responses come in the order of the
requests, each with the correlation id of its own. After a wrong order, a malformed response or a timeout the connection
is closed, and all waiting requests fail with PeerLost: they may or may not have been done.

Buffers, for replication: the start of a response is read into a small buffer. Once its length is known it gets a buffer
of exactly that size, into which the socket reads the rest. The caller owns that buffer.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Final, NamedTuple, Self, TypeVar, cast

from ottla import __version__
from ottla.errors import BadFrame, ErrorCode, Fault
from ottla.net.authentication import MECHANISM, NONCE_BYTES, AuthenticationFailed, BrokerIdentity, Connecting
from ottla.runtime import Buffer, Handle, Runtime
from ottla.wire import messages
from ottla.wire.apis import API_VERSIONS, APIS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from ottla.wire.frame import parse_response_header, request_header
from ottla.wire.schema.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.schema.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.wire.schema.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.wire.tree import Message

R = TypeVar("R", bound=Message)

START_BYTES: Final = 16 * 1024
UNAUTHENTICATED_BYTES_MAX: Final = 64 * 1024
"""The largest response of an unauthenticated peer."""
ANSWER_BYTES_MAX: Final = 1 << 30
JOINED_BYTES_MAX: Final = 64 * 1024
"""The parts of a larger request are not joined: copying takes longer than another write."""
IN_FLIGHT_MAX: Final = 10_000
OPEN_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 1.0
"""How long a peer that does not read is waited for."""

_LENGTH: Final = struct.Struct(">i")
_OTHER_PROTOCOLS: Final = {b"\x15\x03": "TLS", b"HTTP": "HTTP"}
"""Responses of other protocols: an alert of TLS 1.x, or an HTTP status line."""
_LINGER_0: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with timeout 0: unsent bytes are dropped."""


class Loss(Enum):
    """Why a connection could not be opened, or was lost."""

    UNREACHED = "it could not be opened"
    TIMED_OUT = "no response in time"
    CLOSED = "the peer closed it"
    MALFORMED = "the peer sent a malformed response"
    DROPPED = "it was closed here"


class PeerLost(Fault):
    """The peer cannot be reached, or no longer: the request may or may not have been done."""

    def __init__(self, message: str, kind: Loss = Loss.UNREACHED, why: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.why = why
        """The reason without the name of the peer."""


class Unreached(PeerLost):
    """The request was not sent, so it was not done."""


class Versions:
    """The versions of the peer, from its response to ApiVersions."""

    def __init__(self, answer: ApiVersionsResponse) -> None:
        self._ranges = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        self.features = {feature.name: feature.max_version_level for feature in answer.finalized_features}
        """The finalized features of its cluster."""

    def common(self, api_key: int, ours: tuple[int, int], version_max: int | None = None) -> int | None:
        """The highest common version, if there is one."""
        low, high = self._ranges.get(api_key, (0, -1))
        version = min(ours[1], high) if version_max is None else min(ours[1], high, version_max)
        return version if version >= max(ours[0], low) else None


Reply = Callable[[memoryview | PeerLost], object]
"""Called once with the body of the response, or with PeerLost. It may raise BadFrame for a malformed body."""


class _InFlight(NamedTuple):
    correlation_id: int
    api_key: int
    version: int
    deadline: float
    timeout_s: float
    reply: Reply


class OutboundConnection(asyncio.BufferedProtocol):
    """Opened by `open` or `open_to_broker`. Many tasks may use it at once."""

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        client_id: str,
        *,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
        resets: bool = False,
    ) -> None:
        """`resets`: unsent bytes are dropped when the connection is lost. The kernel would go on sending them, for
        minutes if the network is down; by then the request was retried on another connection."""
        self.name = name
        """The peer and its address, for messages."""
        self.lost: PeerLost | None = None
        self.on_lost: Callable[[PeerLost], object] | None = None
        """Called once when the connection is lost, after all waiting requests have failed."""
        self.used_at = runtime.now()
        self.versions = Versions(ApiVersionsResponse())
        """Empty until versions are agreed on."""
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the transport is closed and all written bytes are sent."""
        self._runtime = runtime
        self._client_id = client_id
        self._transport: asyncio.Transport | None = None
        self._correlation_id = 0
        self._in_flight: deque[_InFlight] = deque()
        self._timer: Handle | None = None
        self._timer_at = 0.0
        self._answer_bytes_max = answer_bytes_max
        self._resets = resets
        self._start = memoryview(bytearray(START_BYTES))
        self._start_filled = 0
        self._answer: memoryview | None = None
        self._filled = 0

    @classmethod
    async def open(
        cls,
        runtime: Runtime,
        host: str,
        port: int,
        *,
        name: str,
        client_id: str,
        timeout_s: float,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
        resets: bool = False,
        authenticate: Callable[[Self], Awaitable[None]] | None = None,
    ) -> Self:
        """Connect, authenticate, agree on versions; or PeerLost (also OSError from connecting)."""
        connection = cls(runtime, name, client_id, answer_bytes_max=answer_bytes_max, resets=resets)
        try:
            async with asyncio.timeout(timeout_s):
                await runtime.connect(lambda: connection, host, port)
                if authenticate is not None:
                    connection._answer_bytes_max = UNAUTHENTICATED_BYTES_MAX
                    await authenticate(connection)
                    connection._answer_bytes_max = answer_bytes_max
                await connection._agree(timeout_s)
        except BaseException as failure:
            kind = Loss.UNREACHED if connection._transport is None else Loss.TIMED_OUT
            connection.close()
            if connection._transport is not None:
                await asyncio.wait([connection.gone], timeout=CLOSE_TIMEOUT_S)
            if isinstance(failure, TimeoutError):
                raise Unreached(f"{name} does not answer within {timeout_s:g} s", kind) from None
            raise
        return connection

    @property
    def closed(self) -> bool:
        return self.lost is not None

    @property
    def idle(self) -> bool:
        """Nothing is in flight."""
        return not self._in_flight

    def supports(self, api_key: int, version: int) -> bool:
        return self.versions.common(api_key, (version, version)) is not None

    async def call(self, message: Message, answer: type[R], timeout_s: float) -> R:
        """Send a request in the highest common version, and wait for the response. Unreached if there is none."""
        api = APIS[message.API_KEY]
        version = self.versions.common(message.API_KEY, (api.min, api.max))
        if version is None:
            raise Unreached(f"{self.name} supports no version of {api.name} that we support")
        return await self._exchange(message, answer, version, timeout_s)

    def call_raw(
        self, api_key: int, version: int, buffers: Sequence[Buffer], timeout_s: float
    ) -> asyncio.Future[memoryview]:
        """Send a request whose body is `buffers`. The body of the response is a view of a buffer that the caller
        owns."""
        if len(self._in_flight) >= IN_FLIGHT_MAX:
            raise Unreached(f"{self.name} owes {IN_FLIGHT_MAX} answers already")
        body: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()

        def reply(received: memoryview | PeerLost) -> None:
            if body.done():  # the caller was cancelled
                return
            if isinstance(received, PeerLost):
                body.set_exception(PeerLost(str(received), received.kind, received.why))
            else:
                body.set_result(received)

        self.send(api_key, version, buffers, reply, timeout_s)
        return body

    def send(
        self, api_key: int, version: int, buffers: Sequence[Buffer], reply: Reply | None, timeout_s: float
    ) -> None:
        """Send a request whose body is `buffers`; without `reply` there is no response."""
        if self.lost is not None:
            raise Unreached(str(self.lost), self.lost.kind, self.lost.why)
        assert self._transport is not None
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = request_header(api_key, version, correlation_id, self._client_id)
        size = len(header) + sum(map(len, buffers))
        self.used_at = now = self._runtime.now()
        if reply is not None:
            deadline = now + timeout_s
            self._in_flight.append(_InFlight(correlation_id, api_key, version, deadline, timeout_s, reply))
            if self._timer is None or deadline < self._timer_at:
                self._watch(deadline)
        parts = (_LENGTH.pack(size), header, *buffers)
        if size < JOINED_BYTES_MAX:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)

    def close(self) -> None:
        """Close at once; waiting requests fail."""
        self._lose(Loss.DROPPED, "the connection was closed")

    def close_gently(self) -> None:
        """Close after all written bytes are sent; waiting requests fail."""
        self._lose(Loss.DROPPED, "the connection was closed", gently=True)

    async def wait_closed(self) -> None:
        """After `close_gently`, until all written bytes are sent, but not for long."""
        if not (await asyncio.wait([self.gone], timeout=CLOSE_TIMEOUT_S))[0]:
            self.abort()

    def abort(self) -> None:
        """Close the transport without sending the remaining bytes."""
        if self._transport is None:
            return
        own = self._transport.get_extra_info("socket") if self._resets else None
        if own is not None:
            with suppress(OSError):  # it is closed already
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)
        self._transport.abort()

    # Authentication and versions.

    async def sasl_handshake(self, mechanism: str, timeout_s: float) -> ErrorCode | int:
        request = SaslHandshakeRequest(mechanism=mechanism)
        version = APIS[SASL_HANDSHAKE].max
        return (await self._exchange(request, SaslHandshakeResponse, version, timeout_s)).error_code

    async def sasl_authenticate(self, data: bytes, timeout_s: float) -> bytes:
        """One message of the mechanism, and the response."""
        request = SaslAuthenticateRequest(auth_bytes=data)
        answer = await self._exchange(request, SaslAuthenticateResponse, APIS[SASL_AUTHENTICATE].max, timeout_s)
        if answer.error_code:
            raise AuthenticationFailed(f"it does not let us in: {answer.error_message or answer.error_code}")
        return answer.auth_bytes

    async def _agree(self, timeout_s: float) -> None:
        """Ask in our highest version; a peer without it answers UNSUPPORTED_VERSION in version 0 (KIP-511)."""
        request = ApiVersionsRequest(client_software_name="ottla", client_software_version=__version__)
        version = APIS[API_VERSIONS].max
        body = await self.call_raw(API_VERSIONS, version, [messages.encode(request, version)], timeout_s)
        if len(body) >= 2 and int.from_bytes(body[:2], "big", signed=True) == ErrorCode.unsupported_version:
            version = 0
            body = await self.call_raw(API_VERSIONS, version, [messages.encode(request, version)], timeout_s)
        answer = self._decoded(ApiVersionsResponse, version, body)
        if answer.error_code:
            why = f"it does not say which versions it supports (error {answer.error_code})"
            raise PeerLost(f"{self.name}: {why}", Loss.MALFORMED, why)
        self.versions = Versions(answer)

    async def _exchange(self, message: Message, answer: type[R], version: int, timeout_s: float) -> R:
        body = await self.call_raw(message.API_KEY, version, [messages.encode(message, version)], timeout_s)
        return self._decoded(answer, version, body)

    def _decoded(self, answer: type[R], version: int, body: memoryview) -> R:
        try:
            return messages.decode(answer, version, body, whole=False)
        except BadFrame as bad:
            why = f"no valid {answer.__name__}: {bad}"
            self._lose(Loss.MALFORMED, why)
            raise PeerLost(f"{self.name}: {why}", Loss.MALFORMED, why) from None

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from it
        if self.lost is not None:  # closed while it was opening
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._answer is not None:
            return self._answer[self._filled :]
        return self._start[self._start_filled :]

    def buffer_updated(self, count: int) -> None:
        if self.lost is not None:
            return
        if self._answer is not None:
            self._filled += count
            if self._filled == len(self._answer):
                whole, self._answer = self._answer, None
                self._hand_over(whole)
            return
        # Cut the responses that begin in the small buffer.
        start, end, pos = self._start, self._start_filled + count, 0
        while end - pos >= 4 and self.lost is None:
            (size,) = _LENGTH.unpack_from(start, pos)
            if not 4 <= size <= self._answer_bytes_max:
                first = bytes(start[pos : pos + 4])
                other = next((name for begin, name in _OTHER_PROTOCOLS.items() if first.startswith(begin)), None)
                self._lose(Loss.MALFORMED, f"it speaks {other}" if other else f"an answer of {size} bytes")
                return
            pos += 4
            answer = memoryview(bytearray(size))
            arrived = min(size, end - pos)
            answer[:arrived] = start[pos : pos + arrived]
            pos += arrived
            if arrived < size:
                self._answer = answer
                self._filled = arrived
            else:
                self._hand_over(answer)
        self._start_filled = end - pos  # less than the length of the next response
        if pos and self._start_filled:
            start[: self._start_filled] = bytes(start[pos:end])

    def eof_received(self) -> bool:
        return False  # close

    def connection_lost(self, failure: Exception | None) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
        self._lose(Loss.CLOSED, f"the connection broke: {failure}" if failure else "it closed the connection")

    # Responses.

    def _hand_over(self, answer: memoryview) -> None:
        if not self._in_flight:
            self._lose(Loss.MALFORMED, "an answer to nothing")
            return
        asked = self._in_flight[0]
        try:
            correlation_id, pos = parse_response_header(answer, asked.api_key, asked.version)
            if correlation_id != asked.correlation_id:
                raise BadFrame(f"correlation id {correlation_id} instead of {asked.correlation_id}")
        except BadFrame as bad:
            self._lose(Loss.MALFORMED, str(bad))
            return
        self._in_flight.popleft()
        self.used_at = self._runtime.now()
        try:
            asked.reply(answer[pos:])
        except BadFrame as bad:
            self._in_flight.appendleft(asked)  # it fails like all others
            self._lose(Loss.MALFORMED, str(bad))

    # Timeouts and loss.

    def _watch(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._runtime.call_at(deadline, self._check_timeouts)

    def _check_timeouts(self) -> None:
        """The request that the timer was set for may have been answered already."""
        self._timer = None
        if not self._in_flight:
            return
        first = min(self._in_flight, key=lambda asked: asked.deadline)
        if first.deadline <= self._runtime.now():
            self._lose(Loss.TIMED_OUT, f"no answer within {first.timeout_s:g} s")
        else:
            self._watch(first.deadline)

    def _lose(self, kind: Loss, why: str, *, gently: bool = False) -> None:
        """Fail all waiting requests; nothing is sent or received any more."""
        if self.lost is not None:
            return
        self.lost = lost = PeerLost(f"{self.name}: {why}", kind, why)
        self._answer = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if gently and self._transport is not None:
            self._transport.close()
        else:
            self.abort()
        waiting, self._in_flight = self._in_flight, deque()
        for asked in waiting:
            asked.reply(lost)
        if self.on_lost is not None:
            self.on_lost(lost)


async def open_to_broker(
    runtime: Runtime, host: str, port: int, identity: BrokerIdentity, peer_id: int, *, timeout_s: float = OPEN_TIMEOUT_S
) -> OutboundConnection:
    """An authenticated connection of a broker to broker `peer_id` (`authentication`); or Unreached."""

    async def prove(connection: OutboundConnection) -> None:
        error = await connection.sasl_handshake(MECHANISM, timeout_s)
        if error:
            raise AuthenticationFailed(
                f"this is no listener for brokers (error {error}): "
                "inter.broker.listener.name must name the same listener on all brokers"
            )
        connecting = Connecting(identity, peer_id, runtime.entropy(NONCE_BYTES))
        challenge = await connection.sasl_authenticate(connecting.hello, timeout_s)
        await connection.sasl_authenticate(connecting.answer(challenge), timeout_s)

    name = f"broker {peer_id} at {host}:{port}"
    client_id = f"broker-{identity.broker_id}"
    try:
        return await OutboundConnection.open(
            runtime, host, port, name=name, client_id=client_id, timeout_s=timeout_s, resets=True, authenticate=prove
        )
    except OSError as failure:
        raise Unreached(f"{name} cannot be reached: {failure.strerror or failure}") from None
    except AuthenticationFailed as failure:
        raise Unreached(f"{name}: {failure}") from None
    except PeerLost as lost:
        raise Unreached(str(lost), lost.kind, lost.why) from None
