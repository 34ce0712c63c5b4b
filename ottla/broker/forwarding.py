"""What only the controller can do, asked of any broker: clients need not know who it is.

A handler under `@by_controller` runs where the controller is. Everywhere else the request is sent on to it, and its
answer passed back; before that this broker's view catches up, so that a client finds here what it has just done.

While the cluster looks for a new controller the request waits, as long as it may. What broke after it had left, and is
not the same when done twice, is not sent again: the client hears that it is not known whether it was done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Final

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, Response, TreeHandler
from ottla.broker.topic_creation import catch_up
from ottla.errors import ErrorCode, Fault, Refused, StorageFault
from ottla.net.outbound import PeerLost, Unreached
from ottla.net.server import Pending
from ottla.wire import apis, messages
from ottla.wire.tree import Message

log = logging.getLogger("ottla.broker")

Forwarded = Callable[[Context, Any, Request], Coroutine[object, object, Response]]

RETRY_SECONDS: Final = 0.1
PATIENCE_SECONDS_MAX: Final = 30.0
"""However long a client says it will wait, it is told after this time."""
_NOT_CONTROLLER: Final = "This is not the correct controller for this cluster."
_TOO_LATE: Final = "The controller did not answer in time."
_IN_DOUBT: Final = "did not answer: whether this was done is not known"
_NOT_DONE: Final = "does not answer, so there is no controller, and nothing was done"
_REPEATABLE: Final = frozenset(
    {
        apis.ALTER_CONFIGS,
        apis.INCREMENTAL_ALTER_CONFIGS,
        apis.ELECT_LEADERS,
        apis.ALTER_PARTITION_REASSIGNMENTS,
        apis.LIST_PARTITION_REASSIGNMENTS,
    }
)
"""Doing it twice is doing it once."""


def by_controller(handler: TreeHandler) -> Forwarded:
    """Have the controller run this handler."""

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
        if not context.cluster.is_controller:  # whoever sent it on will find the right one
            raise Refused(ErrorCode.not_controller, _NOT_CONTROLLER)
        return await here(context, message, request)

    return answered


def _of_store(context: Context, what: str) -> str:
    """With its name, and what can be done about it."""
    store = context.config.ottla_store
    if store.startswith("zookeeper:"):
        mends = f"Start ZooKeeper again, or look at its log and at the network between it and broker {context.id}"
    else:
        mends = f"Look at its disk, and at the log of broker {context.id}"
    return f"The store of the cluster ({store}) {what}. {mends}. Ask again then."


class _Forwarding:
    """One request of a client, until the controller has answered it."""

    def __init__(self, context: Context, message: Message, request: Request, here: Forwarded) -> None:
        self._context = context
        self._message = message
        self._request = request
        self._here = here
        asked_ms = getattr(message, "timeout_ms", context.config.request_timeout_ms)
        self._deadline = context.runtime.now() + min(max(asked_ms / 1000, 0.0), PATIENCE_SECONDS_MAX)

    async def run(self) -> Response:
        while True:
            try:
                if self._context.cluster.is_controller:
                    return await self._here(self._context, self._message, self._request)
                return await self._sent_on()
            except Refused as refused:
                if refused.code != ErrorCode.not_controller:
                    raise
                if self._left_s <= 0:
                    if self._context.cluster.has_session_lease:
                        raise
                    raise Refused(ErrorCode.request_timed_out, _of_store(self._context, _NOT_DONE)) from refused
            except PeerLost as lost:
                may_repeat = isinstance(lost, Unreached) or self._message.API_KEY in _REPEATABLE
                if not may_repeat or self._left_s <= 0:
                    log.info("%s was not answered by the controller: %s", self._request.route.api.name, lost)
                    raise Refused(ErrorCode.request_timed_out, _TOO_LATE) from lost
            await asyncio.sleep(RETRY_SECONDS)

    @property
    def _left_s(self) -> float:
        return self._deadline - self._context.runtime.now()

    async def _sent_on(self) -> bytes:
        key, version = self._message.API_KEY, self._request.version
        body = messages.encode(self._message, version)
        # The connection is shared: that this client waits no longer is no reason to give up what others wait for.
        patience_s = self._context.config.request_timeout_ms / 1000
        try:
            async with asyncio.timeout(max(self._left_s, 1.0)):
                answer = await self._context.peers.forward(
                    key, version, body, self._request.session, self._request.client_id, timeout_s=patience_s
                )
        except TimeoutError:
            raise Refused(ErrorCode.request_timed_out, _TOO_LATE) from None
        await catch_up(self._context.cluster)
        return bytes(answer)
