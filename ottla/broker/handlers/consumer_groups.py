"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: the consumer group protocol (KIP-848)."""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, Response, serves
from ottla.broker.handlers.groups import client_of
from ottla.broker.handlers.replies import expect, respond
from ottla.config.broker_config import BrokerConfig
from ottla.coordinator.assignors import ASSIGNORS
from ottla.coordinator.consumer_group_member import JOINING, LEAVING, LEAVING_STATIC
from ottla.coordinator.coordinator_service import Interleaved
from ottla.errors import ErrorCode, Refused
from ottla.net.server import Pending
from ottla.wire.acl import GROUP_OPERATIONS, NOT_ASKED
from ottla.wire.apis import CONSUMER_GROUP_DESCRIBE, CONSUMER_GROUP_HEARTBEAT
from ottla.wire.schema.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from ottla.wire.schema.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

MEMBER_ID_FROM_CLIENT_FROM = 1
PROTOCOL = "consumer"


@serves(CONSUMER_GROUP_HEARTBEAT)
def heartbeat(context: Context, message: ConsumerGroupHeartbeatRequest, request: Request) -> Response | Pending:
    check_heartbeat(message, request.version, context.config)
    promise = context.groups.ask(
        message.group_id,
        lambda groups, to, now, now_ms: groups.consumer_heartbeat(message, client_of(request), to, now, now_ms),
    )
    return respond(promise, request, _heartbeat)


_heartbeat = expect(
    ConsumerGroupHeartbeatResponse,
    lambda refused: ConsumerGroupHeartbeatResponse(error_code=refused.code, error_message=refused.message),
)


def check_heartbeat(message: ConsumerGroupHeartbeatRequest, version: int, config: BrokerConfig) -> None:
    """Checks that do not depend on the group."""
    if PROTOCOL not in config.group_coordinator_rebalance_protocols:
        raise Refused(ErrorCode.unsupported_version, "The consumer group protocol is not enabled.")
    if not message.group_id:
        raise _invalid("GroupId can't be empty.")
    needs_member_id = version >= MEMBER_ID_FROM_CLIENT_FROM or message.member_epoch != JOINING
    if needs_member_id and not message.member_id:
        raise _invalid("MemberId can't be empty.")
    if message.instance_id == "":
        raise _invalid("InstanceId can't be empty.")
    if message.rack_id == "":
        raise _invalid("RackId can't be empty.")
    if message.member_epoch < LEAVING_STATIC:
        raise _invalid(f"MemberEpoch is {message.member_epoch}, but must be greater than or equal to -2.")
    if message.member_epoch == LEAVING_STATIC and message.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    if message.member_epoch == JOINING:
        _check_joining(message)
    if message.member_epoch not in (LEAVING, LEAVING_STATIC) and message.server_assignor is not None:
        known = [name for name in config.group_consumer_assignors if name in ASSIGNORS]
        if message.server_assignor not in known:
            raise Refused(
                ErrorCode.unsupported_assignor,
                f"ServerAssignor {message.server_assignor} is not supported. Supported assignors: {', '.join(known)}.",
            )


def _check_joining(message: ConsumerGroupHeartbeatRequest) -> None:
    """A member that joins sends all fields, and owns no partitions."""
    if message.rebalance_timeout_ms == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if message.topic_partitions is None or message.topic_partitions:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if message.subscribed_topic_names is None and message.subscribed_topic_regex is None:
        raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")


def _invalid(text: str) -> Refused:
    return Refused(ErrorCode.invalid_request, text)


@serves(CONSUMER_GROUP_DESCRIBE)
async def describe(
    context: Context, message: ConsumerGroupDescribeRequest, request: Request
) -> ConsumerGroupDescribeResponse:
    described = []
    async for group_id in Interleaved(message.group_ids):
        try:
            if not group_id:
                raise Refused(ErrorCode.invalid_group_id)
            group = await _describe(context, group_id)
        except Refused as refused:
            group = DescribedGroup(error_code=refused.code, error_message=refused.message, group_id=group_id)
        group.authorized_operations = GROUP_OPERATIONS if message.include_authorized_operations else NOT_ASKED
        described.append(group)
    return ConsumerGroupDescribeResponse(groups=described)


def _describe(context: Context, group_id: str) -> Awaitable[DescribedGroup]:
    return context.groups.look(group_id, lambda groups: groups.consumer_describe(group_id))
