"""Consumer group (KIP-848): the coordinator assigns partitions, members send heartbeats only.

A member joins with epoch 0, its subscription and its owned partitions, and gets its epoch and assignment. It leaves
with epoch -1, or -2 if it is static and will come back. Members do not wait for each other: each heartbeat brings its
sender a step nearer to the target assignment (`reconciliation`).

    heartbeat:  check the epoch -> update the subscription -> new group epoch? -> new target? -> reconcile -> respond

Durable are the epochs, members, target and current assignments and resolved regular expressions
(`consumer_group_data`). Only timers are lost with the coordinator, and start again:

    SESSION     no heartbeat of a member                                -> it is fenced
    REVOCATION  a member has not revoked its partitions in time         -> it is fenced
    JOIN, SYNC  a classic member does not rejoin, or does not sync      -> it is fenced

Classic members take part through `consumer_classic`; `conversion` upgrades and downgrades groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from ottla.config.group_config import GroupConfig
from ottla.config.group_config import resolve as group_config
from ottla.coordinator import consumer_classic, conversion
from ottla.coordinator.assignors import ASSIGNORS, EMPTY, Assignment
from ottla.coordinator.consumer_group_data import ConsumerGroupData
from ottla.coordinator.consumer_group_member import (
    JOINING,
    LEAVING,
    LEAVING_STATIC,
    ConsumerMember,
    MemberState,
    Timer,
    assignment_of,
    current_record,
    member_tombstones,
    metadata_record,
    target_record,
)
from ottla.coordinator.deadlines import Deadlines
from ottla.coordinator.decision import NOTHING, Decision, LogRecord, ReplyTo
from ottla.coordinator.group_context import GroupContext, MemberClient
from ottla.coordinator.group_records import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    OffsetCommitValue,
)
from ottla.coordinator.reconciliation import holds_only, reconcile
from ottla.coordinator.target import (
    Resolved,
    metadata_hash,
    preferred_assignor,
    resolve,
    subscribed_ids,
    target_assignment,
)
from ottla.errors import ErrorCode, Refused
from ottla.wire.schema import consumer_group_heartbeat as wire
from ottla.wire.schema.consumer_group_describe import DescribedGroup
from ottla.wire.schema.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from ottla.wire.schema.heartbeat import HeartbeatRequest
from ottla.wire.schema.join_group import JoinGroupRequest
from ottla.wire.schema.leave_group import MemberIdentity
from ottla.wire.schema.sync_group import SyncGroupRequest

NOT_SET: Final = -1
RETRY_S: Final = 0.5
"""If a member could not be fenced because the append failed, retry after this time."""


class ConsumerGroup:
    type_name = "consumer"
    protocol_type = "consumer"

    def __init__(self, group_id: str, context: GroupContext) -> None:
        self.id = group_id
        self.deadline: float | None = None
        self.state = ConsumerGroupData(group_id)
        self.context = context
        self._timers: Deadlines[tuple[str, Timer]] = Deadlines()
        self._seen_image: object = (
            None  # the image that the group's topics were last compared with, and its topic names
        )
        self._seen_names: object = None

    @property
    def config(self) -> GroupConfig:
        """The group's current settings, with the broker's as defaults."""
        return group_config(self.context.image.group_configs.get(self.id, {}), self.context.config)

    # The same methods as ClassicGroup.

    @property
    def state_name(self) -> str:
        return self.state.state.value

    @property
    def is_empty(self) -> bool:
        return not self.state.members

    @property
    def member_count(self) -> int:
        return len(self.state.members)

    def replay(self, key: object, value: object) -> None:
        self.state.replay(key, value)
        if value is None and isinstance(key, ConsumerGroupMemberMetadataKey):
            for timer in Timer:
                self._timers.drop((key.member_id, timer))

    def tombstones(self) -> list[LogRecord]:
        return self.state.tombstones()

    def pending_replies(self) -> Iterable[ReplyTo]:
        return ()

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, version: int, transactional: bool
    ) -> None:
        if generation < 0 and self.is_empty:
            return  # an administrator, or a consumer without group management
        if transactional and generation < 0 and not member_id and instance_id is None:
            return  # a producer without consumer group metadata
        member = self.member(member_id, None)
        if not transactional and member.classic is None and version < 9:
            raise Refused(ErrorCode.unsupported_version, "members of this protocol commit with version 9 or above")
        _check_epoch_of(member, generation, transactional=transactional)

    def committed(self, member_id: str, now: float) -> None:
        """Only heartbeats keep the session alive in this protocol."""

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if not member_id and member_epoch < 0:
            return
        _check_epoch_of(self.member(member_id or "", None), member_epoch)

    def check_offset_delete(self) -> None:
        """Always allowed; the caller keeps the offsets of subscribed topics."""

    def subscribes(self, topic: str) -> bool:
        return self.state.subscribes_to(topic)

    def kept_since_ms(self, commit: OffsetCommitValue) -> int | None:
        return commit.commit_timestamp_ms

    def check_delete(self) -> None:
        if not self.is_empty:
            raise Refused(ErrorCode.non_empty_group)

    def describe(self) -> DescribedGroup:
        assignor = preferred_assignor(self.state.members.values(), self.assignors)
        return self.state.describe(assignor, self.context.image)

    @property
    def assignors(self) -> tuple[str, ...]:
        known = tuple(name for name in self.context.config.group_consumer_assignors if name in ASSIGNORS)
        return known or tuple(ASSIGNORS)

    def member(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """The member that sends a request. Refused if it is no member, or if its instance id has another member id."""
        if instance_id is None:
            member = self.state.members.get(member_id)
        else:
            member = self.state.static_member(instance_id)
        if member is None:
            raise Refused(ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {self.id}.")
        if member.id != member_id:
            raise Refused(ErrorCode.fenced_instance_id, f"{member.id} has taken the place of member {member_id}.")
        return member

    # The heartbeat.

    def heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client: MemberClient, reply_to: ReplyTo, now: float, now_ms: int
    ) -> Decision:
        if request.member_epoch in (LEAVING, LEAVING_STATIC):
            return self._leave(request, reply_to, now_ms)
        records: list[LogRecord] = []
        before = self._member_of(request, records)
        after = _updated(before, request, client)
        owned = None if request.topic_partitions is None else assignment_of(request.topic_partitions)
        after = self.advance(before, after, owned, records, now_ms)
        self.arm(after, now, moved=after != before)
        response = ConsumerGroupHeartbeatResponse(
            member_id=after.id,
            member_epoch=after.epoch,
            heartbeat_interval_ms=self.config.consumer_heartbeat_interval_ms,
        )
        if request.member_epoch == JOINING or _is_full(request) or after.assigned != before.assigned:
            response.assignment = _wire_assignment(after.assigned)
        return Decision(records, ((reply_to, response),))

    def _member_of(self, request: ConsumerGroupHeartbeatRequest, records: list[LogRecord]) -> ConsumerMember:
        """The sender as the group knows it. A static member that rejoins replaces its old member id."""
        joining = request.member_epoch == JOINING
        if not joining and not self.state.exists:
            raise Refused(ErrorCode.group_id_not_found, f"Group {self.id} not found.")
        member_id = request.member_id or self.context.new_id()
        self.check_max_size(member_id, request.instance_id)
        if joining and request.instance_id is not None:
            return self.static_member_for(member_id, request.instance_id, records, classic=False)
        if joining and member_id not in self.state.members:
            return ConsumerMember(member_id)
        member = self.member(member_id, request.instance_id)
        _check_heartbeat_epoch(member, request)
        return member

    def check_max_size(self, member_id: str, instance_id: str | None) -> None:
        limit = self.context.config.group_consumer_max_size
        known = member_id in self.state.members or instance_id in self.state.static_ids
        if len(self.state.members) >= limit and not known:
            raise Refused(
                ErrorCode.group_max_size_reached, f"The consumer group has reached its maximum size of {limit} members."
            )

    def static_member_for(
        self, member_id: str, instance_id: str, records: list[LogRecord], *, classic: bool
    ) -> ConsumerMember:
        """The state of a static member that joins: new, or taken over from its instance id."""
        old = self.state.static_member(instance_id)
        if old is None or old.id == member_id:
            return self.state.members.get(member_id, ConsumerMember(member_id))
        if not classic and old.classic is None and old.epoch != LEAVING_STATIC:
            raise Refused(
                ErrorCode.unreleased_instance_id,
                f"Static member {member_id} cannot join the group: its instance id {instance_id} is owned by {old.id}.",
            )
        member = old._replace(id=member_id, epoch=JOINING, previous_epoch=JOINING)
        records += member_tombstones(self.id, old.id)
        records.append(metadata_record(self.id, member))
        records.append(target_record(self.id, member_id, self.state.targets.get(old.id, EMPTY)))
        records.append(current_record(self.id, member))
        return member

    def advance(
        self,
        before: ConsumerMember,
        after: ConsumerMember,
        owned: Assignment | None,
        records: list[LogRecord],
        now_ms: int,
    ) -> ConsumerMember:
        """Everything that follows from a change of one member: group epoch, target assignment, the member's next
        step."""
        if after != before:
            records.append(metadata_record(self.id, after))
        state, image = self.state, self.context.image
        replaced = None if after.instance_id is None else state.static_ids.get(after.instance_id)
        targets = state.targets
        if replaced is not None and replaced != after.id:
            targets = {**targets, after.id: targets.get(replaced, EMPTY)}
        epoch, regexes = state.epoch, state.regexes
        bump = epoch == 0 or (after.topic_names, after.regex) != (before.topic_names, before.regex)
        if bump or image is not self._seen_image:
            bump, regexes, hashed = self._check_topics(self._with(after, replaced), records, now_ms, bump=bump)
            if bump:
                epoch += 1
                records.append(state.epoch_record(epoch, hashed))
        if epoch > state.target_epoch:
            targets = self._retarget(epoch, self._with(after, replaced), targets, regexes, records)
            target_epoch = epoch
        else:
            target_epoch = state.target_epoch
        reconciled = after
        if not after.reconciled(target_epoch):
            mine = (None, after.id, replaced)
            reconciled = reconcile(
                after,
                target_epoch,
                targets.get(after.id, EMPTY),
                owned,
                subscribed_ids(after, regexes, image),
                lambda topic, partition: state.owner(topic, partition) in mine,
            )
        if reconciled != after:
            records.append(current_record(self.id, reconciled))
        return reconciled

    def _with(self, member: ConsumerMember, replaced: str | None) -> dict[str, ConsumerMember]:
        members = {member_id: each for member_id, each in self.state.members.items() if member_id != replaced}
        members[member.id] = member
        return members

    def _check_topics(
        self, members: dict[str, ConsumerMember], records: list[LogRecord], now_ms: int, *, bump: bool
    ) -> tuple[bool, dict[str, Resolved], int]:
        """Whether the subscribed topics, or the topics of regular expressions, have changed."""
        state, image = self.state, self.context.image
        wanted = {member.regex for member in members.values() if member.regex}
        regexes = resolve(wanted, state.regexes, image, now_ms, again=image.names is not self._seen_names)
        for regex, resolved in regexes.items():
            old = state.regexes.get(regex)
            if resolved != old:
                records.append(state.regex_record(regex, resolved))
                bump |= old is not None and resolved.topics != old.topics
        records += [state.regex_record(regex, None) for regex in state.regexes if regex not in regexes]
        hashed = metadata_hash(members.values(), regexes, image)
        bump |= hashed != state.metadata_hash
        if bump and state.has_partition_metadata:
            records.append(LogRecord(ConsumerGroupPartitionMetadataKey(self.id), None))
        if not records and not bump:
            # No records are to be written that could fail: the next heartbeat need not compare again.
            self._seen_image, self._seen_names = image, image.names
        return bump, regexes, hashed

    def _retarget(
        self,
        epoch: int,
        members: dict[str, ConsumerMember],
        targets: Mapping[str, Assignment],
        regexes: dict[str, Resolved],
        records: list[LogRecord],
    ) -> dict[str, Assignment]:
        assignor = preferred_assignor(members.values(), self.assignors)
        new = target_assignment(assignor, members, targets, regexes, self.context.image)
        records += [
            target_record(self.id, member_id, target)
            for member_id, target in new.items()
            if target != self.state.targets.get(member_id)
        ]
        records.append(self.state.target_epoch_record(epoch))
        return new

    # Leaving.

    def _leave(self, request: ConsumerGroupHeartbeatRequest, reply_to: ReplyTo, now_ms: int) -> Decision:
        if not self.state.exists:
            raise Refused(ErrorCode.group_id_not_found, f"Group {self.id} not found.")
        member = self.member(request.member_id, request.instance_id)
        response = ConsumerGroupHeartbeatResponse(member_id=member.id, member_epoch=request.member_epoch)
        if request.member_epoch == LEAVING_STATIC:
            away = member._replace(epoch=LEAVING_STATIC, state=MemberState.STABLE, revoking=EMPTY)
            self.drop_timer(member, Timer.REVOCATION)
            return Decision([current_record(self.id, away)], ((reply_to, response),))
        return Decision(self.fence([member], now_ms), ((reply_to, response),))

    def fence(self, gone: Collection[ConsumerMember], now_ms: int) -> list[LogRecord]:
        """Remove these members. If only classic members are left, the group becomes classic."""
        state = self.state
        gone_ids = {member.id for member in gone}
        left = {member_id: member for member_id, member in state.members.items() if member_id not in gone_ids}
        if conversion.can_downgrade(self, left):
            return conversion.downgrade(self, left, now_ms)
        records = [record for member_id in sorted(gone_ids) for record in member_tombstones(self.id, member_id)]
        wanted = {member.regex for member in left.values()}
        regexes = {regex: resolved for regex, resolved in state.regexes.items() if regex in wanted}
        records += [state.regex_record(regex, None) for regex in state.regexes if regex not in regexes]
        hashed = metadata_hash(left.values(), regexes, self.context.image)
        records.append(state.epoch_record(state.epoch + 1, hashed))
        return records

    # Classic members.

    def join(
        self, request: JoinGroupRequest, version: int, client: MemberClient, reply_to: ReplyTo, now: float, now_ms: int
    ) -> Decision:
        return consumer_classic.join(self, request, version, client, reply_to, now, now_ms)

    def sync(self, request: SyncGroupRequest, reply_to: ReplyTo, now: float, now_ms: int) -> Decision:
        return consumer_classic.sync(self, request, reply_to, now)

    def heartbeat_classic(self, request: HeartbeatRequest, reply_to: ReplyTo, now: float) -> Decision:
        return consumer_classic.heartbeat(self, request, reply_to, now)

    def leave(self, members: Sequence[MemberIdentity], reply_to: ReplyTo, now: float, now_ms: int) -> Decision:
        return consumer_classic.leave(self, members, reply_to, now_ms)

    # Time.

    def arm(self, member: ConsumerMember, now: float, *, moved: bool = False) -> None:
        """Restart the session timer. The revocation timer starts with the response that revokes partitions."""
        classic = member.classic
        session_ms = self.config.consumer_session_timeout_ms if classic is None else classic.session_timeout_ms
        self.set_timer(member, Timer.SESSION, now + session_ms / 1000)
        if member.state != MemberState.UNREVOKED or classic is not None:
            self.drop_timer(member, Timer.REVOCATION)
        elif moved or not self.has_timer(member, Timer.REVOCATION):
            self.set_timer(member, Timer.REVOCATION, now + member.rebalance_timeout_ms / 1000)

    def set_timer(self, member: ConsumerMember, timer: Timer, when: float) -> None:
        self._timers.set((member.id, timer), when)
        if self.deadline is None or when < self.deadline:
            self.deadline = when

    def drop_timer(self, member: ConsumerMember, timer: Timer) -> None:
        self._timers.drop((member.id, timer))

    def has_timer(self, member: ConsumerMember, timer: Timer) -> bool:
        return (member.id, timer) in self._timers

    def expire(self, now: float, now_ms: int) -> Decision:
        late = {}
        for member_id, timer in self._timers.take(now):
            member = self.state.members.get(member_id)
            if member is not None and (timer != Timer.REVOCATION or member.state == MemberState.UNREVOKED):
                late[member_id] = member
                self._timers.set((member_id, timer), now + RETRY_S)  # until its tombstones are replayed
        self.deadline = self._timers.first
        return Decision(self.fence(late.values(), now_ms)) if late else NOTHING

    def settle(self, now: float, now_ms: int) -> Decision:
        for member in self.state.members.values():
            if not self.has_timer(member, Timer.SESSION):
                self.arm(member, now)
        return NOTHING


def _updated(before: ConsumerMember, request: ConsumerGroupHeartbeatRequest, client: MemberClient) -> ConsumerMember:
    """The member with the fields of its heartbeat; fields that are not set stay."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    return before._replace(
        instance_id=request.instance_id or before.instance_id,
        rack_id=request.rack_id or before.rack_id,
        client_id=client.id,
        client_host=client.host,
        topic_names=before.topic_names if names is None else frozenset(names),
        regex=before.regex if regex is None else regex,
        rebalance_timeout_ms=(
            before.rebalance_timeout_ms if request.rebalance_timeout_ms == NOT_SET else request.rebalance_timeout_ms
        ),
        server_assignor=request.server_assignor or before.server_assignor,
        classic=None,
    )


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether all fields are set, as after a lost response: then the response has the assignment, too."""
    subscribed = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return request.rebalance_timeout_ms != NOT_SET and subscribed and request.topic_partitions is not None


def _wire_assignment(assigned: Assignment) -> wire.Assignment:
    topics = [
        wire.ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
        for topic_id, partitions in assigned.items()
    ]
    return wire.Assignment(topic_partitions=topics)


def _check_heartbeat_epoch(member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> None:
    epoch = request.member_epoch
    if epoch in (JOINING, member.epoch):
        return
    owned = None if request.topic_partitions is None else assignment_of(request.topic_partitions)
    if epoch == member.previous_epoch < member.epoch and holds_only(owned, member.assigned):
        return  # the response with its new epoch was lost
    compared = "greater" if epoch > member.epoch else "smaller"
    raise Refused(
        ErrorCode.fenced_member_epoch,
        f"The consumer group member has a {compared} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _check_epoch_of(member: ConsumerMember, epoch: int, *, transactional: bool = False) -> None:
    """Transactional commits know no member epochs: they get ILLEGAL_GENERATION instead of STALE_MEMBER_EPOCH."""
    if epoch == member.epoch:
        return
    stale = member.classic is None and not transactional
    code = ErrorCode.stale_member_epoch if stale else ErrorCode.illegal_generation
    raise Refused(code, f"The received epoch {epoch} is not the member's epoch {member.epoch}.")
