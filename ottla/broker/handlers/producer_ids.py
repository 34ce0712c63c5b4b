"""InitProducerId: an identity under which retries are recognised."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.broker.dispatch import Request, serves
from ottla.broker.handlers import transactions
from ottla.errors import ErrorCode, Fault
from ottla.wire.apis import INIT_PRODUCER_ID
from ottla.wire.schema.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

log = logging.getLogger("ottla.broker")


class ProducerIds:
    """Hands out ids from a block that is this broker's alone; takes the next block when it is used up."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._block = iter(range(0))

    async def take(self) -> int:
        while True:
            found = next(self._block, None)
            if found is not None:
                return found
            self._block = iter(await self._broker.cluster.allocate_producer_ids())


@serves(INIT_PRODUCER_ID)
async def handle(broker: Broker, message: InitProducerIdRequest, request: Request) -> InitProducerIdResponse:
    if message.transactional_id == "":
        return InitProducerIdResponse(error_code=ErrorCode.invalid_request)
    if message.transactional_id is not None:
        return await transactions.init(broker, message, request)
    try:
        producer_id = await broker.producer_ids.take()
    except Fault as fault:
        # As Kafka says it while there is no block of ids to be had: clients try again.
        log.warning("no producer ids: %s", fault)
        return InitProducerIdResponse(error_code=ErrorCode.coordinator_load_in_progress)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
