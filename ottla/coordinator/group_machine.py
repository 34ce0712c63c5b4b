"""The state machine of one shard of `__consumer_offsets`: its groups, and the offsets they commit.

`ClassicGroup` and `ConsumerGroup` are the two types of group, with the same methods. What one group can decide is
decided there; this module routes requests and records to groups, wakes each group at its `deadline`, and keeps offsets,
which may outlive their group. A method that takes a request may raise Refused: then nothing has changed.

A group exists from its first record on. Before that (members that were only given a member id) it is in memory only,
and is dropped if no record follows. A group changes its type when a decision contains the tombstones of the one type
and then records of the other: replay drops the old group and makes the new one, and `settle` starts its timers
(`conversion`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from ottla.coordinator import conversion
from ottla.coordinator.classic_group import UNKNOWN_MEMBER, ClassicGroup
from ottla.coordinator.committed_offsets import CommittedOffsets
from ottla.coordinator.consumer_group import ConsumerGroup
from ottla.coordinator.consumer_group_member import JOINING
from ottla.coordinator.decision import NOTHING, Decision, LogRecord, ProducerIdAndEpoch, ReplyTo, answer
from ottla.coordinator.group_context import GroupContext, MemberClient
from ottla.coordinator.group_record_values import GroupMetadataValue
from ottla.coordinator.group_records import (
    Committed,
    ConsumerGroupMetadataKey,
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ottla.errors import ErrorCode, Refused
from ottla.wire.offset_commit import Commit
from ottla.wire.schema.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from ottla.wire.schema.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.wire.schema.delete_groups import DeletableGroupResult
from ottla.wire.schema.describe_groups import DescribedGroup
from ottla.wire.schema.heartbeat import HeartbeatRequest
from ottla.wire.schema.join_group import JoinGroupRequest
from ottla.wire.schema.leave_group import LeaveGroupRequest
from ottla.wire.schema.list_groups import ListedGroup
from ottla.wire.schema.offset_commit import OffsetCommitRequest
from ottla.wire.schema.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.wire.schema.offset_fetch import OffsetFetchRequestGroup
from ottla.wire.schema.sync_group import SyncGroupRequest

Group: TypeAlias = ClassicGroup | ConsumerGroup

DEAD = "Dead"
GROUP_NOT_FOUND_FROM = 9
"""From this version of OffsetCommit on the error for an unknown group is GROUP_ID_NOT_FOUND."""


class GroupMachine:
    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._groups: dict[str, Group] = {}
        self._offsets = CommittedOffsets(context)
        self._unsettled: set[str] = set()
        self._times: list[tuple[float, str]] = []  # a heap; each group has one valid entry
        self._due: deque[tuple[float, str]] = deque()  # taken out of it, to be woken; kept after a bug with one group
        self._scheduled: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def _member_group(self, group_id: str) -> Group:
        """The group of a request that only members send."""
        group = self._groups.get(group_id)
        if group is None:
            raise Refused(ErrorCode.unknown_member_id)
        return group

    # The classic protocol.

    def join(
        self, request: JoinGroupRequest, version: int, client: MemberClient, reply_to: ReplyTo, now: float, now_ms: int
    ) -> Decision:
        group = self._groups.get(request.group_id)
        tombstones: list[LogRecord] = []
        if isinstance(group, ConsumerGroup) and group.is_empty:
            tombstones = group.tombstones()
            group = None
        if group is None:
            if request.member_id != UNKNOWN_MEMBER:
                raise Refused(ErrorCode.unknown_member_id)
            group = ClassicGroup(request.group_id, self._context)
        decision = group.join(request, version, client, reply_to, now, now_ms)
        if tombstones:
            decision = Decision((*tombstones, *decision.records), decision.replies)
        self._groups[group.id] = group
        return self._schedule(group, decision)

    def sync(self, request: SyncGroupRequest, reply_to: ReplyTo, now: float, now_ms: int) -> Decision:
        group = self._member_group(request.group_id)
        return self._schedule(group, group.sync(request, reply_to, now, now_ms))

    def heartbeat(self, request: HeartbeatRequest, reply_to: ReplyTo, now: float) -> Decision:
        group = self._member_group(request.group_id)
        return self._schedule(group, group.heartbeat_classic(request, reply_to, now))

    def leave(self, request: LeaveGroupRequest, reply_to: ReplyTo, now: float, now_ms: int) -> Decision:
        group = self._member_group(request.group_id)
        return self._schedule(group, group.leave(request.members, reply_to, now, now_ms))

    # The consumer protocol.

    def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client: MemberClient, reply_to: ReplyTo, now: float, now_ms: int
    ) -> Decision:
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return self._schedule(group, group.heartbeat(request, client, reply_to, now, now_ms))
        if request.member_epoch != JOINING:
            raise Refused(ErrorCode.group_id_not_found, f"Group {request.group_id} not found.")
        # The consumer group exists once the records are replayed; a draft of it decides until then.
        draft = ConsumerGroup(request.group_id, self._context)
        before = NOTHING
        if isinstance(group, ClassicGroup) and not group.is_empty:
            before = conversion.upgrade(group, self._context)
        elif isinstance(group, ClassicGroup):
            before = Decision(_tombstones(group))
        for key, value in before.records:
            draft.replay(key, value)
        decision = before + draft.heartbeat(request, client, reply_to, now, now_ms)
        if isinstance(group, ClassicGroup):
            conversion.upgraded(group)
        return decision

    def consumer_describe(self, group_id: str) -> DescribedConsumerGroup:
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group.describe()
        text = f"Group {group_id} {'not found' if group is None else 'is not a consumer group'}."
        return DescribedConsumerGroup(error_code=ErrorCode.group_id_not_found, error_message=text, group_id=group_id)

    # Offsets.

    def commit_offsets(
        self, request: OffsetCommitRequest, version: int, reply_to: ReplyTo, now: float, now_ms: int
    ) -> Decision:
        generation = request.generation_id_or_member_epoch
        self._check_commit(request.group_id, generation, request.member_id, request.group_instance_id, version, now)
        records, response = self._offsets.commit(request, now_ms)
        return Decision(records, ((reply_to, response),))

    def commit_in_transaction(
        self, request: OffsetCommitRequest, producer: ProducerIdAndEpoch, reply_to: ReplyTo, now: float, now_ms: int
    ) -> Decision:
        """Offsets that are committed with the producer's transaction."""
        generation = request.generation_id_or_member_epoch
        self._check_commit(
            request.group_id, generation, request.member_id, request.group_instance_id, 0, now, transactional=True
        )
        records, response = self._offsets.commit(request, now_ms)
        return Decision(records, ((reply_to, response),), producer)

    def commit_fast(self, commit: Commit, version: int, reply_to: ReplyTo, now: float, now_ms: int) -> Decision:
        """Fast path. Reply: the error code of each topic."""
        group_id, generation, member_id, instance_id, _ = commit
        self._check_commit(group_id, generation, member_id, instance_id, version, now)
        batch, codes = self._offsets.commit_fast(commit, now_ms)
        return Decision((), ((reply_to, codes),), None, batch)

    def _check_commit(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        version: int,
        now: float,
        *,
        transactional: bool = False,
    ) -> None:
        group = self._groups.get(group_id)
        if group is not None:
            group.check_commit(member_id, instance_id, generation, version=version, transactional=transactional)
            group.committed(member_id, now)
        elif generation >= 0:
            gone = ErrorCode.group_id_not_found if version >= GROUP_NOT_FOUND_FROM else ErrorCode.illegal_generation
            raise Refused(gone)

    def fetch_offsets(self, request: OffsetFetchRequestGroup, reply_to: ReplyTo, *, stable: bool) -> Decision:
        if request.member_id is not None or request.member_epoch >= 0:
            group = self._groups.get(request.group_id)
            if group is None:
                raise Refused(ErrorCode.group_id_not_found)
            group.check_fetch(request.member_id, request.member_epoch)
        return answer(reply_to, self._offsets.fetch(request, stable=stable))

    def delete_offsets(self, request: OffsetDeleteRequest, reply_to: ReplyTo) -> Decision:
        group = self._groups.get(request.group_id)
        if group is None:
            raise Refused(ErrorCode.group_id_not_found)
        group.check_offset_delete()
        records: list[LogRecord] = []
        topics = []
        for topic in request.topics:
            code = ErrorCode.none
            if topic.name not in self._context.image.topics:
                code = ErrorCode.unknown_topic_or_partition
            elif group.subscribes(topic.name):
                code = ErrorCode.group_subscribed_to_topic
            indexes = [partition.partition_index for partition in topic.partitions]
            if not code:
                records += self._offsets.tombstones(group.id, topic.name, indexes)
            results = [OffsetDeleteResponsePartition(partition_index=index, error_code=code) for index in indexes]
            topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=results))
        return Decision(records, ((reply_to, OffsetDeleteResponse(topics=topics)),))

    def expire_offsets(self, now_ms: int) -> Iterator[Decision]:
        """Remove expired offsets, and groups without members and offsets: one decision for each group."""
        for group in list(self._groups.values()):
            if self._groups.get(group.id) is not group:
                continue  # deleted meanwhile, and perhaps created again
            expired = self._offsets.expired(group.id, now_ms, group.subscribes, group.kept_since_ms)
            kept = sum(1 for _ in self._offsets.partitions_of(group.id)) - len(expired)
            if not kept and self._is_idle(group):
                expired += _tombstones(group)
            yield Decision(expired) if expired else NOTHING
            self._forget_if_nothing(group)

    def forget_topic(self, name: str, topic_id: bytes) -> Iterator[Decision]:
        """Remove the offsets of a deleted topic, not those of a new topic with its name."""
        for group_id in self._offsets.groups_with(name):
            yield Decision(self._offsets.tombstones_of(group_id, name, topic_id))

    # Administration.

    def list(self, states: Sequence[str], types: Sequence[str]) -> list[ListedGroup]:
        wanted_states = {state.lower() for state in states}
        wanted_types = {kind.lower() for kind in types}
        return [
            ListedGroup(
                group_id=group.id,
                protocol_type=group.protocol_type,
                group_state=group.state_name,
                group_type=group.type_name,
            )
            for group in self._groups.values()
            if (not wanted_states or group.state_name.lower() in wanted_states)
            and (not wanted_types or group.type_name in wanted_types)
        ]

    def stats(self) -> Iterator[tuple[str, int, Sequence[tuple[str, int, int]]]]:
        """Of each group its id, number of members, and committed offsets: topic, partition, offset."""
        for group in list(self._groups.values()):
            commits = [(key.topic, key.partition, value.offset) for key, value in self._offsets.partitions_of(group.id)]
            yield group.id, group.member_count, commits

    def describe(self, group_id: str) -> DescribedGroup:
        group = self._groups.get(group_id)
        if isinstance(group, ClassicGroup):
            return group.describe()
        text = f"Group {group_id} {'not found' if group is None else 'is not a classic group'}."
        return DescribedGroup(
            error_code=ErrorCode.group_id_not_found, error_message=text, group_id=group_id, group_state=DEAD
        )

    def delete(self, group_id: str, reply_to: ReplyTo) -> Decision:
        group = self._groups.get(group_id)
        if group is None:
            raise Refused(ErrorCode.group_id_not_found)
        group.check_delete()
        records = [*self._offsets.tombstones(group_id), *_tombstones(group)]
        return Decision(records, ((reply_to, DeletableGroupResult(group_id=group_id)),))

    # Records.

    def replay(self, key: object, value: object | None, producer: ProducerIdAndEpoch | None = None) -> None:
        """All durable changes go through here."""
        if type(key) is OffsetCommitKey:
            assert value is None or isinstance(value, OffsetCommitValue)
            if producer is None and value is not None:
                self.replay_offsets(key.group_id, key.topic, {key.partition: value})
                return
            self._offsets.replay(key, value, None if producer is None else producer.producer_id)
            if producer is None:
                self._replayed_offset(key.group_id, gone=True)
        elif type(key) is GroupMetadataKey:
            assert value is None or isinstance(value, GroupMetadataValue)
            self._replay_classic(key.group_id, value)
        elif isinstance(key, tuple):
            self._replay_consumer(key, value)

    def replay_offsets(self, group_id: str, topic: str, commits: Mapping[int, Committed]) -> None:
        """The offset of one record, or all of one commit."""
        self._offsets.replay_all(group_id, topic, commits)
        if group_id not in self._groups:
            self._replayed_offset(group_id, gone=False)

    def replay_end(self, producer_id: int, *, committed: bool) -> None:
        for group_id in self._offsets.replay_end(producer_id, committed=committed):
            self._replayed_offset(group_id, gone=False)

    def _replayed_offset(self, group_id: str, *, gone: bool) -> None:
        group = self._groups.get(group_id)
        if group is None and not gone:
            self._groups[group_id] = ClassicGroup(group_id, self._context)
        elif group is not None and gone:
            self._forget_if_nothing(group)

    def _replay_classic(self, group_id: str, value: GroupMetadataValue | None) -> None:
        group = self._groups.get(group_id)
        if value is not None:
            if not isinstance(group, ClassicGroup):
                group = self._groups[group_id] = ClassicGroup(group_id, self._context)
            if not group.recorded:  # it may exist already with offsets only
                self._unsettled.add(group_id)
            group.replay(value)
        elif isinstance(group, ClassicGroup):
            self._drop(group)

    def _replay_consumer(self, key: tuple[object, ...], value: object | None) -> None:
        group_id = key[0]
        assert isinstance(group_id, str)
        group = self._groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            if value is None:
                return
            group = ConsumerGroup(group_id, self._context)
            self._groups[group_id] = group
            self._unsettled.add(group_id)
        group.replay(key, value)
        if value is None and type(key) is ConsumerGroupMetadataKey:
            self._drop(group)

    def _drop(self, group: Group) -> None:
        """Remove the group. If it has offsets, an empty classic group takes its place."""
        del self._groups[group.id]
        if self._offsets.has(group.id):
            self._groups[group.id] = ClassicGroup(group.id, self._context)

    def _is_idle(self, group: Group) -> bool:
        return group.is_idle if isinstance(group, ClassicGroup) else group.is_empty

    def _forget_if_nothing(self, group: Group) -> None:
        """Remove a group without records, members and offsets."""
        if not isinstance(group, ClassicGroup) or group.recorded or not group.is_idle:
            return
        if not self._offsets.has(group.id) and self._groups.get(group.id) is group:
            del self._groups[group.id]

    # Time.

    @property
    def deadline(self) -> float | None:
        first = self._due or self._times
        return first[0][0] if first else None

    def _schedule(self, group: Group, decision: Decision) -> Decision:
        when = group.deadline
        if when is not None and when < self._scheduled.get(group.id, _NEVER):
            self._scheduled[group.id] = when
            heapq.heappush(self._times, (when, group.id))
        return decision

    def expire(self, now: float, now_ms: int) -> Iterator[Decision]:
        """Wake the groups whose deadline has passed. Each decision has to be applied before the next one is taken."""
        while self._times and self._times[0][0] <= now:
            self._due.append(heapq.heappop(self._times))
        while self._due:
            when, group_id = self._due.popleft()
            if self._scheduled.get(group_id) != when:
                continue  # it had an earlier entry
            del self._scheduled[group_id]
            group = self._groups.get(group_id)
            if group is None:
                continue
            decision = group.expire(now, now_ms)
            if decision.records or decision.replies:
                yield decision
            if (after := self._groups.get(group_id)) is not None:  # it may be of another type now
                self._schedule(after, NOTHING)
            self._forget_if_nothing(group)

    def settle(self, now: float, now_ms: int) -> Iterator[Decision]:
        """After replay: start the timers of new groups."""
        while self._unsettled:
            group = self._groups.get(self._unsettled.pop())
            if group is not None:
                yield self._schedule(group, group.settle(now, now_ms))
                self._schedule(group, NOTHING)

    def pending_replies(self) -> Iterator[ReplyTo]:
        for group in self._groups.values():
            yield from group.pending_replies()


_NEVER = float("inf")


def _tombstones(group: Group) -> list[LogRecord]:
    """A group with offsets only has no record."""
    return group.tombstones() if not isinstance(group, ClassicGroup) or group.recorded else []
