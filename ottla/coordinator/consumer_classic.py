"""Classic members of a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup during a migration (KIP-848).

There is no group leader and no waiting: JoinGroup is answered at once with the member epoch as the generation, and
SyncGroup with the assignment that the coordinator computed. A member that has to revoke partitions, or can get more,
gets REBALANCE_IN_PROGRESS with its next heartbeat, and rejoins; the owned partitions in its subscription show what it
has revoked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ottla.coordinator import conversion
from ottla.coordinator.assignors import EMPTY
from ottla.coordinator.classic_members import new_member_id, protocols_of, rebalance_timeout_ms
from ottla.coordinator.consumer_group_member import ClassicSide, ConsumerMember, MemberState, Timer
from ottla.coordinator.decision import Decision, LogRecord, ReplyTo, answer
from ottla.coordinator.group_context import MemberClient
from ottla.coordinator.reconciliation import waits_for_others
from ottla.errors import BadFrame, ErrorCode, Refused
from ottla.wire.consumer_protocol import PROTOCOL_TYPE, Subscription, decode_subscription
from ottla.wire.schema.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.wire.schema.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.wire.schema.leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse
from ottla.wire.schema.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from ottla.coordinator.consumer_group import ConsumerGroup

MEMBER_ID_REQUIRED_FROM: Final = 4


def join(
    group: ConsumerGroup,
    request: JoinGroupRequest,
    version: int,
    client: MemberClient,
    reply_to: ReplyTo,
    now: float,
    now_ms: int,
) -> Decision:
    member_id = request.member_id or new_member_id(request, client, group.context.new_id())
    group.check_max_size(member_id, request.group_instance_id)
    _check_protocols(group, request)
    if not request.member_id and request.group_instance_id is None and version >= MEMBER_ID_REQUIRED_FROM:
        return answer(reply_to, JoinGroupResponse(error_code=ErrorCode.member_id_required, member_id=member_id))
    records: list[LogRecord] = []
    subscription = _subscription(request)
    old = None if request.group_instance_id is None else group.state.static_member(request.group_instance_id)
    before = _joining_member(group, request, member_id, records)
    after = _updated(before, request, client, subscription)
    if old is not None and old.classic is None:
        left = {member: each for member, each in group.state.members.items() if member != old.id}
        left[after.id] = after
        if conversion.can_downgrade(group, left):
            return Decision(conversion.downgrade(group, left, now_ms), ((reply_to, _joined(after)),))
    owned = conversion.topic_ids(subscription.owned, group.context.image)
    after = group.advance(before, after, owned, records, now_ms)
    group.arm(after, now)
    group.drop_timer(after, Timer.JOIN)
    group.set_timer(after, Timer.SYNC, now + after.rebalance_timeout_ms / 1000)
    return Decision(records, ((reply_to, _joined(after)),))


def _check_protocols(group: ConsumerGroup, request: JoinGroupRequest) -> None:
    """A new member must share an assignor with all classic members: the group may become classic again."""
    names = {protocol.name for protocol in request.protocols}
    for member in group.state.members.values():
        if member.classic is not None and member.id != request.member_id:
            names &= {name for name, _ in member.classic.protocols}
    if request.protocol_type != PROTOCOL_TYPE or not names:
        raise Refused(ErrorCode.inconsistent_group_protocol)


def _subscription(request: JoinGroupRequest) -> Subscription:
    try:
        return decode_subscription(request.protocols[0].metadata)
    except BadFrame as failure:
        raise Refused(ErrorCode.inconsistent_group_protocol, str(failure)) from None


def _joining_member(
    group: ConsumerGroup, request: JoinGroupRequest, member_id: str, records: list[LogRecord]
) -> ConsumerMember:
    instance_id = request.group_instance_id
    if instance_id is None:
        return group.state.members.get(member_id, ConsumerMember(member_id))
    if not request.member_id:
        return group.static_member_for(member_id, instance_id, records, classic=True)
    return group.member(member_id, instance_id)


def _updated(
    before: ConsumerMember, request: JoinGroupRequest, client: MemberClient, subscription: Subscription
) -> ConsumerMember:
    return before._replace(
        instance_id=request.group_instance_id,
        rack_id=subscription.rack or None,
        client_id=client.id,
        client_host=client.host,
        topic_names=frozenset(subscription.topics),
        regex="",
        rebalance_timeout_ms=rebalance_timeout_ms(request),
        server_assignor=None,
        classic=ClassicSide(request.session_timeout_ms, tuple(protocols_of(request))),
    )


def _joined(member: ConsumerMember) -> JoinGroupResponse:
    assert member.classic is not None
    return JoinGroupResponse(
        member_id=member.id,
        generation_id=member.epoch,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=member.classic.protocols[0][0],
    )


def sync(group: ConsumerGroup, request: SyncGroupRequest, reply_to: ReplyTo, now: float) -> Decision:
    member, classic = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
    name, subscription = classic.protocols[0]
    if request.protocol_type not in (None, PROTOCOL_TYPE) or request.protocol_name not in (None, name):
        raise Refused(ErrorCode.inconsistent_group_protocol)
    # A member that has to revoke partitions has rejoined already: it revokes them first, then rejoins once more.
    if group.state.epoch > member.epoch and member.state != MemberState.UNREVOKED:
        _expect_join(group, member, now)
        raise Refused(ErrorCode.rebalance_in_progress)
    group.drop_timer(member, Timer.SYNC)
    group.arm(member, now)
    assignment = conversion.classic_assignment(member.assigned, group.context.image, subscription)
    return answer(
        reply_to,
        SyncGroupResponse(
            protocol_type=request.protocol_type, protocol_name=request.protocol_name, assignment=assignment
        ),
    )


def heartbeat(group: ConsumerGroup, request: HeartbeatRequest, reply_to: ReplyTo, now: float) -> Decision:
    member, _ = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
    group.arm(member, now)
    response = HeartbeatResponse()
    if _should_rejoin(group, member):
        _expect_join(group, member, now)
        response.error_code = ErrorCode.rebalance_in_progress
    return answer(reply_to, response)


def _should_rejoin(group: ConsumerGroup, member: ConsumerMember) -> bool:
    if member.epoch < group.state.epoch or member.state == MemberState.UNREVOKED:
        return True
    target = group.state.targets.get(member.id, EMPTY)
    return member.state == MemberState.UNRELEASED and not waits_for_others(
        member, target, lambda topic, partition: group.state.owner(topic, partition) in (None, member.id)
    )


def _expect_join(group: ConsumerGroup, member: ConsumerMember, now: float) -> None:
    if not group.has_timer(member, Timer.JOIN):
        group.set_timer(member, Timer.JOIN, now + member.rebalance_timeout_ms / 1000)


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[ConsumerMember, ClassicSide]:
    member = group.member(member_id, instance_id)
    if member.classic is None:
        raise Refused(ErrorCode.unknown_member_id, f"Member {member_id} does not use the classic protocol.")
    if generation != member.epoch:
        raise Refused(ErrorCode.illegal_generation)
    return member, member.classic


def leave(group: ConsumerGroup, leavers: Sequence[MemberIdentity], reply_to: ReplyTo, now_ms: int) -> Decision:
    gone: dict[str, ConsumerMember] = {}
    results = []
    for each in leavers:
        result = MemberResponse(member_id=each.member_id, group_instance_id=each.group_instance_id)
        try:
            member = _leaver(group, each)
            gone[member.id] = member
        except Refused as refused:
            result.error_code = refused.code
        results.append(result)
    records = group.fence(gone.values(), now_ms) if gone else []
    return Decision(records, ((reply_to, LeaveGroupResponse(members=results)),))


def _leaver(group: ConsumerGroup, leaver: MemberIdentity) -> ConsumerMember:
    if leaver.member_id or leaver.group_instance_id is None:
        return group.member(leaver.member_id, leaver.group_instance_id)
    member = group.state.static_member(leaver.group_instance_id)  # an administrator removes it
    if member is None:
        raise Refused(ErrorCode.unknown_member_id)
    return member
