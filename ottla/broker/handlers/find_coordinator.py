"""FindCoordinator: which broker remembers a group or a transaction. The first who asks has the internal topic made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.coordinators import in_turns
from ottla.broker.dispatch import Request, serves
from ottla.cluster.image import NO_BROKER
from ottla.errors import ErrorCode
from ottla.wire.apis import FIND_COORDINATOR
from ottla.wire.schema.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

GROUP = 0
TRANSACTION = 1


@serves(FIND_COORDINATOR)
async def find_coordinator(
    broker: Broker, message: FindCoordinatorRequest, request: Request
) -> FindCoordinatorResponse:
    """One key (answered at the top), or since version 4 several (answered one by one)."""
    if message.coordinator_keys:
        keys = in_turns(message.coordinator_keys)
        found = [await _find(broker, message.key_type, key, request) async for key in keys]
        return FindCoordinatorResponse(coordinators=found)
    one = await _find(broker, message.key_type, message.key, request)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _find(broker: Broker, key_type: int, key: str, request: Request) -> Coordinator:
    if key_type not in (GROUP, TRANSACTION):
        return _nobody(key, ErrorCode.invalid_request)
    coordinator = broker.coordinators[key_type]
    await coordinator.make_topic()
    index = coordinator.partition_of(key)
    partition = None if index is None else broker.image.partition(coordinator.topic, index)
    leader = None if partition is None else broker.image.brokers.get(partition.leader)
    endpoint = None if leader is None else leader.endpoint(request.listener_name)
    if leader is None or endpoint is None:
        return _nobody(key, ErrorCode.coordinator_not_available)
    return Coordinator(key=key, node_id=leader.id, host=endpoint.host, port=endpoint.port)


def _nobody(key: str, code: ErrorCode) -> Coordinator:
    return Coordinator(key=key, node_id=NO_BROKER, host="", port=-1, error_code=code, error_message=code.name)
