"""Member of a classic group (JoinGroup, SyncGroup, Heartbeat), pure.

Who speaks: members with the coordinator only. In a rebalance every member sends JoinGroup. The coordinator delays the
answers until all members have joined (or the rebalance timeout is over), and begins a new generation. One member, the
leader, gets the subscriptions of all; it computes the assignment and sends it with its SyncGroup; the coordinator
passes each member its part. Between rebalances members send heartbeats, whose answers also say that a new one began.

    UNJOINED ──► JOINING ──► SYNCING ──► STABLE ──► JOINING …
                    └► COUNTING ┘  (the leader: how many partitions has each topic?)
    any of them ──► LEAVING ──► UNJOINED or closed

Eager members give up all partitions before they join. Cooperative members (KIP-429) join with what they own, go on
reading it, give up afterwards only what they no longer have, and then rejoin, so that it can be assigned to others.

What can be lost: nothing here is durable. A member that the coordinator does not know any more (its session expired,
or another member took its instance id) loses its partitions without a callback for revocation, and rejoins. A static
member (KIP-345) has an instance id, under which it comes back within the session timeout and finds its partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

from ottla.client.core.find_coordinator import COORDINATOR_MOVED
from ottla.client.core.requests import code_of
from ottla.client.group.assignors import Assignor
from ottla.client.group.member import Action, CountPartitions, Lose, MemberMachine, MemberSettings, Revoke
from ottla.client.values import TopicPartition
from ottla.errors import RETRIABLE, BadFrame, ErrorCode
from ottla.wire.consumer_protocol import (
    NO_GENERATION,
    PROTOCOL_TYPE,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from ottla.wire.schema.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.wire.schema.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ottla.wire.schema.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from ottla.wire.schema.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from ottla.wire.tree import Message

JOIN_SLACK_MS: Final = 5_000
"""How long the response to a JoinGroup may take beyond the rebalance timeout."""
FORGOTTEN: Final = frozenset({ErrorCode.unknown_member_id, ErrorCode.illegal_generation})
"""The coordinator has removed this member: its partitions belong, or may soon belong, to other members."""
COMMIT_REFUSALS: Final = FORGOTTEN | COORDINATOR_MOVED | {ErrorCode.rebalance_in_progress, ErrorCode.fenced_instance_id}


class ClassicState(Enum):
    UNJOINED = "unjoined"
    JOINING = "joining"
    COUNTING = "counting"
    SYNCING = "syncing"
    STABLE = "stable"
    LEAVING = "leaving"


HEARTBEATING: Final = frozenset({ClassicState.COUNTING, ClassicState.STABLE})
"""While JoinGroup or SyncGroup wait for an answer, the coordinator knows that the member lives."""


class ClassicMember(MemberMachine):
    def __init__(self, settings: MemberSettings, assignors: Sequence[Assignor]) -> None:
        super().__init__(settings)
        self.assignors = {assignor.name: assignor for assignor in assignors}
        self.cooperative = all(assignor.cooperative for assignor in assignors)
        self.state = ClassicState.UNJOINED
        self.topics: frozenset[str] = frozenset()
        self.generation = NO_GENERATION
        self.leader = False
        self.protocol_name = ""
        self._rejoin_reason: str | None = None
        """Why a rejoin is wanted; None if it is not."""
        self._assigned: tuple[frozenset[TopicPartition], int] = (frozenset(), NO_GENERATION)
        """The last assignment and its generation: what sticky members remember."""
        self._coming: frozenset[TopicPartition] = frozenset()
        """Assigned, to be taken when those that go are given up."""
        self._members: dict[str, Subscription] = {}
        self._counting: CountPartitions | None = None
        self._counts: Mapping[str, int] = {}
        self._heartbeat: Message | None = None
        self._heartbeat_at = 0.0

    @property
    def watched_topics(self) -> frozenset[str]:
        """Topics whose number of partitions matters here: for the leader, all subscribed topics of the group."""
        return self.topics.union(self._counts)

    # What happened.

    def subscribe(self, topics: Collection[str], now: float) -> list[Action]:
        if not topics:
            return self.unsubscribe(now)
        self._polled_at = now
        if frozenset(topics) != self.topics:
            self.topics = frozenset(topics)
            self._leave_requested = self._closing
            self._request_rejoin("the subscription has changed")
        return self._decided(now)

    def counted(self, asked: CountPartitions, counts: Mapping[str, int], now: float) -> list[Action]:
        """The partitions of each topic that exists, for the leader."""
        if asked is self._counting and self.state is ClassicState.COUNTING:
            self._counting = None
            self._counts = {topic: counts.get(topic, 0) for topic in asked.topics}
            self._sync(self._share_out(counts))
        return self._decided(now)

    def metadata_changed(self, counts: Mapping[str, int], now: float) -> list[Action]:
        """Fresh numbers of partitions, of `watched_topics` at least. When they change, the leader rejoins."""
        if self.leader and any(counts.get(topic, 0) != count for topic, count in self._counts.items()):
            self._request_rejoin("the partitions of a topic have changed")
        return self._decided(now)

    def commit_refused(self, code: ErrorCode, generation: int, now: float) -> list[Action]:
        """A commit, made in this generation, shows as well as a heartbeat that the group has moved on."""
        if code in COMMIT_REFUSALS and generation == self.generation and self.state in HEARTBEATING:
            self._refused(code, now)
        return self._decided(now)

    def _answered(self, request: Message, response: Message, now: float) -> None:
        if request is self._heartbeat and isinstance(response, HeartbeatResponse):
            self._heartbeat = None
            self._heartbeat_answered(code_of(response.error_code), now)
        if request is not self._request:
            return
        self._request = None
        if isinstance(response, JoinGroupResponse):
            self._join_answered(response, now)
        elif isinstance(response, SyncGroupResponse):
            self._sync_answered(response, now)
        elif isinstance(response, LeaveGroupResponse):
            self._left_group()

    def _failed(self, request: Message, now: float) -> None:
        if request is self._heartbeat:
            self._heartbeat = None
            if self._request is None:
                self._lose_coordinator(now)
        if request is not self._request:
            return
        self._request = None
        if self.state is ClassicState.LEAVING:
            self._left_group()
        else:
            self._lose_coordinator(now)

    def _called_back(self, now: float) -> None:
        coming, self._coming = self._coming, frozenset()
        if coming and self._joined() and not self._leave_requested:
            self._take(coming)

    # What comes next.

    def _advance(self, now: float) -> None:
        if self._giving_up is None:
            if self.owned and not self._joined():
                self._give_up(Lose(self.owned))
            elif self._leave_requested:
                self._begin_leave()
            elif self.topics and not self.away and self.state is not ClassicState.LEAVING and not self._waits(now):
                self._go_on()
        if not self.closed:
            self._send_heartbeat(now)

    def _go_on(self) -> None:
        if self.coordinator is None:
            self._find_coordinator()
            return
        rejoins = self.state is ClassicState.STABLE and self._rejoin_reason is not None
        if rejoins or self.state is ClassicState.UNJOINED:
            surplus = self._surplus()
            if surplus:
                self._give_up(Revoke(surplus))
            else:
                self._join()

    def _surplus(self) -> frozenset[TopicPartition]:
        """What has to be revoked before a rebalance."""
        if not self.cooperative:
            return self.owned
        return frozenset(partition for partition in self.owned if partition.topic not in self.topics)

    def _join(self) -> None:
        self.state = ClassicState.JOINING
        self._counting = None
        settings = self.settings
        request = JoinGroupRequest(
            group_id=settings.group_id,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=settings.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=self._subscription(assignor))
                for name, assignor in self.assignors.items()
            ],
            reason=self._rejoin_reason,
        )
        self._rejoin_reason = None
        self._request = self._send(request, self._rebalance_timeout_ms())

    def _subscription(self, assignor: Assignor) -> bytes:
        assigned, generation = self._assigned
        subscription = Subscription(
            topics=tuple(self.topics),
            owned=tuple(self.owned),
            generation=generation,
            user_data=assignor.user_data(assigned, generation),
            rack=self.settings.client_rack,
        )
        return encode_subscription(subscription)

    def _rebalance_timeout_ms(self) -> int:
        return max(self.settings.request_timeout_ms, self.settings.max_poll_interval_ms + JOIN_SLACK_MS)

    def _join_answered(self, response: JoinGroupResponse, now: float) -> None:
        code = code_of(response.error_code)
        if code is not ErrorCode.none:
            self._after_failed_rebalance()
            self._request_rejoin("the last rebalance was not completed")
            if code is ErrorCode.member_id_required:
                self.member_id = response.member_id
            elif code is ErrorCode.rebalance_in_progress or (code in FORGOTTEN and not self.member_id):
                self._back_off(now)
            else:
                self._refused(code, now)
            return
        self.member_id, self.generation = response.member_id, response.generation_id
        self.protocol_name = response.protocol_name or ""
        self.leader = response.leader == response.member_id
        self._heartbeat_at = now + self.settings.heartbeat_interval_ms / 1000
        self._counts = {}
        if self.leader:
            self._lead(response)
        else:
            self._sync({})

    def _lead(self, response: JoinGroupResponse) -> None:
        if self.protocol_name not in self.assignors:
            self._fail(ErrorCode.inconsistent_group_protocol, f"the group uses {self.protocol_name!r}, which we lack")
            return
        try:
            self._members = {
                member.member_id: decode_subscription(member.metadata, member.group_instance_id)
                for member in response.members
            }
        except BadFrame as bad:
            self._fail(ErrorCode.inconsistent_group_protocol, f"a member sent no subscription but {bad}")
            return
        self.state = ClassicState.COUNTING
        wanted = frozenset(topic for member in self._members.values() for topic in member.topics)
        self._counting = CountPartitions(wanted)
        self._out.append(self._counting)
        if response.skip_assignment:  # a static leader came back without any other change: the assignment stays
            self._members = {}

    def _share_out(self, counts: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
        members, self._members = self._members, {}
        return self.assignors[self.protocol_name].assign(counts, members) if members else {}

    def _sync(self, assignment: Mapping[str, list[TopicPartition]]) -> None:
        self.state = ClassicState.SYNCING
        request = SyncGroupRequest(
            group_id=self.settings.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.settings.group_instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self.protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=encode_assignment(partitions))
                for member, partitions in assignment.items()
            ],
        )
        self._request = self._send(request, self._rebalance_timeout_ms())

    def _sync_answered(self, response: SyncGroupResponse, now: float) -> None:
        self._after_failed_rebalance()
        code = code_of(response.error_code)
        if code is not ErrorCode.none:
            self._request_rejoin("the last rebalance was not completed")
            self._refused(code, now)
            return
        try:
            assigned = frozenset(decode_assignment(response.assignment))
        except BadFrame as bad:
            self._fail(ErrorCode.inconsistent_group_protocol, f"the leader sent no assignment but {bad}")
            return
        self._succeeded()
        self._heartbeat_at = now + self.settings.heartbeat_interval_ms / 1000
        self._assigned = assigned, self.generation
        going = self.owned - assigned
        if going:
            self._coming = assigned - self.owned
            self._request_rejoin("partitions were given up for others to take")
            self._give_up(Revoke(going))
        else:
            self._take(assigned - self.owned)

    # Heartbeats.

    def _send_heartbeat(self, now: float) -> None:
        if self.state not in HEARTBEATING or self.coordinator is None:
            return
        if self._heartbeat is not None or now < self._heartbeat_at:
            return
        self._heartbeat_at = now + self.settings.heartbeat_interval_ms / 1000
        request = HeartbeatRequest(
            group_id=self.settings.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.settings.group_instance_id,
        )
        self._heartbeat = self._send(request, self.settings.session_timeout_ms)

    def _heartbeat_answered(self, code: ErrorCode, now: float) -> None:
        if code is ErrorCode.none:
            self._retries = 0
        elif self.state in HEARTBEATING:
            self._refused(code, now)

    def _deadlines(self) -> Iterable[float]:
        if self.state in HEARTBEATING and self._heartbeat is None and self.coordinator is not None:
            yield self._heartbeat_at

    # Refusals, and ways out.

    def _refused(self, code: ErrorCode, now: float) -> None:
        if code in COORDINATOR_MOVED:
            self._lose_coordinator(now)
        elif code is ErrorCode.rebalance_in_progress:
            self._request_rejoin("the group rebalances")
        elif code in FORGOTTEN:
            self._forgotten(keep_id=code is ErrorCode.illegal_generation)
        elif code in RETRIABLE:
            self._back_off(now)
        else:
            self._fail(code)

    def _lose_coordinator(self, now: float) -> None:
        super()._lose_coordinator(now)
        if self.state in (ClassicState.JOINING, ClassicState.COUNTING, ClassicState.SYNCING):
            self._request_rejoin("the coordinator was lost during a rebalance")
            self._after_failed_rebalance()

    def _request_rejoin(self, reason: str) -> None:
        self._rejoin_reason = self._rejoin_reason or reason

    def _forgotten(self, *, keep_id: bool) -> None:
        self._request = self._heartbeat = self._counting = None
        self.generation = NO_GENERATION
        self.leader = False
        self._counts = {}
        if not keep_id:
            self.member_id = ""
        self.state = ClassicState.UNJOINED

    def _after_failed_rebalance(self) -> None:
        """After a rebalance that did not succeed: still a member, if the generation was not lost."""
        self.state = ClassicState.STABLE if self._joined() else ClassicState.UNJOINED

    def _joined(self) -> bool:
        return self.generation != NO_GENERATION

    def _forget_subscription(self) -> None:
        self.topics = frozenset()

    def _begin_leave(self) -> None:
        if self.state is ClassicState.LEAVING:
            return
        if self.owned:
            self._request = self._counting = None  # of a rebalance in progress nothing will be taken
            self._after_failed_rebalance()
            self._give_up(Revoke(self.owned))
        elif not self._leave():
            self._left_group()

    def _leave(self) -> bool:
        """Whether there was a membership to end, and a coordinator to send that to."""
        static = self.settings.group_instance_id is not None
        if self.coordinator is None or not self.member_id or (static and not self._leave_static):
            return False
        member_id, instance_id = self.member_id, self.settings.group_instance_id
        reason = "the consumer stopped polling" if self.away else "the consumer is being closed"
        identity = MemberIdentity(member_id=member_id, group_instance_id=instance_id, reason=reason)
        request = LeaveGroupRequest(group_id=self.settings.group_id, member_id=member_id, members=[identity])
        self._forgotten(keep_id=False)
        self._request = self._send(request)
        self.state = ClassicState.LEAVING
        return True

    def _left_group(self) -> None:
        self._forgotten(keep_id=False)
        self._leave_requested = False
        self.closed = self._closing
        self._rejoin_reason = None

    def _on_poll_timeout(self, now: float) -> None:
        if not self._leave():
            self._forgotten(keep_id=False)
