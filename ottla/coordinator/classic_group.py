"""Classic group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup; the group leader assigns partitions.

    Empty ---join--> PreparingRebalance ---all joined, or time is up--> CompletingRebalance ---leader syncs--> Stable
      ^                 |       ^                                            |                                  |
      +---none left-----+       +---------- a member joins, leaves, fails or changes its protocols ------------+

A rebalance has two phases. In the join phase every member sends JoinGroup and waits. It completes when all known
members have rejoined, or after the longest rebalance timeout among them, without the missing ones. (A group that was
empty first waits for `group.initial.rebalance.delay.ms`.) All members get the new generation, and the leader also the
list of members. In the sync phase all send SyncGroup, the leader with the assignments; when those are durable, all get
theirs. Between rebalances members send heartbeats; a member without one for its session timeout is removed.

Durable are generations that reached Stable, with their assignments, and the state Empty. A rebalance in progress is
not: after a crash the group has its last durable state, and its members rejoin after UNKNOWN_MEMBER_ID or
ILLEGAL_GENERATION. A static member (KIP-345) that rejoins with a new member id before its session ends keeps its
assignment without a rebalance. Its old member id is fenced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ottla.coordinator.classic_group_data import ClassicGroupData, ClassicGroupState
from ottla.coordinator.classic_members import ClassicMember, new_member_id, protocols_of, rebalance_timeout_ms
from ottla.coordinator.decision import NOTHING, Decision, Outcome, ReplyTo, answer
from ottla.coordinator.group_context import GroupContext, MemberClient
from ottla.coordinator.group_records import GroupMetadataKey
from ottla.errors import ErrorCode, Refused
from ottla.wire.schema.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.wire.schema.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from ottla.wire.schema.leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse
from ottla.wire.schema.sync_group import SyncGroupRequest, SyncGroupResponse

UNKNOWN_MEMBER = ""

MEMBER_ID_REQUIRED_FROM = 4
SKIPS_ASSIGNMENT_FROM = 9

NEW_MEMBER_JOIN_TIMEOUT_S = 300.0
"""A new member has no session yet. If its client has disconnected, it is removed after this time."""
PENDING_MEMBERS_MAX = 10_000
"""Member ids that were given to clients and not used yet."""
AWAY_SECONDS_MIN = 1.0
"""How often a group whose static members are all away is checked, at most."""


_HEALTHY = HeartbeatResponse()
_REBALANCING = HeartbeatResponse(error_code=ErrorCode.rebalance_in_progress)


class ClassicGroup(ClassicGroupData):
    """The state transitions; the durable state is in ClassicGroupData."""

    __slots__ = (
        "_delay_left_s", "_initial", "_join_ends", "_pending", "_sync_ends", "_unsynced", "_widened", "deadline",
    )  # fmt: skip

    def __init__(self, group_id: str, context: GroupContext) -> None:
        super().__init__(group_id, context)
        self._pending: dict[str, float] = {}  # member ids given to clients and not used yet, with their deadlines
        self._unsynced: set[str] = set()  # members of this generation without SyncGroup yet
        self._initial = False  # in the first rebalance since the group was empty
        self._widened = False  # a member joined since the delay began
        self._delay_left_s = 0.0
        self._join_ends: float | None = None
        self._sync_ends: float | None = None
        self.deadline: float | None = None

    @property
    def is_idle(self) -> bool:
        """It has no members, and no member ids that may still be used."""
        return self.state is ClassicGroupState.EMPTY and not self._pending

    # Joining.

    def join(
        self, request: JoinGroupRequest, version: int, client: MemberClient, reply_to: ReplyTo, now: float, now_ms: int
    ) -> Decision:
        out = Outcome()
        if not self._is_below_max_size(request.member_id):
            self._refuse_join(request.member_id, reply_to, now, now_ms, out)
            return out.decision()
        if not self._supports(request):
            raise Refused(ErrorCode.inconsistent_group_protocol)
        if request.member_id in self._pending:
            del self._pending[request.member_id]
            self._add(request, request.member_id, client, reply_to, now, now_ms, out)
        elif request.member_id != UNKNOWN_MEMBER:
            self._rejoin(request, reply_to, now, now_ms, out)
        elif (known := self.members.static(request.group_instance_id)) is not None:
            self._rejoin_static(known, self._new_id(request, client), request, version, reply_to, now, now_ms, out)
        elif request.group_instance_id is None and version >= MEMBER_ID_REQUIRED_FROM:
            return self._require_member_id(request, client, reply_to, now)
        else:
            self._add(request, self._new_id(request, client), client, reply_to, now, now_ms, out)
        return out.decision()

    def _is_below_max_size(self, member_id: str) -> bool:
        most = self._context.config.group_max_size
        if self.state is ClassicGroupState.PREPARING:
            # Rejoined members are counted, so that the last ones are refused if the limit was lowered.
            member = self.members.get(member_id)
            return (member is not None and member.joining is not None) or self.members.joining < most
        return self.state is ClassicGroupState.EMPTY or member_id in self.members or len(self.members) < most

    def _refuse_join(self, member_id: str, reply_to: ReplyTo, now: float, now_ms: int, out: Outcome) -> None:
        self._pending.pop(member_id, None)
        member = self.members.get(member_id)
        if member is not None:
            self._remove(member, out)
        out.reply(reply_to, Refused(ErrorCode.group_max_size_reached))
        if self.state is ClassicGroupState.PREPARING:
            self._complete_if_all_joined(now, now_ms, out)

    def _supports(self, request: JoinGroupRequest) -> bool:
        """Whether the member shares a protocol with all others."""
        if not request.protocol_type or not request.protocols:
            return False
        if self.state is ClassicGroupState.EMPTY:
            return True
        return request.protocol_type == self.protocol_type and any(
            self.members.all_support(each.name) for each in request.protocols
        )

    def _new_id(self, request: JoinGroupRequest, client: MemberClient) -> str:
        return new_member_id(request, client, self._context.new_id())

    def _require_member_id(
        self, request: JoinGroupRequest, client: MemberClient, reply_to: ReplyTo, now: float
    ) -> Decision:
        """The client gets its member id first (KIP-394), so that a retry does not leave an unknown member behind."""
        if len(self._pending) >= PENDING_MEMBERS_MAX:
            raise Refused(ErrorCode.group_max_size_reached)
        member_id = self._new_id(request, client)
        self._pending[member_id] = self._wake_at(now + request.session_timeout_ms / 1000)
        return answer(reply_to, JoinGroupResponse(error_code=ErrorCode.member_id_required, member_id=member_id))

    def _add(
        self,
        request: JoinGroupRequest,
        member_id: str,
        client: MemberClient,
        reply_to: ReplyTo,
        now: float,
        now_ms: int,
        out: Outcome,
    ) -> None:
        member = ClassicMember(
            member_id,
            request.group_instance_id,
            client,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms(request),
            protocols=protocols_of(request),
        )
        member.is_new = True
        member.joining = reply_to
        member.session_ends = self._wake_at(now + NEW_MEMBER_JOIN_TIMEOUT_S)
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members.add(member)
        self._widened = True
        self._rebalance_or_complete(now, now_ms, out)

    def _rejoin(self, request: JoinGroupRequest, reply_to: ReplyTo, now: float, now_ms: int, out: Outcome) -> None:
        member = self.members.check(request.member_id, request.group_instance_id)
        unchanged = list(member.protocols) == protocols_of(request)
        leads = self.members.leader == member.id
        # A leader that rejoins wants a rebalance (it may have seen new partitions); others only if they changed.
        if unchanged and (
            self.state is ClassicGroupState.COMPLETING or (self.state is ClassicGroupState.STABLE and not leads)
        ):
            out.reply(reply_to, self._joined(member, with_members=leads))
            return
        self.members.update(member, request)
        self._delay_join(member, reply_to, out)
        self._rebalance_or_complete(now, now_ms, out)

    def _delay_join(self, member: ClassicMember, reply_to: ReplyTo, out: Outcome) -> None:
        """Only the latest JoinGroup of a member waits: an earlier one came on a connection that was given up."""
        out.reply(self.members.delay_join(member, reply_to), Refused(ErrorCode.rebalance_in_progress))

    def _rejoin_static(
        self,
        member: ClassicMember,
        new_id: str,
        request: JoinGroupRequest,
        version: int,
        reply_to: ReplyTo,
        now: float,
        now_ms: int,
        out: Outcome,
    ) -> None:
        """A static member rejoins with a new member id."""
        fenced = Refused(ErrorCode.fenced_instance_id)
        out.reply(self.members.take_join(member), fenced)
        out.reply(member.syncing, fenced)
        member.syncing = None
        self.members.update(member, request)
        if self.state is ClassicGroupState.STABLE and self.protocol == self.members.select_protocol():
            # Only its member id changes: no rebalance. Durable before the response.
            member.session_ends = self._wake_at(now + member.session_timeout_ms / 1000)
            out.record(GroupMetadataKey(self.id), self.snapshot(renamed=(member.id, new_id)))
            out.reply(reply_to, self._replaced(member, new_id, version))
            return
        self._unsynced.discard(member.id)
        self.members.rename(member, new_id)
        member.session_ends = self._wake_at(now + member.session_timeout_ms / 1000)
        self._delay_join(member, reply_to, out)
        self._rebalance_or_complete(now, now_ms, out)

    def _replaced(self, member: ClassicMember, new_id: str, version: int) -> JoinGroupResponse:
        """A leader that rejoins must not assign, for the group is stable (KIP-814). An old client without
        `skip_assignment` acts as a follower, if the leader's id is not its own."""
        leads = self.members.leader == member.id
        skips = leads and version >= SKIPS_ASSIGNMENT_FROM
        response = self._joined(member, with_members=skips)
        response.member_id = new_id
        response.skip_assignment = skips
        for each in response.members:
            if each.member_id == member.id:
                each.member_id = new_id
        if skips:
            response.leader = new_id
        return response

    def _joined(self, member: ClassicMember, *, with_members: bool) -> JoinGroupResponse:
        members = []
        if with_members:
            members = [
                JoinGroupResponseMember(
                    member_id=each.id, group_instance_id=each.instance_id, metadata=each.metadata(self.protocol)
                )
                for each in self.members
            ]
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type or None,
            protocol_name=self.protocol,
            leader=self.members.leader or "",
            member_id=member.id,
            members=members,
        )

    # Rebalancing.

    def _rebalance_or_complete(self, now: float, now_ms: int, out: Outcome) -> None:
        if self.state is not ClassicGroupState.PREPARING:
            self._prepare(now, now_ms, out)
        else:
            self._complete_if_all_joined(now, now_ms, out)

    def _complete_if_all_joined(self, now: float, now_ms: int, out: Outcome) -> None:
        if self._all_joined and not (self._initial and self.members):
            self._complete_join(now, now_ms, out)

    @property
    def _all_joined(self) -> bool:
        return self.members.joining == len(self.members) and not self._pending

    def _prepare(self, now: float, now_ms: int, out: Outcome) -> None:
        """Begin a rebalance: from now on heartbeats are answered with REBALANCE_IN_PROGRESS."""
        again = Refused(ErrorCode.rebalance_in_progress)
        for member in self.members:
            if member.syncing is not None:
                out.reply(member.syncing, again)
                member.syncing = None
                self._start_session(member, now)
        self._unsynced.clear()
        self._sync_ends = None
        self._initial = self.state is ClassicGroupState.EMPTY
        self._become(ClassicGroupState.PREPARING, now_ms)
        if self._initial:
            delay_s = self._context.config.group_initial_rebalance_delay_ms / 1000
            self._widened = False
            self._delay_left_s = max(self.members.rebalance_timeout_ms / 1000 - delay_s, 0.0)
            self._join_ends = self._wake_at(now + delay_s)
        elif self._all_joined:
            self._complete_join(now, now_ms, out)
        else:
            self._join_ends = self._wake_at(now + self.members.rebalance_timeout_ms / 1000)

    def _join_timed_out(self, now: float, now_ms: int, out: Outcome) -> None:
        if self._initial and self._widened and self._delay_left_s > 0:
            # More members joined during the delay: extend it.
            self._widened = False
            delay_s = min(self._context.config.group_initial_rebalance_delay_ms / 1000, self._delay_left_s)
            self._delay_left_s -= delay_s
            self._join_ends = self._wake_at(now + delay_s)
        else:
            self._complete_join(now, now_ms, out)

    def _complete_join(self, now: float, now_ms: int, out: Outcome) -> None:
        """Complete the join phase with the members that have rejoined, and all static ones."""
        self._join_ends = None
        for member in [each for each in self.members if each.joining is None and each.instance_id is None]:
            self.members.remove(member)
        if self.members and not self.members.elect():
            # Only static members, all away: wait until they rejoin, or their sessions end.
            self._join_ends = self._wake_at(now + max(self.members.rebalance_timeout_ms / 1000, AWAY_SECONDS_MIN))
            return
        self._initial = False
        self.generation = self.generation + 1 if self.generation < 2**31 - 1 else 1
        if not self.members:
            self.protocol = None
            self._become(ClassicGroupState.EMPTY, now_ms)
            out.record(GroupMetadataKey(self.id), self.snapshot())
            return
        self.protocol = self.members.select_protocol()
        self._become(ClassicGroupState.COMPLETING, now_ms)
        self._sync_ends = self._wake_at(now + self.members.rebalance_timeout_ms / 1000)
        for member in self.members:
            self._start_session(member, now)
            member.is_new = False
            self._unsynced.add(member.id)
            joined = self._joined(member, with_members=self.members.leader == member.id)
            out.reply(self.members.take_join(member), joined)

    # Syncing.

    def sync(self, request: SyncGroupRequest, reply_to: ReplyTo, now: float, now_ms: int) -> Decision:
        member = self.members.check(request.member_id, request.group_instance_id)
        if request.generation_id != self.generation:
            raise Refused(ErrorCode.illegal_generation)
        # Null in versions without these fields.
        if request.protocol_type not in (None, self.protocol_type) or request.protocol_name not in (
            None,
            self.protocol,
        ):
            raise Refused(ErrorCode.inconsistent_group_protocol)
        if self.state is ClassicGroupState.PREPARING:
            raise Refused(ErrorCode.rebalance_in_progress)
        self._unsynced.discard(member.id)
        if not self._unsynced:
            self._sync_ends = None
        if self.state is ClassicGroupState.STABLE:
            return answer(reply_to, self._synced(member.assignment))
        out = Outcome()
        out.reply(member.syncing, Refused(ErrorCode.rebalance_in_progress))
        member.syncing = reply_to
        if member.id == self.members.leader:
            self._assign(request, now, out)
        return out.decision()

    def _assign(self, request: SyncGroupRequest, now: float, out: Outcome) -> None:
        """The assignments of the leader. Replay makes the group Stable, and then all waiting members get theirs."""
        assignments = {each.member_id: each.assignment for each in request.assignments}
        out.record(GroupMetadataKey(self.id), self.snapshot(assignments))
        for member in self.members:
            if member.syncing is not None:
                out.reply(member.syncing, self._synced(assignments.get(member.id, b"")))
                member.syncing = None
                self._start_session(member, now)

    def _synced(self, assignment: bytes) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type or None, protocol_name=self.protocol, assignment=assignment
        )

    # Heartbeats and leaving.

    def heartbeat_classic(self, request: HeartbeatRequest, reply_to: ReplyTo, now: float) -> Decision:
        member = self.members.check(request.member_id, request.group_instance_id)
        if request.generation_id != self.generation:
            raise Refused(ErrorCode.illegal_generation)
        member.session_ends = now + member.session_timeout_ms / 1000  # later than before: no need to wake earlier
        return Decision((), ((reply_to, _REBALANCING if self.state is ClassicGroupState.PREPARING else _HEALTHY),))

    def _start_session(self, member: ClassicMember, now: float) -> None:
        member.session_ends = self._wake_at(now + member.session_timeout_ms / 1000)

    def leave(self, members: Sequence[MemberIdentity], reply_to: ReplyTo, now: float, now_ms: int) -> Decision:
        out = Outcome()
        gone = False
        results = []
        for each in members:
            result = MemberResponse(member_id=each.member_id, group_instance_id=each.group_instance_id)
            try:
                self._leave(each, out)
                gone = True
            except Refused as refused:
                result.error_code = refused.code
            results.append(result)
        out.reply(reply_to, LeaveGroupResponse(members=results))
        if gone and self.state is not ClassicGroupState.EMPTY:
            self._rebalance_or_complete(now, now_ms, out)
        return out.decision()

    def _leave(self, leaver: MemberIdentity, out: Outcome) -> None:
        if leaver.member_id in self._pending:
            del self._pending[leaver.member_id]
            return
        if leaver.member_id == UNKNOWN_MEMBER:  # an administrator removes a static member
            member = self.members.static(leaver.group_instance_id)
            if member is None:
                raise Refused(ErrorCode.unknown_member_id)
        else:
            member = self.members.check(leaver.member_id, leaver.group_instance_id)
        self._remove(member, out)

    def _remove(self, member: ClassicMember, out: Outcome) -> None:
        unknown = Refused(ErrorCode.unknown_member_id)
        out.reply(self.members.take_join(member), unknown)
        out.reply(member.syncing, unknown)
        self._unsynced.discard(member.id)
        self.members.remove(member)

    # Time.

    def _wake_at(self, when: float) -> float:
        if self.deadline is None or when < self.deadline:
            self.deadline = when
        return when

    def expire(self, now: float, now_ms: int) -> Decision:
        if self.deadline is None or now < self.deadline:
            return NOTHING
        out = Outcome()
        self._expire_members(now, now_ms, out)
        if self._join_ends is not None and self._join_ends <= now:
            self._join_timed_out(now, now_ms, out)
        if self._sync_ends is not None and self._sync_ends <= now:
            self._sync_timed_out(now, now_ms, out)
        times = [ends for ends in (self._join_ends, self._sync_ends) if ends is not None]
        times += [member.session_ends for member in self.members if member.session_ends is not None]
        times += self._pending.values()
        self.deadline = min(times, default=None)
        return out.decision()

    def _expire_members(self, now: float, now_ms: int, out: Outcome) -> None:
        overdue = [member_id for member_id, ends in self._pending.items() if ends <= now]
        for member_id in overdue:
            del self._pending[member_id]
        failed = 0
        for member in [each for each in self.members if each.session_ends is not None and each.session_ends <= now]:
            if not member.is_new and (member.joining is not None or member.syncing is not None):
                member.session_ends = None  # its request waits; the timer starts again with the response
                continue
            self._remove(member, out)
            failed += 1
        if failed and self.state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING):
            self._prepare(now, now_ms, out)
        elif (failed or overdue) and self.state is ClassicGroupState.PREPARING:
            self._complete_if_all_joined(now, now_ms, out)

    def _sync_timed_out(self, now: float, now_ms: int, out: Outcome) -> None:
        """Remove members that have joined and not sent SyncGroup within the rebalance timeout."""
        self._sync_ends = None
        for member_id in self._unsynced:
            member = self.members.get(member_id)
            if member is not None:
                self.members.remove(member)
        if self._unsynced:
            self._prepare(now, now_ms, out)

    def rebalance(self, now: float, now_ms: int) -> Decision:
        """Begin a rebalance from outside."""
        out = Outcome()
        if self.state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING):
            self._prepare(now, now_ms, out)
        return out.decision()

    def settle(self, now: float, now_ms: int) -> Decision:
        for member in self.members:
            if member.session_ends is None and member.joining is None and member.syncing is None:
                self._start_session(member, now)
        leaderless = self.members and self.members.leader is None  # it was downgraded from a consumer group
        if leaderless or len(self.members) > self._context.config.group_max_size:
            return self.rebalance(now, now_ms)
        return NOTHING

    def pending_replies(self) -> Iterable[ReplyTo]:
        for member in self.members:
            if member.joining is not None:
                yield member.joining
            if member.syncing is not None:
                yield member.syncing
