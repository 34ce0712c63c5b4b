"""One connection to one broker: requests out, answers in.

A client first asks which versions the broker speaks (ApiVersions); from then on each request goes out in the
highest version both sides know. Answers come in the order of the requests, and each repeats the
correlation id of its own; a broker that mixes them up is not believed further.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections import deque
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from ottla.client.errors import ClientError, ConnectionLost, NotUnderstood, TimedOut, Unreachable
from ottla.errors import BadFrame, ErrorCode
from ottla.wire.frame import LENGTH_BYTES, framed, parse_response_header, read_length, request_header
from ottla.wire.messages import decode, encode
from ottla.wire.schema.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.tree import Message

R = TypeVar("R", bound=Message)

CONNECT_TIMEOUT_S: Final = 5.0
RESPONSE_BYTES_MAX: Final = 256 * 2**20


class _Awaited(NamedTuple):
    correlation_id: int
    api_key: int
    version: int
    body: asyncio.Future[memoryview]


class Connection:
    """Made by `open`. Requests may be sent from many tasks at once."""

    def __init__(
        self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str
    ) -> None:
        self.address = address
        self._reader = reader
        self._writer = writer
        self._client_id = client_id
        self._correlation_id = 0
        self._awaited: deque[_Awaited] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        self._lost: ClientError | None = None
        self._receiving = asyncio.create_task(self._receive(), name=f"receive from {address}")

    @classmethod
    async def open(cls, host: str, port: int, *, client_id: str = "ottla") -> Connection:
        """Connect and agree on versions, or ClientError."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(host, port)
        except TimeoutError:
            raise Unreachable(f"no answer from {address} within {CONNECT_TIMEOUT_S:g} s") from None
        except OSError as error:
            raise Unreachable(f"cannot connect to {address}: {_reason(error)}") from None
        connection = cls(address, reader, writer, client_id)
        try:
            await connection._agree()
        except BaseException:
            await connection.close()
            raise
        return connection

    async def call(self, request: Message, answer: type[R], *, timeout_s: float = 30.0) -> R:
        """Send a request in the highest version both sides know, and wait for its answer."""
        version = self._version_of(request)
        body = await self._exchange(request, version, timeout_s)
        return self._decoded(answer, version, body)

    async def close(self) -> None:
        self._receiving.cancel()
        with suppress(asyncio.CancelledError):
            await self._receiving
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _agree(self) -> None:
        """Ask in our highest version; a broker that does not know it says so in the form of version 0."""
        version = ApiVersionsRequest.VERSIONS[1]
        request = ApiVersionsRequest(client_software_name="ottla", client_software_version="0")
        body = await self._exchange(request, version, CONNECT_TIMEOUT_S)
        if len(body) >= 2 and int.from_bytes(body[:2], "big", signed=True) == ErrorCode.unsupported_version:
            version = 0
            body = await self._exchange(request, version, CONNECT_TIMEOUT_S)
        answer = self._decoded(ApiVersionsResponse, version, body)
        if answer.error_code:
            raise NotUnderstood(f"{self.address} does not tell which versions it speaks (error {answer.error_code})")
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    def _version_of(self, request: Message) -> int:
        low, high = request.VERSIONS
        broker_low, broker_high = self._versions.get(request.API_KEY, (0, -1))
        version = min(high, broker_high)
        if version < max(low, broker_low):
            name = type(request).__name__.removesuffix("Request")
            raise NotUnderstood(
                f"{self.address} speaks no version of {name} that we speak",
                code=ErrorCode.unsupported_version,
            )
        return version

    def _decoded(self, answer: type[R], version: int, body: memoryview) -> R:
        try:
            return decode(answer, version, body)
        except BadFrame as bad:
            raise NotUnderstood(f"{self.address} sent no valid {answer.__name__}: {bad}") from None

    async def _exchange(self, request: Message, version: int, timeout_s: float) -> memoryview:
        if self._lost is not None:
            raise self._lost
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        body: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._awaited.append(_Awaited(self._correlation_id, request.API_KEY, version, body))
        header = request_header(request.API_KEY, version, self._correlation_id, self._client_id)
        self._writer.write(framed(header, encode(request, version)))
        try:
            async with asyncio.timeout(timeout_s):
                return await body
        except TimeoutError:
            raise TimedOut(f"no answer from {self.address} within {timeout_s:g} s") from None

    async def _receive(self) -> None:
        try:
            while True:
                length = read_length(await self._reader.readexactly(LENGTH_BYTES))
                if not LENGTH_BYTES <= length <= RESPONSE_BYTES_MAX:
                    raise BadFrame(f"an answer of {length} bytes")
                self._hand_over(memoryview(await self._reader.readexactly(length)))
        except (OSError, asyncio.IncompleteReadError):
            self._lose(ConnectionLost(f"{self.address} closed the connection"))
        except BadFrame as bad:
            self._lose(NotUnderstood(f"{self.address} does not speak Kafka's protocol: {bad}"))

    def _hand_over(self, frame: memoryview) -> None:
        if not self._awaited:
            raise BadFrame("an answer to nothing")
        awaited = self._awaited.popleft()
        correlation_id, pos = parse_response_header(frame, awaited.api_key, awaited.version)
        if correlation_id != awaited.correlation_id:
            self._awaited.appendleft(awaited)
            raise BadFrame(f"an answer to {correlation_id} where one to {awaited.correlation_id} is due")
        if not awaited.body.done():  # done: whoever asked has given up
            awaited.body.set_result(frame[pos:])

    def _lose(self, error: ClientError) -> None:
        self._lost = error
        while self._awaited:
            body = self._awaited.popleft().body
            if not body.done():
                body.set_exception(error)


def _reason(error: OSError) -> str:
    """In a person's words. For a name with several addresses asyncio tells all failures in one text."""
    if isinstance(error, socket.gaierror):
        return error.strerror or "the name is not known"
    codes = [error.errno] if error.errno else [int(code) for code in re.findall(r"\[Errno (\d+)\]", str(error))]
    return ", ".join(dict.fromkeys(os.strerror(code) for code in codes)) or str(error)
