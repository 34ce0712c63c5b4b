"""The calling side of the network: a connection from one broker to another.

Opening one means: connect, prove to each other who we are (`authentication`), agree on versions (ApiVersions). From
then on several requests may be under way; answers come in the order of the requests, and each repeats the correlation
id of its own. A peer that mixes them up, sends what is no answer, or does not answer in time is not believed any
further: the connection is closed, and everybody who waits on it gets PeerLost. What was asked so may or may not have
been done.

Buffers. Replication passes through here. The start of an answer is read into a small buffer; once its length is known
it has a buffer of its own, of exactly that size, into which the socket reads the rest. Whoever asked owns that buffer.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar, cast

from ottla.errors import BadFrame, ErrorCode, Fault
from ottla.net.authentication import MECHANISM, NONCE_BYTES, AuthenticationFailed, Connecting, Identity
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
STRANGER_BYTES_MAX: Final = 64 * 1024
"""The largest answer from a peer that has not proved itself yet."""
ANSWER_BYTES_MAX: Final = 1 << 30
IN_FLIGHT_MAX: Final = 10_000
OPEN_TIMEOUT_S: Final = 5.0

_LENGTH: Final = struct.Struct(">i")
_TAKE_BACK: Final = struct.pack("ii", 1, 0)
"""To linger for no time, as the system wants to be told."""


class PeerLost(Fault):
    """The other broker cannot be reached, or no longer: what was asked may or may not have been done."""


class Unreached(PeerLost):
    """The request has not left: it was certainly not done."""


class _Awaited(NamedTuple):
    correlation_id: int
    api_key: int
    version: int
    body: asyncio.Future[memoryview]
    timer: Handle


class PeerConnection(asyncio.BufferedProtocol):
    """Made by `open`. May be used by many tasks at once."""

    def __init__(self, runtime: Runtime, name: str, client_id: str) -> None:
        self.name = name
        """The peer and its address, for people."""
        self.used_at = runtime.now()
        self._runtime = runtime
        self._client_id = client_id
        self._transport: asyncio.Transport | None = None
        self.on_broken: Callable[[], None] | None = None
        """Called when the connection breaks, unless it was we who closed it: the peer may be gone."""
        self._lost: str | None = None
        self._correlation_id = 0
        self._awaited: deque[_Awaited] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        self._answer_bytes_max = STRANGER_BYTES_MAX
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
        identity: Identity,
        peer_id: int,
        *,
        timeout_s: float = OPEN_TIMEOUT_S,
    ) -> PeerConnection:
        """Connect to broker `peer_id`, each convinced of the other; or Unreached."""
        name = f"broker {peer_id} at {host}:{port}"
        connection = cls(runtime, name, f"broker-{identity.broker_id}")
        try:
            async with asyncio.timeout(timeout_s):
                await runtime.connect(lambda: connection, host, port)
                await connection._prove(identity, peer_id, timeout_s)
                await connection._agree(timeout_s)
        except TimeoutError:
            connection.close()
            raise Unreached(f"{name} does not answer within {timeout_s:g} s") from None
        except OSError as failure:
            connection.close()
            raise Unreached(f"{name} cannot be reached: {failure.strerror or failure}") from None
        except (PeerLost, AuthenticationFailed) as failure:
            connection.close()
            raise Unreached(f"{name}: {failure}") from None
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def closed(self) -> bool:
        return self._lost is not None

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        return not self._awaited

    def version_of(self, api_key: int) -> int:
        """The highest version that both sides speak. Unreached if there is none."""
        api = APIS[api_key]
        low, high = self._versions.get(api_key, (0, -1))
        version = min(api.max, high)
        if version < max(api.min, low):
            raise Unreached(f"{self.name} speaks no version of {api.name} that we speak")
        return version

    def speaks(self, api_key: int, version: int) -> bool:
        low, high = self._versions.get(api_key, (0, -1))
        return low <= version <= high

    async def call(self, message: Message, answer: type[R], timeout_s: float) -> R:
        """Ask in the highest version that both sides speak, and wait for the answer."""
        version = self.version_of(message.API_KEY)
        return await self._exchange(message, answer, version, timeout_s)

    def call_raw(
        self, api_key: int, version: int, buffers: Sequence[Buffer], timeout_s: float
    ) -> asyncio.Future[memoryview]:
        """Send a request whose body is `buffers`. The body of the answer is a view of a buffer that the caller owns."""
        if self._lost is not None:
            raise Unreached(f"{self.name}: {self._lost}")
        if len(self._awaited) >= IN_FLIGHT_MAX:
            raise Unreached(f"{self.name} owes {IN_FLIGHT_MAX} answers already")
        assert self._transport is not None
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = request_header(api_key, version, correlation_id, self._client_id)
        size = len(header) + sum(map(len, buffers))
        self.used_at = now = self._runtime.now()
        timer = self._runtime.call_at(now + timeout_s, self._lose, f"no answer within {timeout_s:g} s")
        body: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._awaited.append(_Awaited(correlation_id, api_key, version, body, timer))
        self._transport.writelines([_LENGTH.pack(size) + header, *buffers])
        return body

    def close(self) -> None:
        self._lose("the connection was closed")

    # Getting to know each other.

    async def _prove(self, identity: Identity, peer_id: int, timeout_s: float) -> None:
        handshake = await self._exchange(
            SaslHandshakeRequest(mechanism=MECHANISM), SaslHandshakeResponse, APIS[SASL_HANDSHAKE].max, timeout_s
        )
        if handshake.error_code:
            raise AuthenticationFailed(
                f"this is no listener for brokers (error {handshake.error_code}): "
                "inter.broker.listener.name must name the same listener on all brokers"
            )
        connecting = Connecting(identity, peer_id, self._runtime.entropy(NONCE_BYTES))
        challenge = await self._authenticate(connecting.hello, timeout_s)
        await self._authenticate(connecting.answer(challenge), timeout_s)
        self._answer_bytes_max = ANSWER_BYTES_MAX

    async def _authenticate(self, data: bytes, timeout_s: float) -> bytes:
        request = SaslAuthenticateRequest(auth_bytes=data)
        answer = await self._exchange(request, SaslAuthenticateResponse, APIS[SASL_AUTHENTICATE].max, timeout_s)
        if answer.error_code:
            raise AuthenticationFailed(f"it does not let us in: {answer.error_message or answer.error_code}")
        return answer.auth_bytes

    async def _agree(self, timeout_s: float) -> None:
        """Ask in our highest version; a peer that does not know it says so in the form of version 0 (KIP-511)."""
        request = ApiVersionsRequest(client_software_name="ottla", client_software_version="0")
        version = APIS[API_VERSIONS].max
        body = await self.call_raw(API_VERSIONS, version, [messages.encode(request, version)], timeout_s)
        if len(body) >= 2 and int.from_bytes(body[:2], "big", signed=True) == ErrorCode.unsupported_version:
            version = 0
            body = await self.call_raw(API_VERSIONS, version, [messages.encode(request, version)], timeout_s)
        answer = self._decoded(ApiVersionsResponse, version, body)
        if answer.error_code:
            raise PeerLost(f"it does not tell which versions it speaks (error {answer.error_code})")
        self._versions = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}

    async def _exchange(self, message: Message, answer: type[R], version: int, timeout_s: float) -> R:
        body = await self.call_raw(message.API_KEY, version, [messages.encode(message, version)], timeout_s)
        return self._decoded(answer, version, body)

    def _decoded(self, answer: type[R], version: int, body: memoryview) -> R:
        try:
            return messages.decode(answer, version, body, whole=False)
        except BadFrame as bad:
            self._lose(f"no valid {answer.__name__}: {bad}")
            raise PeerLost(f"{self.name} sent no valid {answer.__name__}: {bad}") from None

    # The transport calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from it
        if self._lost is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._answer is not None:
            return self._answer[self._filled :]
        return self._start[self._start_filled :]

    def buffer_updated(self, count: int) -> None:
        if self._answer is not None:
            self._filled += count
            if self._filled == len(self._answer):
                whole, self._answer = self._answer, None
                self._hand_over(whole)
            return
        self._take(self._start_filled + count)

    def eof_received(self) -> bool:
        return False  # close

    def connection_lost(self, failure: Exception | None) -> None:
        if self._lost is None and self.on_broken is not None:
            self.on_broken()
        self._lose(f"the connection broke: {failure}" if failure else "it closed the connection")

    # Answers in.

    def _take(self, end: int) -> None:
        """Cut the answers that begin in the first `end` bytes of the small buffer."""
        start = self._start
        pos = 0
        while end - pos >= 4 and self._lost is None:
            (size,) = _LENGTH.unpack_from(start, pos)
            if not 4 <= size <= self._answer_bytes_max:
                return self._lose(f"an answer of {size} bytes")
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
        self._start_filled = end - pos  # less than the length of the next answer
        if pos and self._start_filled:
            start[: self._start_filled] = bytes(start[pos:end])
        return None

    def _hand_over(self, answer: memoryview) -> None:
        if not self._awaited:
            return self._lose("an answer to nothing")
        awaited = self._awaited[0]
        try:
            correlation_id, pos = parse_response_header(answer, awaited.api_key, awaited.version)
        except BadFrame as bad:
            return self._lose(str(bad))
        if correlation_id != awaited.correlation_id:
            return self._lose(f"an answer to {correlation_id} where one to {awaited.correlation_id} is due")
        self._awaited.popleft()
        awaited.timer.cancel()
        self.used_at = self._runtime.now()
        if not awaited.body.done():  # done: whoever asked has gone
            awaited.body.set_result(answer[pos:])
        return None

    def _reset(self, transport: asyncio.Transport) -> None:
        """Close, and take back what has not arrived. The kernel would go on sending it, for minutes if the network is
        down; by then it was asked again on another connection, and done."""
        own = transport.get_extra_info("socket")
        if own is not None:
            with suppress(OSError):  # it is closed already
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _TAKE_BACK)
        transport.abort()

    def _lose(self, why: str) -> None:
        """Everybody who waits is told; nothing is sent or believed any more."""
        if self._lost is not None:
            return
        self._lost = why
        self._answer = None
        if self._transport is not None:
            self._reset(self._transport)
        while self._awaited:
            awaited = self._awaited.popleft()
            awaited.timer.cancel()
            if not awaited.body.done():
                awaited.body.set_exception(PeerLost(f"{self.name}: {why}"))
