"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup (the classic protocol); DescribeGroups, ListGroups, DeleteGroups.

The state machine of the group's shard decides. A response to JoinGroup or SyncGroup may take long; the following
requests of its connection wait for it.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, Response, serves
from ottla.broker.handlers.replies import expect, respond
from ottla.coordinator.coordinator_service import Interleaved, Promise
from ottla.coordinator.decision import Reply
from ottla.coordinator.group_context import MemberClient
from ottla.errors import ErrorCode, Refused
from ottla.net.server import Pending
from ottla.wire.acl import GROUP_OPERATIONS, NOT_ASKED
from ottla.wire.apis import DELETE_GROUPS, DESCRIBE_GROUPS, HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, LIST_GROUPS, SYNC_GROUP
from ottla.wire.schema.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from ottla.wire.schema.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from ottla.wire.schema.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.wire.schema.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.wire.schema.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from ottla.wire.schema.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.wire.schema.sync_group import SyncGroupRequest, SyncGroupResponse
from ottla.wire.tree import Message

Answer = Response | Pending

NAMES_PROTOCOL_FROM = 5
"""From this version of SyncGroup on a member has to name the group's protocol."""
NOT_FOUND_FROM = 6
"""From this version of DescribeGroups on an unknown group is an error; before, its state is Dead."""


def client_of(request: Request) -> MemberClient:
    return MemberClient(request.client_id or "", f"/{request.session.address}")


def check_group_id(group_id: str) -> None:
    if not group_id:
        raise Refused(ErrorCode.invalid_group_id)


@serves(JOIN_GROUP)
def join(context: Context, message: JoinGroupRequest, request: Request) -> Answer:
    shaped = expect(
        JoinGroupResponse, lambda refused: JoinGroupResponse(error_code=refused.code, member_id=message.member_id)
    )
    config = context.config
    timeout_ms = message.session_timeout_ms
    if not message.group_id:
        return shaped(Refused(ErrorCode.invalid_group_id))
    if not config.group_min_session_timeout_ms <= timeout_ms <= config.group_max_session_timeout_ms:
        return shaped(Refused(ErrorCode.invalid_session_timeout))
    promise = context.groups.ask(
        message.group_id,
        lambda groups, to, now, now_ms: groups.join(message, request.version, client_of(request), to, now, now_ms),
    )
    return respond(promise, request, shaped)


@serves(SYNC_GROUP)
def sync(context: Context, message: SyncGroupRequest, request: Request) -> Answer:
    unnamed = message.protocol_type is None or message.protocol_name is None
    if unnamed and request.version >= NAMES_PROTOCOL_FROM:
        return SyncGroupResponse(error_code=ErrorCode.inconsistent_group_protocol)
    check_group_id(message.group_id)
    promise = context.groups.ask(
        message.group_id, lambda groups, to, now, now_ms: groups.sync(message, to, now, now_ms)
    )
    return respond(promise, request, _synced)


_synced = expect(SyncGroupResponse, lambda refused: SyncGroupResponse(error_code=refused.code))


@serves(HEARTBEAT)
def heartbeat(context: Context, message: HeartbeatRequest, request: Request) -> Answer:
    check_group_id(message.group_id)
    promise = context.groups.ask(
        message.group_id, lambda groups, to, now, now_ms: groups.heartbeat(message, to, now), current=False
    )
    return respond(promise, request, _heartbeat)


_heartbeat = expect(HeartbeatResponse, lambda refused: HeartbeatResponse(error_code=refused.code))


@serves(LEAVE_GROUP)
def leave(context: Context, message: LeaveGroupRequest, request: Request) -> Answer:
    only_one = not message.members  # before version 3
    if only_one:
        message.members = [MemberIdentity(member_id=message.member_id)]

    def shaped(reply: Reply) -> Message:
        if isinstance(reply, Refused):
            return LeaveGroupResponse(error_code=reply.code)
        assert isinstance(reply, LeaveGroupResponse)
        if only_one:
            reply.error_code = reply.members[0].error_code
        return reply

    check_group_id(message.group_id)
    promise = context.groups.ask(
        message.group_id, lambda groups, to, now, now_ms: groups.leave(message, to, now, now_ms)
    )
    return respond(promise, request, shaped)


@serves(DESCRIBE_GROUPS)
async def describe(context: Context, message: DescribeGroupsRequest, request: Request) -> DescribeGroupsResponse:
    described = []
    async for group_id in Interleaved(message.groups):
        try:
            group = await _describe(context, group_id)
        except Refused as refused:
            group = DescribedGroup(error_code=refused.code, group_id=group_id)
        if group.error_code == ErrorCode.group_id_not_found and request.version < NOT_FOUND_FROM:
            group.error_code = ErrorCode.none
        group.authorized_operations = GROUP_OPERATIONS if message.include_authorized_operations else NOT_ASKED
        described.append(group)
    return DescribeGroupsResponse(groups=described)


def _describe(context: Context, group_id: str) -> Awaitable[DescribedGroup]:
    return context.groups.look(group_id, lambda groups: groups.describe(group_id))


@serves(LIST_GROUPS)
async def list_groups(context: Context, message: ListGroupsRequest, request: Request) -> ListGroupsResponse:
    lists = await context.groups.look_at_all(lambda groups: groups.list(message.states_filter, message.types_filter))
    return ListGroupsResponse(groups=[group for each in lists for group in each])


@serves(DELETE_GROUPS)
async def delete(context: Context, message: DeleteGroupsRequest, request: Request) -> DeleteGroupsResponse:
    results = []
    async for group_id in Interleaved(message.groups_names):
        reply = await _delete(context, group_id).answered()
        if isinstance(reply, Refused):
            reply = DeletableGroupResult(group_id=group_id, error_code=reply.code)
        assert isinstance(reply, DeletableGroupResult)
        results.append(reply)
    return DeleteGroupsResponse(results=results)


def _delete(context: Context, group_id: str) -> Promise:
    return context.groups.ask(group_id, lambda groups, to, now, now_ms: groups.delete(group_id, to))
