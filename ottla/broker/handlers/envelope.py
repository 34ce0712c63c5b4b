"""Envelope (KIP-590): a request that a client sent to another broker, which forwards it with the client's principal."""

from __future__ import annotations

from ottla.access.session import ANONYMOUS, Session, decode_principal
from ottla.broker.context import Context
from ottla.broker.dispatch import Request, serves
from ottla.errors import ErrorCode, Refused
from ottla.wire.apis import ENVELOPE
from ottla.wire.schema.envelope import EnvelopeRequest, EnvelopeResponse


@serves(ENVELOPE)
async def handle(context: Context, message: EnvelopeRequest, request: Request) -> EnvelopeResponse:
    if not context.cluster.is_controller:  # whoever forwarded it will find the right one
        return EnvelopeResponse(error_code=ErrorCode.not_controller)
    principal = decode_principal(message.request_principal) if message.request_principal else ANONYMOUS
    address = message.client_host_address.decode("ascii", "replace")
    session = Session(request.session.listener_name, principal=principal, address=address, forwarded=True)
    try:
        response = await context.serve_forwarded(memoryview(message.request_data), session)
    except Refused as refused:
        return EnvelopeResponse(error_code=refused.code)
    return EnvelopeResponse(response_data=response)
