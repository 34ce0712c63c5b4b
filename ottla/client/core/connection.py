"""One connection to one broker: requests out, answers in.

A client first asks which versions the broker speaks (ApiVersions); from then on each request goes out in the
highest version both sides know. Many requests may be under way at once. Answers come in the order of the requests,
and each repeats the correlation id of its own; a broker that mixes them up is not believed further. When one
request is not answered in time the connection is given up, and everything that waits on it fails: nobody could
tell what the broker has done of it.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, cast

from ottla import __version__
from ottla.client.core.requests import Versions
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
from ottla.errors import BadFrame, ErrorCode
from ottla.wire.frame import LENGTH_BYTES, framed, parse_response_header, read_length, request_header
from ottla.wire.messages import decode, encode, message_class
from ottla.wire.schema.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.tree import Message

if TYPE_CHECKING:
    from ottla.runtime import Handle, Runtime

R = TypeVar("R", bound=Message)

CONNECT_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 1.0
"""So long a broker that does not read is waited for."""
RESPONSE_BYTES_MAX: Final = 256 * 2**20
TLS_ALERT: Final = b"\x15\x03"
HTTP: Final = b"HTTP"
"""What a port that expects TLS may say to a request: an alert, version 3.something."""
LARGE_BYTES: Final = 64 * 1024
"""The parts of a larger request are not joined for the transport: to copy them takes longer than to write one more."""
SCRATCH_BYTES: Final = 64 * 1024
"""An answer that is larger has a buffer of its own."""

Reply = Callable[[Message | ClientError], object]
"""Called once, with the answer or with what came instead."""


class _Awaited(NamedTuple):
    correlation_id: int
    api_key: int
    version: int
    deadline: float
    reply: Reply


class Connection(asyncio.BufferedProtocol):
    """Made by `open`. Requests may be sent from many tasks at once."""

    def __init__(self, runtime: Runtime, address: str, client_id: str) -> None:
        self.address = address
        self.lost: ClientError | None = None
        """Why nothing goes any more."""
        self.when_lost: Callable[[], object] = lambda: None
        self._runtime = runtime
        self._client_id = client_id
        self._correlation_id = 0
        self._awaited: deque[_Awaited] = deque()
        self._versions: Versions | None = None
        self._transport: asyncio.Transport | None = None
        self._closed = asyncio.get_running_loop().create_future()
        self._timer: Handle | None = None
        self._timer_at = 0.0
        self._scratch = bytearray(SCRATCH_BYTES)
        self._large: bytearray | None = None
        """An answer that does not fit the scratch buffer, as far as it has come."""
        self._filled = 0

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str = "ottla",
        runtime: Runtime | None = None,
        timeout_s: float | None = None,
    ) -> Connection:
        """Connect and agree on versions, or ClientError. Without a runtime: the real one, on the running loop."""
        if runtime is None:
            from ottla.runtime.real import RealRuntime

            runtime = RealRuntime()
        limit_s = CONNECT_TIMEOUT_S if timeout_s is None else timeout_s
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        connection = cls(runtime, address, client_id)
        try:
            async with asyncio.timeout(limit_s):
                await runtime.connect(lambda: connection, host, port)
        except TimeoutError:
            raise Unreachable(f"no answer from {address} within {limit_s:g} s") from None
        except OSError as error:
            raise Unreachable(f"cannot connect to {address}: {_reason(error)}") from None
        try:
            await connection._agree(limit_s)
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def features(self) -> dict[str, int]:
        """What the cluster has agreed on, by name."""
        return self._versions.features if self._versions is not None else {}

    # Requests.

    def send(
        self, request: Message, reply: Reply | None, *, timeout_s: float = 30.0, version_max: int | None = None
    ) -> None:
        """In the highest common version. Without `reply` no answer is awaited. NotUnderstood: there is no version."""
        if self.lost is not None:
            if reply is not None:
                reply(self.lost)
            return
        assert self._versions is not None, "nothing is sent before versions are agreed on"
        try:
            version = self._versions.agreed(type(request), version_max)
        except NotUnderstood as error:
            raise NotUnderstood(f"{self.address}: {error}", code=error.code) from None
        self._write(request, version, reply, timeout_s)

    async def call(self, request: Message, answer: type[R], *, timeout_s: float = 30.0) -> R:
        """Send a request and wait for its answer."""
        future, reply = _promise()
        self.send(request, reply, timeout_s=timeout_s)
        received = await future
        assert isinstance(received, answer)
        return received

    def drop(self) -> None:
        """Close it: what was written still goes out, what waits for an answer fails."""
        self._lose(ConnectionLost(f"the connection to {self.address} was closed"), gently=True)

    async def close(self) -> None:
        self.drop()
        if self._transport is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await asyncio.shield(self._closed)
        except TimeoutError:
            self._transport.abort()

    async def _agree(self, timeout_s: float) -> None:
        """Ask in our highest version; a broker that does not know it says so in the form of version 0."""
        request = ApiVersionsRequest(client_software_name="ottla", client_software_version=__version__)
        answer = await self._asked(request, ApiVersionsRequest.VERSIONS[1], timeout_s)
        if answer.error_code == ErrorCode.unsupported_version:
            answer = await self._asked(request, 0, timeout_s)
        if answer.error_code:
            raise NotUnderstood(f"{self.address} does not tell which versions it speaks (error {answer.error_code})")
        self._versions = Versions(answer)

    async def _asked(self, request: ApiVersionsRequest, version: int, timeout_s: float) -> ApiVersionsResponse:
        if self.lost is not None:  # it broke as soon as it was there, and nobody would ever answer
            raise self.lost
        future, reply = _promise()
        self._write(request, version, reply, timeout_s)
        answer = await future
        assert isinstance(answer, ApiVersionsResponse)
        return answer

    def _write(self, request: Message, version: int, reply: Reply | None, timeout_s: float) -> None:
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        if reply is not None:
            deadline = self._runtime.now() + timeout_s
            self._awaited.append(_Awaited(correlation_id, request.API_KEY, version, deadline, reply))
            if self._timer is None or deadline < self._timer_at:
                self._watch(deadline)
        header = request_header(request.API_KEY, version, correlation_id, self._client_id)
        assert self._transport is not None
        body = encode(request, version)
        if len(body) < LARGE_BYTES:
            self._transport.write(framed(header, body))
        else:
            self._transport.writelines(((len(header) + len(body)).to_bytes(LENGTH_BYTES, "big") + header, body))

    def _watch(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._runtime.call_at(deadline, self._look_at_clock)

    def _look_at_clock(self) -> None:
        """Set for whatever was the first to expire once; by now that may have been answered long ago."""
        self._timer = None
        if not self._awaited:
            return
        deadline = min(awaited.deadline for awaited in self._awaited)
        if deadline <= self._runtime.now():
            if self._versions is None:  # it never said a word
                self._lose(NoAnswer(f"{self.address} {SILENT}"))
            else:
                self._lose(TimedOut(f"no answer from {self.address} in time", hint=BUSY))
        else:
            self._watch(deadline)

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self.lost is not None:  # given up before it stood
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
        if self._versions is None:
            self._lose(HungUp(f"{self.address} closed the connection before it said anything"))
        else:
            self._lose(ConnectionLost(f"{self.address} closed the connection"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._scratch if self._large is None else self._large)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self.lost is not None:
            return
        self._filled += nbytes
        try:
            if self._large is None:
                self._cut()
            elif self._filled == len(self._large):
                large, self._large, self._filled = self._large, None, 0
                self._hand_over(memoryview(large))
        except BadFrame as bad:
            self._lose(NotUnderstood(f"{self.address} does not speak Kafka's protocol: {bad}"))

    def _cut(self) -> None:
        """Hand over every whole answer in the scratch buffer; the rest moves to its start, or to a buffer that fits."""
        view = memoryview(self._scratch)
        start, filled = 0, self._filled
        while filled - start >= LENGTH_BYTES:
            length = read_length(view, start)
            if not LENGTH_BYTES <= length <= RESPONSE_BYTES_MAX:
                if bytes(view[start : start + len(TLS_ALERT)]) == TLS_ALERT:
                    raise BadFrame("it speaks TLS")
                if bytes(view[start : start + len(HTTP)]) == HTTP:
                    raise BadFrame("it speaks HTTP")
                raise BadFrame(f"an answer of {length} bytes")
            begin = start + LENGTH_BYTES
            if begin + length > filled:
                if length > SCRATCH_BYTES - LENGTH_BYTES:
                    self._large = bytearray(length)
                    self._filled = filled - begin
                    self._large[: self._filled] = view[begin:filled]
                    return
                break
            start = begin + length
            self._hand_over(view[begin:start])
        self._filled = filled - start
        if start and self._filled:
            view[: self._filled] = bytes(view[start:filled])

    def _hand_over(self, frame: memoryview) -> None:
        if not self._awaited:
            raise BadFrame("an answer to nothing")
        awaited = self._awaited[0]
        correlation_id, pos = parse_response_header(frame, awaited.api_key, awaited.version)
        if correlation_id != awaited.correlation_id:
            raise BadFrame(f"an answer to {correlation_id} where one to {awaited.correlation_id} is due")
        version = awaited.version
        if awaited.api_key == ApiVersionsRequest.API_KEY and _refuses_version(frame[pos:]):
            version = 0
        answer = decode(message_class(awaited.api_key, "response"), version, frame, pos)
        self._awaited.popleft()
        awaited.reply(answer)

    def _lose(self, error: ClientError, *, gently: bool = False) -> None:
        if self.lost is not None:
            return
        self.lost = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.close() if gently else self._transport.abort()
        waiting, self._awaited = self._awaited, deque()
        for awaited in waiting:
            awaited.reply(error)
        self.when_lost()


def _promise() -> tuple[asyncio.Future[Message], Reply]:
    future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def reply(received: Message | ClientError) -> None:
        if future.done():  # whoever asked has given up
            return
        if isinstance(received, ClientError):
            future.set_exception(received)
        else:
            future.set_result(received)

    return future, reply


def _refuses_version(body: memoryview) -> bool:
    return len(body) >= 2 and int.from_bytes(body[:2], "big", signed=True) == ErrorCode.unsupported_version


def _reason(error: OSError) -> str:
    """In a person's words. For a name with several addresses asyncio tells all failures in one text."""
    if isinstance(error, socket.gaierror):
        return error.strerror or "the name is not known"
    codes = [error.errno] if error.errno else [int(code) for code in re.findall(r"\[Errno (\d+)\]", str(error))]
    return ", ".join(dict.fromkeys(os.strerror(code) for code in codes)) or str(error)
