"""From a frame to its handler and back: the only place where a refusal becomes bytes.

A handler registers itself with `@serves(API)` and sees version-blind trees; what a version lacks, the codec drops.
Plain functions are answered at once; coroutines hold the connection's next request back until they are done. The two
hot APIs register with `@serves_raw` and read their frames themselves.

Authorization: the table of APIs (`wire.apis`) names resource and operation. `Session.refusal` decides about operations
on the cluster, before any handler and also for forwarded requests: inter-broker APIs are refused to clients. An
inter-broker listener serves only authenticated brokers. Where a request names its broker, handlers call
`Session.check_is_broker`.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from ottla.access.session import Session, broker_principal
from ottla.broker.context import Context
from ottla.errors import BadFrame, ErrorCode, Fault, Refused, StorageFault
from ottla.net.server import Connection, Pending, Reply
from ottla.runtime import Buffer, ResponseSource
from ottla.wire import messages
from ottla.wire.apis import API_VERSIONS, APIS, SASL_AUTHENTICATE, SASL_HANDSHAKE, Api
from ottla.wire.decoders import Decoder
from ottla.wire.encoders import Encoder
from ottla.wire.error_codes import Counter, ErrorCounts, count, counter_of
from ottla.wire.frame import parse_request_header
from ottla.wire.refusal import refusal
from ottla.wire.tree import Message

log = logging.getLogger("ottla.broker")

R = TypeVar("R", bound=Message)
H = TypeVar("H")

_HEADER = struct.Struct(">hhih")
_REPLY = struct.Struct(">ii")
_REPLY_FLEXIBLE = struct.Struct(">iix")  # the pad byte is an empty set of tagged fields

TREE_BYTES_MAX = 16 * 1024 * 1024
"""The limit of requests that are decoded to trees: many times smaller than that of Produce."""

_UNAUTHENTICATED: Final = frozenset({API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE})
"""The APIs that an inter-broker listener serves before authentication."""


class Request:
    """The context of one request: what a handler may use beside the message."""

    __slots__ = ("client_id", "connection", "correlation_id", "route", "session", "version")

    def __init__(
        self, route: Route, connection: Connection, correlation_id: int, client_id: str | None, session: Session
    ) -> None:
        self.route = route
        self.version = route.version
        self.connection = connection
        self.session = session
        self.correlation_id = correlation_id
        self.client_id = client_id

    def count_error(self, code: int, times: int = 1) -> None:
        """Count the error of a response that is not encoded from a tree."""
        count(self.route.errors, code, times)

    def frame(self, body: bytes) -> bytes:
        """The response frame of a body."""
        if self.route.flexible_reply:
            return _REPLY_FLEXIBLE.pack(len(body) + 5, self.correlation_id) + body
        return _REPLY.pack(len(body) + 4, self.correlation_id) + body

    def frame_parts(self, body: list[Buffer | ResponseSource]) -> list[Buffer | ResponseSource]:
        """The response frame of a body in parts."""
        size = sum(map(len, body))
        if self.route.flexible_reply:
            body.insert(0, _REPLY_FLEXIBLE.pack(size + 5, self.correlation_id))
        else:
            body.insert(0, _REPLY.pack(size + 4, self.correlation_id))
        return body


class LocalRequest(Request):
    """A request without a connection: this broker calls its own handler, or another broker has forwarded it."""

    __slots__ = ()

    def __init__(self, route: Route, session: Session, client_id: str | None) -> None:
        self.route = route
        self.version = route.version
        self.session = session
        self.correlation_id = 0
        self.client_id = client_id


Response = Message | bytes
"""A tree, or the body of the answer already encoded."""

# Handlers are as different as the messages they take; the registry cannot be more precise than the protocol is.
TreeHandler = Callable[[Context, Any, Request], Response | Pending | Coroutine[object, object, Response]]
RawHandler = Callable[[Request, memoryview, int], Reply | Pending]
RawFactory = Callable[[Context], RawHandler]

_TREES: dict[int, TreeHandler] = {}
_RAW: dict[int, RawFactory] = {}
_FAST: dict[int, RawFactory] = {}


def _register(table: dict[int, H], api_key: int) -> Callable[[H], H]:
    def register(handler: H) -> H:
        assert api_key not in table
        table[api_key] = handler
        return handler

    return register


def serves(api_key: int) -> Callable[[TreeHandler], TreeHandler]:
    return _register(_TREES, api_key)


def serves_raw(api_key: int) -> Callable[[RawFactory], RawFactory]:
    """Register a handler that decodes its frames itself: a function that makes the handler from the services it
    needs."""
    return _register(_RAW, api_key)


def serves_fast(api_key: int) -> Callable[[RawFactory], RawFactory]:
    """Register the fast path of an API that also has a tree handler: it decodes the usual request by hand, and returns
    None for others."""
    return _register(_FAST, api_key)


def served_apis() -> list[Api]:
    """All APIs that have a handler."""
    return [APIS[key] for key in sorted(_TREES.keys() | _RAW.keys())]


class Route:
    """One version of one API."""

    __slots__ = (
        "_count_errors", "_decoder", "_encoder", "api", "cluster_operation", "errors", "fast", "flexible_reply",
        "handler", "key", "raw", "version",
    )  # fmt: skip

    def __init__(
        self,
        api: Api,
        version: int,
        errors: ErrorCounts,
        raw: RawHandler | None = None,
        fast: RawHandler | None = None,
    ) -> None:
        self.api = api
        self.errors = errors
        """Of all versions of this API."""
        self.key = api.key
        self.version = version
        self.flexible_reply = api.flexible(version) and api.key != API_VERSIONS
        self.raw = raw
        self.fast = fast
        self.handler = _TREES.get(api.key)
        self.cluster_operation = api.cluster_operation(version)
        self._decoder: Decoder | None = None
        self._encoder: Encoder | None = None
        self._count_errors: Counter | None = None

    def decode(self, frame: memoryview, pos: int) -> Message:
        """Decode the request. Bytes after it are ignored, as in Kafka: librdkafka's request for all topics has some."""
        if len(frame) > TREE_BYTES_MAX:
            raise BadFrame(f"a {self.api.name} request of {len(frame)} bytes (at most {TREE_BYTES_MAX} are taken)")
        if self._decoder is None:
            self._decoder = messages.decoder_of(messages.message_class(self.key, "request"), self.version, whole=False)
        return self._decoder(frame, pos)

    def encode(self, response: Response) -> bytes:
        if isinstance(response, bytes):
            return response
        if self._encoder is None:
            shape = messages.message_class(self.key, "response")
            self._encoder = messages.encoder_of(shape, self.version)
            self._count_errors = counter_of(shape)
        if self._count_errors is not None:
            self._count_errors(response, self.errors)
        return self._encoder(response)


class Dispatch:
    """Serves frames for one broker."""

    def __init__(self, context: Context) -> None:
        self._context = context
        served = {api.key: api for api in (*served_apis(), *(api for api in APIS.values() if api.between_brokers))}
        self.apis = list(served.values())
        self.errors: dict[str, ErrorCounts] = {api.name: {} for api in self.apis}
        raw = {key: factory(context) for key, factory in _RAW.items()}
        fast = {key: factory(context) for key, factory in _FAST.items()}
        self._routes = {
            api.key << 16 | version: Route(api, version, self.errors[api.name], raw.get(api.key), fast.get(api.key))
            for api in self.apis
            for version in range(api.min, api.max + 1)
        }

    def serve(self, connection: Connection, frame: memoryview) -> Reply | Pending:
        try:
            key, version, correlation_id, name_length = _HEADER.unpack_from(frame)
        except struct.error:
            raise BadFrame("the request ends within its header") from None
        session = connection.session
        if connection.inter_broker and session.broker_id is None and key not in _UNAUTHENTICATED:
            raise BadFrame(f"API {key} before authentication as a broker")
        route = self._routes.get(key << 16 | version)
        if route is None:
            return self._unserved(connection, key, version, correlation_id)
        if route.cluster_operation is not None and (refused := session.refusal(route.cluster_operation)):
            return self._refuse_frame(route, connection, frame, refused)
        handler = route.raw or route.fast
        if handler is not None:
            pos = 10 + name_length
            flexible = route.flexible_reply
            if name_length < 0 or pos >= len(frame) or (flexible and frame[pos]):
                *_, pos = parse_request_header(frame)
            elif flexible:
                pos += 1  # the usual header, read without another call
            try:
                reply = handler(Request(route, connection, correlation_id, None, session), frame, pos)
            except BadFrame:
                raise
            except Refused as refused:
                return self._refuse_frame(route, connection, frame, refused)
            except Exception as failure:
                log.error("%s failed", route.api.name, exc_info=failure)
                raise BadFrame(f"{route.api.name} failed") from failure
            if reply is not None or route.raw is not None:
                return reply
        _, _, _, client_id, pos = parse_request_header(frame)
        message = route.decode(frame, pos)
        return self._serve_tree(Request(route, connection, correlation_id, client_id, session), message)

    async def ask_here(self, message: Message, answer: type[R]) -> R:
        """Call this broker's own handler. Its exceptions are raised."""
        route = Route(APIS[message.API_KEY], APIS[message.API_KEY].max, {})
        assert route.handler is not None, f"{route.api.name} has no handler"
        listener = self._context.config.inter_broker_endpoint.name
        session = Session(listener, principal=broker_principal(self._context.id), broker_id=self._context.id)
        request = LocalRequest(route, session, f"broker-{self._context.id}")
        response = route.handler(self._context, message, request)
        assert not isinstance(response, Pending), f"{route.api.name} is answered on a connection"
        if not isinstance(response, Message | bytes):
            response = await response
        assert isinstance(response, answer)
        return response

    def _refuse_frame(self, route: Route, connection: Connection, frame: memoryview, refused: Refused) -> Reply:
        """The refusal of a request that was not decoded to a tree."""
        _, _, correlation_id, client_id, pos = parse_request_header(frame)
        request = Request(route, connection, correlation_id, client_id, connection.session)
        message = route.decode(frame, pos)
        return self._refusal(request, message, refused)

    async def serve_forwarded(self, frame: memoryview, session: Session) -> bytes:
        """Serve a request that a client sent to another broker: a whole request with its header. Returns a whole
        response."""
        key, version, correlation_id, client_id, pos = parse_request_header(frame)
        route = self._routes.get(key << 16 | version)
        if route is None or route.handler is None:
            raise Refused(ErrorCode.unsupported_version, f"API {key} version {version} is not forwarded")
        message = route.decode(frame, pos)
        request = LocalRequest(route, session, client_id)
        request.correlation_id = correlation_id
        try:
            if route.cluster_operation is not None and (refused := session.refusal(route.cluster_operation)):
                raise refused
            response = route.handler(self._context, message, request)
            assert not isinstance(response, Pending), f"{route.api.name} is answered on a connection"
            if not isinstance(response, Message | bytes):
                response = await response
        except BadFrame:
            raise
        except Exception as failure:
            if isinstance(failure, Refused) and failure.code == ErrorCode.not_controller:
                raise
            return self._refusal(request, message, failure)[4:]
        return request.frame(route.encode(response))[4:]

    def _serve_tree(self, request: Request, message: Message) -> Reply | Pending:
        handler = request.route.handler
        try:
            if handler is None:
                raise BadFrame(f"{request.route.api.name} is not served")
            response = handler(self._context, message, request)
            if isinstance(response, Message | bytes):
                return request.frame(request.route.encode(response))
        except BadFrame:
            raise
        except Exception as failure:
            return self._refusal(request, message, failure)
        if isinstance(response, Pending):
            return response
        pending = Pending()
        work = self._answer_later(request, message, response, pending)
        self._context.runtime.spawn(work, name=request.route.api.name)
        return pending

    async def _answer_later(
        self, request: Request, message: Message, work: Coroutine[object, object, Response], pending: Pending
    ) -> None:
        """The handler finishes even if the client disconnects."""
        reply: Reply = None
        try:
            reply = request.frame(request.route.encode(await work))
        except BadFrame as failure:
            request.connection.close(str(failure))
        except Exception as failure:
            try:
                reply = self._refusal(request, message, failure)
            except BadFrame as nameless:
                request.connection.close(str(nameless))
        finally:
            pending.resolve(reply)

    def _refusal(self, request: Request, message: Message, failure: Exception) -> bytes:
        """A response with only an error, for APIs that have a field for it."""
        if isinstance(failure, Refused):
            code, text = failure.code, failure.message
        elif isinstance(failure, Fault):
            # Not a defect: the store, another broker or the disk does not work. The client may retry.
            log.warning("%s: %s", request.route.api.name, failure)
            storage = isinstance(failure, StorageFault)
            code, text = ErrorCode.kafka_storage_error if storage else ErrorCode.request_timed_out, str(failure)
        else:
            log.error("%s failed", request.route.api.name, exc_info=failure)
            code, text = ErrorCode.unknown_server_error, None
        log.debug("%s from %s refused: %s", request.route.api.name, request.client_id, failure)
        response = refusal(message, request.version, code, text)
        if response is None:
            raise BadFrame(f"{request.route.api.name} failed and has no place to say so")
        return request.frame(request.route.encode(response))

    def _unserved(self, connection: Connection, key: int, version: int, correlation_id: int) -> Reply:
        if key != API_VERSIONS:
            raise BadFrame(f"API {key} version {version} is not served")
        # KIP-511: the oldest format, the error, and the supported versions; the connection stays.
        from ottla.broker.handlers.api_versions import unsupported_version

        count(self.errors[APIS[API_VERSIONS].name], ErrorCode.unsupported_version)
        body = messages.encode_response(API_VERSIONS, 0, unsupported_version(self._context))
        return _REPLY.pack(len(body) + 4, correlation_id) + body
