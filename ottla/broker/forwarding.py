"""Forwarding to the controller (KIP-590): clients may send controller requests to any broker.

A handler under `@by_controller` runs on the controller. Other brokers forward the request and return the controller's
response; before that they catch up with the metadata, so that the client finds its change on this broker.

While there is no controller the request waits, up to its timeout. If the connection breaks after the request was sent,
only an idempotent request is sent again; otherwise the client gets REQUEST_TIMED_OUT, for the outcome is not known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import wraps
from ipaddress import ip_address
from typing import Any, Final

from ottla.access.session import ANONYMOUS, Session, decode_principal
from ottla.broker.context import Context
from ottla.broker.dispatch import Request, Response, TreeHandler, serves
from ottla.broker.peers import NOT_CONTROLLER
from ottla.broker.topic_creation import catch_up
from ottla.errors import ErrorCode, Fault, Refused, StorageFault
from ottla.net.outbound import PeerLost, Unreached
from ottla.net.server import Pending
from ottla.wire import apis, messages
from ottla.wire.schema.envelope import EnvelopeRequest, EnvelopeResponse
from ottla.wire.tree import Message

log = logging.getLogger("ottla.broker")

Forwarded = Callable[[Context, Any, Request], Coroutine[object, object, Response]]

RETRY_SECONDS: Final = 0.1
WAIT_SECONDS_MAX: Final = 30.0
"""The longest wait, whatever timeout the client asks for."""
_TOO_LATE: Final = "The controller did not answer in time."
_IN_DOUBT: Final = "did not answer: whether this was done is not known"
_NOT_DONE: Final = "does not answer, so there is no controller, and nothing was done"
_IDEMPOTENT: Final = frozenset(
    {
        apis.ALTER_CONFIGS,
        apis.INCREMENTAL_ALTER_CONFIGS,
        apis.ELECT_LEADERS,
        apis.ALTER_PARTITION_REASSIGNMENTS,
        apis.LIST_PARTITION_REASSIGNMENTS,
    }
)
"""Idempotent: a retry does no harm."""


def by_controller(handler: TreeHandler) -> Forwarded:
    """Runs this handler on the controller."""

    async def here(context: Context, message: Message, request: Request) -> Response:
        response = handler(context, message, request)
        assert not isinstance(response, Pending)
        try:
            return response if isinstance(response, Message | bytes) else await response
        except StorageFault:
            raise
        except Fault as fault:
            log.warning("%s: %s", request.route.api.name, fault)
            raise Refused(ErrorCode.request_timed_out, _of_store(context, _IN_DOUBT)) from fault

    @wraps(handler)
    async def answered(context: Context, message: Message, request: Request) -> Response:
        if not request.session.forwarded and request.session.broker_id is None:
            return await _Forwarding(context, message, request, here).run()
        if not context.cluster.is_controller:  # the forwarding broker will find the right one
            raise Refused(ErrorCode.not_controller, NOT_CONTROLLER)
        return await here(context, message, request)

    return answered


def _of_store(context: Context, what: str) -> str:
    """The message with the store's name, and what to do."""
    store = context.config.ottla_store
    if store.startswith("zookeeper:"):
        remedy = f"Start ZooKeeper again, or look at its log and at the network between it and broker {context.id}"
    else:
        remedy = f"Look at its disk, and at the log of broker {context.id}"
    return f"The store of the cluster ({store}) {what}. {remedy}. Then try again."


class _Forwarding:
    """One request of a client, until the controller has responded."""

    def __init__(self, context: Context, message: Message, request: Request, here: Forwarded) -> None:
        self._context = context
        self._message = message
        self._request = request
        self._here = here
        asked_ms = getattr(message, "timeout_ms", context.config.request_timeout_ms)
        self._deadline = context.runtime.now() + min(max(asked_ms / 1000, 0.0), WAIT_SECONDS_MAX)

    async def run(self) -> Response:
        while True:
            try:
                if self._context.cluster.is_controller:
                    return await self._here(self._context, self._message, self._request)
                return await self._forward()
            except Refused as refused:
                if refused.code != ErrorCode.not_controller:
                    raise
                if self._left_s <= 0:
                    if self._context.cluster.has_session_lease:
                        raise
                    raise Refused(ErrorCode.request_timed_out, _of_store(self._context, _NOT_DONE)) from refused
            except PeerLost as lost:
                may_repeat = isinstance(lost, Unreached) or self._message.API_KEY in _IDEMPOTENT
                if not may_repeat or self._left_s <= 0:
                    log.info("%s was not answered by the controller: %s", self._request.route.api.name, lost)
                    raise Refused(ErrorCode.request_timed_out, _TOO_LATE) from lost
            await asyncio.sleep(RETRY_SECONDS)

    @property
    def _left_s(self) -> float:
        return self._deadline - self._context.runtime.now()

    async def _forward(self) -> bytes:
        key, version = self._message.API_KEY, self._request.version
        body = messages.encode(self._message, version)
        # The connection is shared: if this client times out, requests of others must not fail.
        timeout_s = self._context.config.request_timeout_ms / 1000
        try:
            async with asyncio.timeout(max(self._left_s, 1.0)):
                answer = await self._context.peers.forward(
                    key, version, body, self._request.session, self._request.client_id, timeout_s=timeout_s
                )
        except TimeoutError:
            raise Refused(ErrorCode.request_timed_out, _TOO_LATE) from None
        await catch_up(self._context.cluster)
        return bytes(answer)


@serves(apis.ENVELOPE)
async def envelope(context: Context, message: EnvelopeRequest, request: Request) -> EnvelopeResponse:
    """A client's request that another broker forwards, with the client's principal."""
    if not context.cluster.is_controller:  # the forwarding broker will find the right one
        return EnvelopeResponse(error_code=ErrorCode.not_controller)
    principal = decode_principal(message.request_principal) if message.request_principal else ANONYMOUS
    try:
        address = str(ip_address(message.client_host_address))
    except ValueError:
        address = "?"
    session = Session(request.session.listener_name, principal=principal, address=address, forwarded=True)
    try:
        response = await context.serve_forwarded(memoryview(message.request_data), session)
    except Refused as refused:
        return EnvelopeResponse(error_code=refused.code)
    return EnvelopeResponse(response_data=response)
