"""UnregisterBroker: forget a broker that is gone for good.

Here a registration ends with its broker's session, so there is never one to be forgotten. A broker that is alive is not
taken out of the cluster by a client's word.
"""

from __future__ import annotations

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, serves
from ottla.errors import ErrorCode
from ottla.wire.apis import UNREGISTER_BROKER
from ottla.wire.schema.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


@serves(UNREGISTER_BROKER)
async def handle(context: Context, message: UnregisterBrokerRequest, request: Request) -> UnregisterBrokerResponse:
    await context.cluster.catch_up()  # the broker that is asked may have registered, or gone, a moment ago
    if message.broker_id in context.image.brokers:
        return UnregisterBrokerResponse(
            error_code=ErrorCode.invalid_request,
            error_message=f"Broker {message.broker_id} is alive. Stop it: its registration ends with it.",
        )
    return UnregisterBrokerResponse(
        error_code=ErrorCode.broker_id_not_registered,
        error_message=f"Broker ID {message.broker_id} is not currently registered",
    )
