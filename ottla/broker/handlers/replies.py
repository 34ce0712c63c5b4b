"""Responses from the replies of coordinators."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import TypeVar

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, Response
from ottla.coordinator.coordinator_service import Promise
from ottla.coordinator.decision import Reply
from ottla.errors import ErrorCode, Refused
from ottla.net.server import Pending
from ottla.net.server import Reply as Framed
from ottla.wire.refusal import refusal
from ottla.wire.tree import Message

log = logging.getLogger("ottla.coordinator")

M = TypeVar("M", bound=Message)
S = TypeVar("S", bound=Response)


def expect(response: type[M], refused: Callable[[Refused], M]) -> Callable[[Reply], M]:
    """The response out of a reply that is one already, or `Refused`."""

    def shaped(reply: Reply) -> M:
        if isinstance(reply, Refused):
            return refused(reply)
        assert isinstance(reply, response)
        return reply

    return shaped


def refusal_of(response: type[M], message: Message, request: Request, code: ErrorCode) -> M:
    """The response with this error code for everything the request names."""
    found = refusal(message, request.version, code)
    assert isinstance(found, response)
    return found


def respond(promise: Promise, request: Request, shape: Callable[[Reply], S], *, overlaps: bool = False) -> S | Pending:
    """The response that `shape` makes of the reply, now or when the reply comes. `overlaps`: the following requests of
    the connection are served meanwhile."""
    if promise.reply is not None:
        return shape(promise.reply)
    pending = Pending(overlaps=overlaps)

    def answered(reply: Reply) -> None:
        framed = None
        try:
            framed = request.frame(request.route.encode(shape(reply)))
        except Exception as failure:  # this runs among the replies of others
            log.error("%s failed", request.route.api.name, exc_info=failure)
            request.connection.close(f"{request.route.api.name} failed")
        pending.resolve(framed)

    promise.callback = answered
    return pending


def overlapping(context: Context, request: Request, work: Coroutine[object, object, Message]) -> Pending:
    """Respond later, and serve the following requests of the connection meanwhile: this one may wait for
    replication."""
    pending = Pending(overlaps=True)

    async def answer() -> None:
        reply: Framed = None
        try:
            reply = request.frame(request.route.encode(await work))
        except Exception as failure:
            log.error("%s failed", request.route.api.name, exc_info=failure)
            request.connection.close(f"{request.route.api.name} failed")
        finally:
            pending.resolve(reply)

    context.runtime.spawn(answer(), name=request.route.api.name)
    return pending
