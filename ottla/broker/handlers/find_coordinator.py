"""FindCoordinator: the coordinator of a group or a transactional id. The first request creates the internal topic.

A coordinator whose partition has too few replicas in sync is returned, and serves requests without writes. Requests
with writes get COORDINATOR_NOT_AVAILABLE, in responses without a message; so the reason is sent here with the address,
in `error_message` beside error code 0.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, serves
from ottla.cluster.image import NO_BROKER, PartitionState
from ottla.coordinator.coordinator_service import CoordinatorService, Interleaved
from ottla.coordinator.transaction_coordinator import TRANSACTIONS_TOPIC
from ottla.errors import ErrorCode
from ottla.wire.apis import FIND_COORDINATOR
from ottla.wire.schema.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

GROUP = 0
TRANSACTION = 1


@serves(FIND_COORDINATOR)
async def find_coordinator(
    context: Context, message: FindCoordinatorRequest, request: Request
) -> FindCoordinatorResponse:
    """One key, or since version 4 several."""
    if message.coordinator_keys:
        keys = Interleaved(message.coordinator_keys)
        found = [await _find(context, message.key_type, key, request) async for key in keys]
        return FindCoordinatorResponse(coordinators=found)
    one = await _find(context, message.key_type, message.key, request)
    return FindCoordinatorResponse(
        error_code=one.error_code, error_message=one.error_message, node_id=one.node_id, host=one.host, port=one.port
    )


async def _find(context: Context, key_type: int, key: str, request: Request) -> Coordinator:
    if key_type not in (GROUP, TRANSACTION):
        return _not_found(key, ErrorCode.invalid_request)
    coordinator = context.coordinators[key_type]
    await coordinator.create_topic()
    index = coordinator.partition_of(key)
    partition = None if index is None else context.image.partition(coordinator.topic, index)
    leader = None if partition is None else context.image.brokers.get(partition.leader)
    endpoint = None if leader is None else leader.endpoint(request.session.listener_name)
    if leader is None or endpoint is None:
        return _not_found(key, ErrorCode.coordinator_not_available, _why_none(coordinator, index, partition))
    assert partition is not None
    warning = _too_few_in_sync(context, coordinator.topic, index or 0, partition)
    return Coordinator(key=key, node_id=leader.id, host=endpoint.host, port=endpoint.port, error_message=warning)


def _too_few_in_sync(context: Context, name: str, index: int, partition: PartitionState) -> str:
    """Why the coordinator cannot write now, if so, and what to do."""
    topic = context.image.topic(name)
    assert topic is not None
    least = context.cluster.rules.min_in_sync(topic.configs)
    if len(partition.in_sync) >= min(least, len(partition.replicas)):
        return ""
    setting = f"min.insync.replicas={least}"
    if name == TRANSACTIONS_TOPIC:
        setting = f"{setting} (from transaction.state.log.min.isr)"
    missing = " or ".join(str(each) for each in partition.replicas if each not in partition.in_sync)
    return (
        f"{name}-{index} has {len(partition.in_sync)} of {len(partition.replicas)} replicas in sync, "
        f"fewer than {setting}: "
        f"start broker {missing}, or `ottla configs set topic {name} min.insync.replicas=1`"
    )


def _why_none(coordinator: CoordinatorService[Any], index: int | None, partition: PartitionState | None) -> str:
    """Why there is no coordinator, and what to do: clients retry without a message of their own."""
    if index is None:
        return coordinator.creation_error or f"{coordinator.topic} is being created"
    partition_name = f"{coordinator.topic}-{index}"
    if partition is None or partition.leader == NO_BROKER:
        held = () if partition is None else partition.in_sync or partition.replicas
        return f"{partition_name} has no leader: start broker {' or '.join(map(str, held))}"
    return f"broker {partition.leader}, the leader of {partition_name}, cannot be reached from this listener now"


def _not_found(key: str, code: ErrorCode, why: str | None = None) -> Coordinator:
    return Coordinator(key=key, node_id=NO_BROKER, host="", port=-1, error_code=code, error_message=why or code.name)
