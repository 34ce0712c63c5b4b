"""The durable state of a classic group, its record, and the checks on its offsets."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from ottla.coordinator.classic_members import Members
from ottla.coordinator.decision import LogRecord
from ottla.coordinator.group_context import GroupContext
from ottla.coordinator.group_record_values import GroupMetadataValue
from ottla.coordinator.group_records import NO_TIMESTAMP, GroupMetadataKey, OffsetCommitValue
from ottla.errors import ErrorCode, Refused
from ottla.wire.schema.describe_groups import DescribedGroup, DescribedGroupMember

CONSUMER = "consumer"
"""The protocol type of consumers: its metadata is a subscription."""


class ClassicGroupState(enum.Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class ClassicGroupData:
    __slots__ = (
        "_context", "generation", "id", "members", "protocol", "protocol_type", "recorded", "state",
        "state_since_ms",
    )  # fmt: skip

    type_name = "classic"

    def __init__(self, group_id: str, context: GroupContext) -> None:
        self.id = group_id
        self._context = context
        self.state = ClassicGroupState.EMPTY
        self.state_since_ms = NO_TIMESTAMP
        self.generation = 0
        self.protocol_type = ""
        """Empty: the group never had members, and only keeps offsets."""
        self.protocol: str | None = None
        self.members = Members()
        self.recorded = False
        """Whether the group has a record in the log, beside its offsets."""

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def member_count(self) -> int:
        return len(self.members)

    def _become(self, state: ClassicGroupState, now_ms: int) -> None:
        self.state = state
        self.state_since_ms = now_ms

    # The log.

    def snapshot(
        self, assignments: Mapping[str, bytes] | None = None, *, renamed: tuple[str, str] = ("", "")
    ) -> GroupMetadataValue:
        """The record of the group with these assignments (None: the current ones), or with a new id for one member."""
        old_id, new_id = renamed
        members = [
            member.record(
                self.protocol,
                member.assignment if assignments is None else assignments.get(member.id, b""),
                new_id if member.id == old_id else member.id,
            )
            for member in self.members
        ]
        leader = self.members.leader
        return GroupMetadataValue(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol,
            leader=new_id if leader == old_id else leader,
            current_state_timestamp_ms=self.state_since_ms,
            members=members,
        )

    def replay(self, value: GroupMetadataValue) -> None:
        """Take the state from a record. Known members keep the state that is not in the log."""
        self.recorded = True
        self.generation = value.generation
        self.protocol_type = value.protocol_type
        self.protocol = value.protocol
        self.state = ClassicGroupState.STABLE if value.members else ClassicGroupState.EMPTY
        self.state_since_ms = value.current_state_timestamp_ms
        recorded_ids = {member.member_id for member in value.members}
        for recorded in value.members:
            self.members.replay(recorded, value.protocol)
        for member in [member for member in self.members if member.id not in recorded_ids]:
            self.members.take_join(member)
            self.members.remove(member)
        self.members.leader = value.leader

    def tombstones(self) -> list[LogRecord]:
        return [LogRecord(GroupMetadataKey(self.id), None)]

    # Checks on the group and its offsets.

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, version: int, transactional: bool
    ) -> None:
        if generation < 0 and self.state is ClassicGroupState.EMPTY:
            return  # an administrator, or a consumer without group management
        if generation >= 0 or member_id or instance_id is not None:
            self.members.check(member_id, instance_id)
            if generation != self.generation:
                raise Refused(ErrorCode.illegal_generation)
        elif not transactional and self.state is not ClassicGroupState.EMPTY:
            raise Refused(ErrorCode.unknown_member_id)
        if not transactional and self.state is ClassicGroupState.COMPLETING:
            raise Refused(ErrorCode.rebalance_in_progress)

    def committed(self, member_id: str, now: float) -> None:
        member = self.members.get(member_id)
        if member is not None and self.state is not ClassicGroupState.COMPLETING and member.session_ends is not None:
            member.session_ends = now + member.session_timeout_ms / 1000

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Always allowed."""

    def check_offset_delete(self) -> None:
        if self.members and self.protocol_type != CONSUMER:
            raise Refused(ErrorCode.non_empty_group)  # its subscriptions are not known

    def check_delete(self) -> None:
        if self.state is not ClassicGroupState.EMPTY:
            raise Refused(ErrorCode.non_empty_group)

    def subscribes(self, topic: str) -> bool:
        if self.protocol_type != CONSUMER or not self.members:
            return False
        topics = self.members.subscribed_topics(self.protocol)
        return topics is None or topic in topics

    def kept_since_ms(self, commit: OffsetCommitValue) -> int | None:
        if not self.protocol_type:
            return commit.commit_timestamp_ms  # a consumer without group management
        if self.state is ClassicGroupState.EMPTY:
            return self.state_since_ms if self.state_since_ms != NO_TIMESTAMP else commit.commit_timestamp_ms
        if self.state is ClassicGroupState.STABLE and self.protocol_type == CONSUMER:
            return commit.commit_timestamp_ms  # the topic is not subscribed
        return None

    def describe(self) -> DescribedGroup:
        """Metadata and assignments only while the group is Stable."""
        stable = self.state is ClassicGroupState.STABLE
        members = [
            DescribedGroupMember(
                member_id=member.id,
                group_instance_id=member.instance_id,
                client_id=member.client.id,
                client_host=member.client.host,
                member_metadata=member.metadata(self.protocol) if stable else b"",
                member_assignment=member.assignment if stable else b"",
            )
            for member in self.members
        ]
        return DescribedGroup(
            group_id=self.id,
            group_state=self.state_name,
            protocol_type=self.protocol_type,
            protocol_data=(self.protocol or "") if stable else "",
            members=members,
        )
