"""A small HTTP/1.1 server for metrics and probes: GET and HEAD, one request for each connection.

A request has at most a few kilobytes and has to arrive within seconds, a response has to be read in time, and the
number of connections is limited. A request's body is never read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import NamedTuple, cast

from ottla.runtime import Handle, ListeningSocket, Runtime

log = logging.getLogger("ottla.net.http")

REQUEST_BYTES_MAX = 8 * 1024
REQUEST_SECONDS_MAX = 5.0
ANSWER_SECONDS_MAX = 30.0
CONNECTIONS_MAX = 32
TEXT = "text/plain; charset=utf-8"


class Page(NamedTuple):
    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = TEXT


Serve = Callable[[str], Awaitable[Page]]
"""From the path of the request, without its query, to the page."""


class HttpRequest(NamedTuple):
    path: str
    with_body: bool


def parse_request(head: bytes) -> HttpRequest | HTTPStatus:
    """The request, or the status of its refusal."""
    words = head.split(b"\n", 1)[0].rstrip(b"\r").split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1.") or not words[1].startswith(b"/"):
        return HTTPStatus.BAD_REQUEST
    method, target, _ = words
    if method not in (b"GET", b"HEAD"):
        return HTTPStatus.METHOD_NOT_ALLOWED
    try:
        path = target.split(b"?", 1)[0].decode("ascii")
    except UnicodeDecodeError:
        return HTTPStatus.BAD_REQUEST
    return HttpRequest(path, method == b"GET")


def written(page: Page, *, with_body: bool = True) -> bytes:
    lines = [
        f"HTTP/1.1 {page.status.value} {page.status.phrase}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(page.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    if page.status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")
    return head + page.body if with_body else head


def refusal(status: HTTPStatus) -> Page:
    return Page(f"{status.phrase.lower()}\n".encode("ascii"), status)


class _Connection(asyncio.Protocol):
    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._head = b""
        self._transport: asyncio.Transport
        self._timer: Handle | None = None
        self._answering: asyncio.Task[None] | None = None
        self._answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from it
        if not self._server.admit(self):
            self._transport.abort()
            return
        self._limit(REQUEST_SECONDS_MAX)

    def data_received(self, data: bytes) -> None:
        if self._answered or self._answering is not None:
            return  # only one request is served
        self._head += data
        if b"\r\n\r\n" in self._head or b"\n\n" in self._head:
            request = parse_request(self._head)
            if isinstance(request, HTTPStatus):
                return self._answer(refusal(request))
            self._limit(ANSWER_SECONDS_MAX)
            self._answering = self._server.runtime.spawn(self._ask(request), name=f"GET {request.path}")
        elif b"\0" in data:  # another protocol, for example Kafka's, whose client waits for a response
            self._answer(refusal(HTTPStatus.BAD_REQUEST))
        elif len(self._head) > REQUEST_BYTES_MAX:
            self._answer(refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))

    def connection_lost(self, failure: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._answering is not None:
            self._answering.cancel()
        self._server.gone(self)

    async def _ask(self, request: HttpRequest) -> None:
        try:
            page = await self._server.serve(request.path)
        except Exception as failure:  # the client gets an answer in any case
            log.error("GET %s failed", request.path, exc_info=failure)
            page = refusal(HTTPStatus.INTERNAL_SERVER_ERROR)
        self._answer(page, with_body=request.with_body)

    def _answer(self, page: Page, *, with_body: bool = True) -> None:
        self._answered = True
        self._limit(ANSWER_SECONDS_MAX)
        self._transport.write(written(page, with_body=with_body))
        self._transport.close()

    def _limit(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._server.runtime.call_at(self._server.runtime.now() + seconds, self.abort)

    def abort(self) -> None:
        self._transport.abort()


class HttpServer:
    """One listener; `serve` makes the pages."""

    def __init__(self, runtime: Runtime, serve: Serve) -> None:
        self.runtime = runtime
        self.serve = serve
        self._connections: dict[_Connection, None] = {}
        self._listener: ListeningSocket | None = None

    async def start(self, host: str, port: int) -> ListeningSocket:
        listener = await self.runtime.listen(lambda: _Connection(self), host, port)
        self._listener = listener
        await listener.start()
        return listener

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.close()
        for connection in list(self._connections):
            connection.abort()

    def admit(self, connection: _Connection) -> bool:
        if len(self._connections) >= CONNECTIONS_MAX:
            return False
        self._connections[connection] = None
        return True

    def gone(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)
