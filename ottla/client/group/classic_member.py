"""Member of a classic group (JoinGroup, SyncGroup, Heartbeat), pure.

Who speaks: members with the coordinator only. A rebalance is one round: every member sends JoinGroup, the
coordinator holds the answers back until all have come (or the slow ones' time is over), and gives the round a new
generation. One member, the leader, is told what all the others want; it computes who gets what and sends that
with its SyncGroup; the coordinator passes each member its part. Between rounds members send heartbeats, whose
answers also tell them that a new round has begun.

    UNJOINED ──► JOINING ──► SYNCING ──► STABLE ──► JOINING …
                    └► COUNTING ┘  (the leader: how many partitions has each topic?)
    any of them ──► LEAVING ──► UNJOINED or closed

Eager members give up all partitions before they join. Cooperative members (KIP-429) join with what they own, go on
reading it, give up afterwards only what they no longer have, and then ask for another round in which it is free.

What can be lost: everything but the member's partitions. A member that the coordinator does not know any more
(session over, or another took its place) loses its partitions without a word and joins anew. A static member
(KIP-345) has a name of its own, under which it comes back within the session and finds its partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

from ottla.client.core.find_coordinator import COORDINATOR_MOVED
from ottla.client.core.requests import code_of
from ottla.client.group.assignors import Assignor
from ottla.client.group.member import Action, CountPartitions, GroupMember, Lose, MemberSettings, Revoke
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
"""What the answer to a join may take on top of the rebalance timeout, before it is given up."""
FORGOTTEN: Final = frozenset({ErrorCode.unknown_member_id, ErrorCode.illegal_generation})
"""The coordinator does not count on this member any more: its partitions are, or may soon be, somebody else's."""
TOLD_BY_COMMITS: Final = FORGOTTEN | COORDINATOR_MOVED | {ErrorCode.rebalance_in_progress, ErrorCode.fenced_instance_id}


class ClassicState(Enum):
    UNJOINED = "unjoined"
    JOINING = "joining"
    COUNTING = "counting"
    SYNCING = "syncing"
    STABLE = "stable"
    LEAVING = "leaving"


BEATING: Final = frozenset({ClassicState.COUNTING, ClassicState.STABLE})
"""While JoinGroup or SyncGroup wait for an answer, the coordinator knows that the member lives."""


class ClassicMember(GroupMember):
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
        """Why a new round is wanted; None if it is not."""
        self._assigned: tuple[frozenset[TopicPartition], int] = (frozenset(), NO_GENERATION)
        """The last assignment and its generation: what sticky members remember."""
        self._coming: frozenset[TopicPartition] = frozenset()
        """Assigned, to be taken when those that go are given up."""
        self._members: dict[str, Subscription] = {}
        self._counting: CountPartitions | None = None
        self._counts: Mapping[str, int] = {}
        self._heartbeat: Message | None = None
        self._beat_at = 0.0

    @property
    def watched_topics(self) -> frozenset[str]:
        """Those whose number of partitions matters here: for the leader, all that anybody in the group wants."""
        return self.topics.union(self._counts)

    # What happened.

    def subscribe(self, topics: Collection[str], now: float) -> list[Action]:
        if not topics:
            return self.unsubscribe(now)
        self._polled_at = now
        if frozenset(topics) != self.topics:
            self.topics = frozenset(topics)
            self._departing = self._closing
            self._want_round("the subscription has changed")
        return self._decided(now)

    def counted(self, asked: CountPartitions, counts: Mapping[str, int], now: float) -> list[Action]:
        """The partitions of each topic that exists, for the leader."""
        if asked is self._counting and self.state is ClassicState.COUNTING:
            self._counting = None
            self._counts = {topic: counts.get(topic, 0) for topic in asked.topics}
            self._sync(self._share_out(counts))
        return self._decided(now)

    def metadata_changed(self, counts: Mapping[str, int], now: float) -> list[Action]:
        """Fresh numbers of partitions, of `watched_topics` at least. When they change the leader calls a round."""
        if self.leader and any(counts.get(topic, 0) != count for topic, count in self._counts.items()):
            self._want_round("the partitions of a topic have changed")
        return self._decided(now)

    def commit_refused(self, code: ErrorCode, generation: int, now: float) -> list[Action]:
        """A commit, made in this generation, shows as well as a heartbeat that the group has moved on."""
        if code in TOLD_BY_COMMITS and generation == self.generation and self.state in BEATING:
            self._refused(code, now)
        return self._decided(now)

    def _answered(self, request: Message, response: Message, now: float) -> None:
        if request is self._heartbeat and isinstance(response, HeartbeatResponse):
            self._heartbeat = None
            self._beat_answered(code_of(response.error_code), now)
        if request is not self._request:
            return
        self._request = None
        if isinstance(response, JoinGroupResponse):
            self._join_answered(response, now)
        elif isinstance(response, SyncGroupResponse):
            self._sync_answered(response, now)
        elif isinstance(response, LeaveGroupResponse):
            self._departed()

    def _failed(self, request: Message, now: float) -> None:
        if request is self._heartbeat:
            self._heartbeat = None
            if self._request is None:
                self._lose_coordinator(now)
        if request is not self._request:
            return
        self._request = None
        if self.state is ClassicState.LEAVING:
            self._departed()
        else:
            self._lose_coordinator(now)

    def _called_back(self, now: float) -> None:
        coming, self._coming = self._coming, frozenset()
        if coming and self._joined() and not self._departing:
            self._take(coming)

    # What comes next.

    def _advance(self, now: float) -> None:
        if self._giving_up is None:
            if self.owned and not self._joined():
                self._give_up(Lose(self.owned))
            elif self._departing:
                self._depart()
            elif self.topics and not self.away and self.state is not ClassicState.LEAVING and not self._waits(now):
                self._go_on()
        if not self.closed:
            self._beat(now)

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
        """What has to be given up before a round."""
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
        self._request = self._send(request, self._round_timeout_ms())

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

    def _round_timeout_ms(self) -> int:
        return max(self.settings.request_timeout_ms, self.settings.max_poll_interval_ms + JOIN_SLACK_MS)

    def _join_answered(self, response: JoinGroupResponse, now: float) -> None:
        code = code_of(response.error_code)
        if code is not ErrorCode.none:
            self._rest()
            self._want_round("the last round was not completed")
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
        self._beat_at = now + self.settings.heartbeat_interval_ms / 1000
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
        if response.skip_assignment:  # a static leader came back and nobody else did: all keep what they have
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
        self._request = self._send(request, self._round_timeout_ms())

    def _sync_answered(self, response: SyncGroupResponse, now: float) -> None:
        self._rest()
        code = code_of(response.error_code)
        if code is not ErrorCode.none:
            self._want_round("the last round was not completed")
            self._refused(code, now)
            return
        try:
            assigned = frozenset(decode_assignment(response.assignment))
        except BadFrame as bad:
            self._fail(ErrorCode.inconsistent_group_protocol, f"the leader sent no assignment but {bad}")
            return
        self._succeeded()
        self._beat_at = now + self.settings.heartbeat_interval_ms / 1000
        self._assigned = assigned, self.generation
        going = self.owned - assigned
        if going:
            self._coming = assigned - self.owned
            self._want_round("partitions were given up for others to take")
            self._give_up(Revoke(going))
        else:
            self._take(assigned - self.owned)

    # Heartbeats.

    def _beat(self, now: float) -> None:
        if self.state not in BEATING or self.coordinator is None or self._heartbeat is not None or now < self._beat_at:
            return
        self._beat_at = now + self.settings.heartbeat_interval_ms / 1000
        request = HeartbeatRequest(
            group_id=self.settings.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.settings.group_instance_id,
        )
        self._heartbeat = self._send(request, self.settings.session_timeout_ms)

    def _beat_answered(self, code: ErrorCode, now: float) -> None:
        if code is ErrorCode.none:
            self._retries = 0
        elif self.state in BEATING:
            self._refused(code, now)

    def _deadlines(self) -> Iterable[float]:
        if self.state in BEATING and self._heartbeat is None and self.coordinator is not None:
            yield self._beat_at

    # Refusals, and ways out.

    def _refused(self, code: ErrorCode, now: float) -> None:
        if code in COORDINATOR_MOVED:
            self._lose_coordinator(now)
        elif code is ErrorCode.rebalance_in_progress:
            self._want_round("the group rebalances")
        elif code in FORGOTTEN:
            self._forgotten(keep_id=code is ErrorCode.illegal_generation)
        elif code in RETRIABLE:
            self._back_off(now)
        else:
            self._fail(code)

    def _lose_coordinator(self, now: float) -> None:
        super()._lose_coordinator(now)
        if self.state in (ClassicState.JOINING, ClassicState.COUNTING, ClassicState.SYNCING):
            self._want_round("the coordinator was lost during a round")
            self._rest()

    def _want_round(self, reason: str) -> None:
        self._rejoin_reason = self._rejoin_reason or reason

    def _forgotten(self, *, keep_id: bool) -> None:
        self._request = self._heartbeat = self._counting = None
        self.generation = NO_GENERATION
        self.leader = False
        self._counts = {}
        if not keep_id:
            self.member_id = ""
        self.state = ClassicState.UNJOINED

    def _rest(self) -> None:
        """Out of a round that did not succeed, with the place in the group if there still is one."""
        self.state = ClassicState.STABLE if self._joined() else ClassicState.UNJOINED

    def _joined(self) -> bool:
        return self.generation != NO_GENERATION

    def _forget_subscription(self) -> None:
        self.topics = frozenset()

    def _depart(self) -> None:
        if self.state is ClassicState.LEAVING:
            return
        if self.owned:
            self._request = self._counting = None  # of a round under way nothing will be taken
            self._rest()
            self._give_up(Revoke(self.owned))
        elif not self._leave():
            self._departed()

    def _leave(self) -> bool:
        """Whether there was something to leave, and somebody to tell."""
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

    def _departed(self) -> None:
        self._forgotten(keep_id=False)
        self._departing = False
        self.closed = self._closing
        self._rejoin_reason = None

    def _step_out(self, now: float) -> None:
        if not self._leave():
            self._forgotten(keep_id=False)
