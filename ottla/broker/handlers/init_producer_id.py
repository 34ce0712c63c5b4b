"""InitProducerId: an identity under which retries are recognised."""

from __future__ import annotations

import logging

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, serves
from ottla.broker.handlers import txn_producers
from ottla.errors import ErrorCode, Fault
from ottla.wire.apis import INIT_PRODUCER_ID
from ottla.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

log = logging.getLogger("ottla.broker")


@serves(INIT_PRODUCER_ID)
async def handle(context: Context, message: InitProducerIdRequest, request: Request) -> InitProducerIdResponse:
    if message.transactional_id == "":
        return InitProducerIdResponse(error_code=ErrorCode.invalid_request)
    if message.transactional_id is not None:
        return await txn_producers.init(context, message, request)
    try:
        producer_id = await context.producer_ids.take()
    except Fault as fault:
        # As Kafka says it while there is no block of ids to be had: clients try again.
        log.warning("no producer ids: %s", fault)
        return InitProducerIdResponse(error_code=ErrorCode.coordinator_load_in_progress)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
