"""The classic group protocol: members choose a leader, and the leader deals out the work.

    Empty ---join--> PreparingRebalance ---all joined, or time is up--> CompletingRebalance ---leader syncs--> Stable
      ^                 |       ^                                            |                                  |
      +---none left-----+       +------------- a member joins, leaves, fails or changes its mind --------------+

A rebalance has two phases. In the first every member sends JoinGroup and waits; it completes as soon as all known
members have come back, and at the latest after the longest rebalance timeout among them, without those that have not.
(A group that was empty waits a moment for more members first.) Everybody learns the new generation, the leader also
who the others are. In the second all send SyncGroup, the leader with what each shall do; when that is durable, all are
told. Between rebalances members send heartbeats, and one that has been silent for its session timeout is put out.

Durable are the generations that reached Stable, with their assignments, and that the group became Empty. A rebalance
under way is not: after a crash the group is what it was before, and its members, told that they or their generation
are unknown, join again. A static member (KIP-345) keeps its place over restarts: when it comes back with a new member
id before its session ends, nobody else notices. The old id is fenced from then on.
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

TELLS_MEMBER_ID_FROM = 4
SKIPS_ASSIGNMENT_FROM = 9

NEW_MEMBER_JOIN_TIMEOUT_S = 300.0
"""A new member has no session yet. Its client may have gone and come back under other ids: those are given up."""
PENDING_MEMBERS_MAX = 10_000
"""Ids that were given out and not used yet."""
AWAY_SECONDS_MIN = 1.0
"""So often at most a group looks for its static members that are all away, however little time they ask for."""


_HEALTHY = HeartbeatResponse()
_REBALANCING = HeartbeatResponse(error_code=ErrorCode.rebalance_in_progress)


class ClassicGroup(ClassicGroupData):
    """The transitions; what the group is, and what the log says of it, stands in ClassicGroupData."""

    __slots__ = (
        "_delay_left_s", "_initial", "_join_ends", "_pending", "_sync_ends", "_unsynced", "_widened", "deadline",
    )  # fmt: skip

    def __init__(self, group_id: str, context: GroupContext) -> None:
        super().__init__(group_id, context)
        self._pending: dict[str, float] = {}  # members that were told their id and have not joined with it: until when
        self._unsynced: set[str] = set()  # members of this generation that have not asked for their assignment
        self._initial = False  # preparing the first generation since the group was empty
        self._widened = False  # somebody joined since the delay began
        self._delay_left_s = 0.0
        self._join_ends: float | None = None
        self._sync_ends: float | None = None
        self.deadline: float | None = None

    @property
    def is_idle(self) -> bool:
        """Nobody is in it or about to be."""
        return self.state is ClassicGroupState.EMPTY and not self._pending

    # Joining.

    def join(
        self, request: JoinGroupRequest, version: int, client: MemberClient, reply_to: ReplyTo, now: float, now_ms: int
    ) -> Decision:
        out = Outcome()
        if not self._has_room(request.member_id):
            self._turn_away(request.member_id, reply_to, now, now_ms, out)
            return out.decision()
        if not self._speaks(request):
            raise Refused(ErrorCode.inconsistent_group_protocol)
        if request.member_id in self._pending:
            del self._pending[request.member_id]
            self._add(request, request.member_id, client, reply_to, now, now_ms, out)
        elif request.member_id != UNKNOWN_MEMBER:
            self._rejoin(request, reply_to, now, now_ms, out)
        elif (known := self.members.static(request.group_instance_id)) is not None:
            self._return(known, self._new_id(request, client), request, version, reply_to, now, now_ms, out)
        elif request.group_instance_id is None and version >= TELLS_MEMBER_ID_FROM:
            return self._tell_id(request, client, reply_to, now)
        else:
            self._add(request, self._new_id(request, client), client, reply_to, now, now_ms, out)
        return out.decision()

    def _has_room(self, member_id: str) -> bool:
        most = self._context.config.group_max_size
        if self.state is ClassicGroupState.PREPARING:
            # Those that wait are counted, so that the last to return are turned away if the limit was lowered.
            member = self.members.get(member_id)
            return (member is not None and member.joining is not None) or self.members.joining < most
        return self.state is ClassicGroupState.EMPTY or member_id in self.members or len(self.members) < most

    def _turn_away(self, member_id: str, reply_to: ReplyTo, now: float, now_ms: int, out: Outcome) -> None:
        self._pending.pop(member_id, None)
        member = self.members.get(member_id)
        if member is not None:
            self._remove(member, out)
        out.reply(reply_to, Refused(ErrorCode.group_max_size_reached))
        if self.state is ClassicGroupState.PREPARING:
            self._complete_if_all_joined(now, now_ms, out)

    def _speaks(self, request: JoinGroupRequest) -> bool:
        """Whether a member can talk to all others."""
        if not request.protocol_type or not request.protocols:
            return False
        if self.state is ClassicGroupState.EMPTY:
            return True
        return request.protocol_type == self.protocol_type and any(
            self.members.all_speak(each.name) for each in request.protocols
        )

    def _new_id(self, request: JoinGroupRequest, client: MemberClient) -> str:
        return new_member_id(request, client, self._context.new_id())

    def _tell_id(self, request: JoinGroupRequest, client: MemberClient, reply_to: ReplyTo, now: float) -> Decision:
        """The id goes first, so that a client which gives up and tries again does not leave a ghost in the group."""
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
        # A leader that joins again wants a rebalance (it may have seen new partitions); others only if they changed.
        if unchanged and (
            self.state is ClassicGroupState.COMPLETING or (self.state is ClassicGroupState.STABLE and not leads)
        ):
            out.reply(reply_to, self._joined(member, with_members=leads))
            return
        self.members.update(member, request)
        self._park_join(member, reply_to, out)
        self._rebalance_or_complete(now, now_ms, out)

    def _park_join(self, member: ClassicMember, reply_to: ReplyTo, out: Outcome) -> None:
        """Only the latest request of a member waits: an earlier one comes from a connection it has given up."""
        out.reply(self.members.park_join(member, reply_to), Refused(ErrorCode.rebalance_in_progress))

    def _return(
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
        """A static member is back under a new id."""
        fenced = Refused(ErrorCode.fenced_instance_id)
        out.reply(self.members.take_join(member), fenced)
        out.reply(member.syncing, fenced)
        member.syncing = None
        self.members.update(member, request)
        if self.state is ClassicGroupState.STABLE and self.protocol == self.members.select_protocol():
            # Its id is all that changes: nobody else needs to know. Durable before it is told.
            member.session_ends = self._wake_at(now + member.session_timeout_ms / 1000)
            out.record(GroupMetadataKey(self.id), self.snapshot(renamed=(member.id, new_id)))
            out.reply(reply_to, self._replaced(member, new_id, version))
            return
        self._unsynced.discard(member.id)
        self.members.rename(member, new_id)
        member.session_ends = self._wake_at(now + member.session_timeout_ms / 1000)
        self._park_join(member, reply_to, out)
        self._rebalance_or_complete(now, now_ms, out)

    def _replaced(self, member: ClassicMember, new_id: str, version: int) -> JoinGroupResponse:
        """A leader that is back must not assign: the group is stable. A client too old to be told takes itself for a
        follower, if it does not see its own id as the leader's."""
        leads = self.members.leader == member.id
        told = leads and version >= SKIPS_ASSIGNMENT_FROM
        response = self._joined(member, with_members=told)
        response.member_id = new_id
        response.skip_assignment = told
        for each in response.members:
            if each.member_id == member.id:
                each.member_id = new_id
        if told:
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
        """Begin a rebalance: from now on members are told to join again."""
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
            # More members came while the group waited: there may be more to come.
            self._widened = False
            delay_s = min(self._context.config.group_initial_rebalance_delay_ms / 1000, self._delay_left_s)
            self._delay_left_s -= delay_s
            self._join_ends = self._wake_at(now + delay_s)
        else:
            self._complete_join(now, now_ms, out)

    def _complete_join(self, now: float, now_ms: int, out: Outcome) -> None:
        """Go on with those who are there. Static members that have not come back keep their place."""
        self._join_ends = None
        for member in [each for each in self.members if each.joining is None and each.instance_id is None]:
            self.members.remove(member)
        if self.members and not self.members.elect():
            # Only static members, all away: wait until they are back, or their sessions end.
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
        told = (request.protocol_type, request.protocol_name)  # null: a version that does not say
        if told[0] not in (None, self.protocol_type) or told[1] not in (None, self.protocol):
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
        """The leader has spoken. Everybody is told once it is durable: replay makes the group Stable."""
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

    # Staying and leaving.

    def heartbeat_classic(self, request: HeartbeatRequest, reply_to: ReplyTo, now: float) -> Decision:
        member = self.members.check(request.member_id, request.group_instance_id)
        if request.generation_id != self.generation:
            raise Refused(ErrorCode.illegal_generation)
        member.session_ends = now + member.session_timeout_ms / 1000  # only ever later: no need to wake earlier
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
                member.session_ends = None  # it waits for us; its time starts again when it is answered
                continue
            self._remove(member, out)
            failed += 1
        if failed and self.state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING):
            self._prepare(now, now_ms, out)
        elif (failed or overdue) and self.state is ClassicGroupState.PREPARING:
            self._complete_if_all_joined(now, now_ms, out)

    def _sync_timed_out(self, now: float, now_ms: int, out: Outcome) -> None:
        """Members that joined and never asked for their assignment hold up nobody for longer than a rebalance."""
        self._sync_ends = None
        for member_id in self._unsynced:
            member = self.members.get(member_id)
            if member is not None:
                self.members.remove(member)
        if self._unsynced:
            self._prepare(now, now_ms, out)

    def rebalance(self, now: float, now_ms: int) -> Decision:
        """Somebody outside knows that the assignment is no longer good."""
        out = Outcome()
        if self.state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING):
            self._prepare(now, now_ms, out)
        return out.decision()

    def settle(self, now: float, now_ms: int) -> Decision:
        for member in self.members:
            if member.session_ends is None and member.joining is None and member.syncing is None:
                self._start_session(member, now)
        leaderless = self.members and self.members.leader is None  # it was a consumer group until now
        if leaderless or len(self.members) > self._context.config.group_max_size:
            return self.rebalance(now, now_ms)
        return NOTHING

    def parked(self) -> Iterable[ReplyTo]:
        for member in self.members:
            if member.joining is not None:
                yield member.joining
            if member.syncing is not None:
                yield member.syncing
