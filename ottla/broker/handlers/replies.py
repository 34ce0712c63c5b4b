"""Replies of coordinators as responses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import TypeVar

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, Response
from ottla.coordinator.coordinator_service import Promise
from ottla.coordinator.decision import Reply
from ottla.net.server import Pending
from ottla.net.server import Reply as Framed
from ottla.wire.tree import Message

log = logging.getLogger("ottla.coordinator")

S = TypeVar("S", bound=Response)


def respond(promise: Promise, request: Request, shape: Callable[[Reply], S]) -> S | Pending:
    """The answer in the shape the API wants it, now or when it is there."""
    if promise.reply is not None:
        return shape(promise.reply)
    pending = Pending()

    def answered(reply: Reply) -> None:
        framed = None
        try:
            framed = request.frame(request.route.encode(shape(reply)))
        except Exception as failure:  # others wait for their answers, and the loop for us
            log.error("%s failed", request.route.api.name, exc_info=failure)
            request.connection.close(f"{request.route.api.name} failed")
        pending.resolve(framed)

    promise.callback = answered
    return pending


def overlapping(context: Context, request: Request, work: Coroutine[object, object, Message]) -> Pending:
    """Answer later, and let other brokers' questions on the same connection pass: this one may wait for replication."""
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
