"""The durable state of a consumer group (KIP-848): what its records say. Changed by `replay` only.

group epoch         rises with every reason for a new assignment: a subscription, a member gone, topics
target epoch        the group epoch that the target assignment was computed for
member epoch        the target epoch that a member has reached
"""

from __future__ import annotations

from enum import Enum

from ottla.cluster.image import Image
from ottla.coordinator.assignors import EMPTY, Assignment
from ottla.coordinator.consumer_group_member import (
    JOINING,
    ConsumerMember,
    MemberState,
    member_tombstones,
    target_of,
    with_current,
    with_metadata,
)
from ottla.coordinator.decision import LogRecord
from ottla.coordinator.group_record_values import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from ottla.coordinator.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
)
from ottla.coordinator.target import Resolved, subscribed_names
from ottla.wire.schema import consumer_group_describe as described


class ConsumerGroupState(Enum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ConsumerGroupData:
    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.target_epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        self.static_ids: dict[str, str] = {}
        self.targets: dict[str, Assignment] = {}
        self.regexes: dict[str, Resolved] = {}
        self.has_partition_metadata = False
        self._owners: dict[tuple[bytes, int], str] = {}
        self._subscribed: frozenset[str] | None = None

    @property
    def exists(self) -> bool:
        """Whether it has any record."""
        return self.epoch > 0 or bool(self.members)

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.reconciled(self.target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self.static_ids.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def owner(self, topic_id: bytes, partition: int) -> str | None:
        """The member that is assigned a partition, or has not revoked it yet."""
        return self._owners.get((topic_id, partition))

    def subscribes_to(self, topic: str) -> bool:
        if self._subscribed is None:
            names = (subscribed_names(member, self.regexes) for member in self.members.values())
            self._subscribed = frozenset[str]().union(*names)
        return topic in self._subscribed

    # Records.

    def replay(self, key: object, value: object) -> None:
        self._subscribed = None
        match key:
            case ConsumerGroupMetadataKey():
                self._replay_group(value)
            case ConsumerGroupPartitionMetadataKey():
                self.has_partition_metadata = value is not None
            case ConsumerGroupMemberMetadataKey(_, member_id):
                self._replay_member(member_id, value)
            case ConsumerGroupTargetAssignmentMetadataKey():
                self.target_epoch = (
                    value.assignment_epoch if isinstance(value, ConsumerGroupTargetAssignmentMetadataValue) else 0
                )
            case ConsumerGroupTargetAssignmentMemberKey(_, member_id):
                if isinstance(value, ConsumerGroupTargetAssignmentMemberValue):
                    self.targets[member_id] = target_of(value)
                else:
                    self.targets.pop(member_id, None)
            case ConsumerGroupCurrentMemberAssignmentKey(_, member_id):
                self._replay_current(member_id, value)
            case ConsumerGroupRegularExpressionKey(_, regex):
                if isinstance(value, ConsumerGroupRegularExpressionValue):
                    self.regexes[regex] = Resolved(frozenset(value.topics), value.version, value.timestamp_ms)
                else:
                    self.regexes.pop(regex, None)

    def _replay_group(self, value: object) -> None:
        if isinstance(value, ConsumerGroupMetadataValue):
            self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
        else:
            self.epoch = self.metadata_hash = 0

    def _replay_member(self, member_id: str, value: object) -> None:
        old = self.members.get(member_id)
        if old is not None and old.instance_id is not None and self.static_ids.get(old.instance_id) == member_id:
            del self.static_ids[old.instance_id]
        if not isinstance(value, ConsumerGroupMemberMetadataValue):
            self.members.pop(member_id, None)
            if old is not None:
                self._disown(old)
            return
        member = self.members[member_id] = with_metadata(old or ConsumerMember(member_id), value)
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member_id

    def _replay_current(self, member_id: str, value: object) -> None:
        old = self.members.get(member_id)
        if not isinstance(value, ConsumerGroupCurrentMemberAssignmentValue):
            if old is not None:
                self._disown(old)
                self.members[member_id] = old._replace(
                    epoch=JOINING, previous_epoch=JOINING, state=MemberState.STABLE, assigned=EMPTY, revoking=EMPTY
                )
            return
        # After compaction the assignment may precede the member's metadata, or its tombstone may follow.
        new = with_current(old or ConsumerMember(member_id), value)
        if old is not None:
            self._disown(old)
        self.members[member_id] = new
        for assignment in (new.assigned, new.revoking):
            for topic_id, partitions in assignment.items():
                for partition in partitions:
                    self._owners[topic_id, partition] = member_id

    def _disown(self, member: ConsumerMember) -> None:
        for assignment in (member.assigned, member.revoking):
            for topic_id, partitions in assignment.items():
                for partition in partitions:
                    if self._owners.get((topic_id, partition)) == member.id:
                        del self._owners[topic_id, partition]

    def epoch_record(self, epoch: int, metadata_hash: int) -> LogRecord:
        return LogRecord(
            ConsumerGroupMetadataKey(self.group_id),
            ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
        )

    def target_epoch_record(self, epoch: int) -> LogRecord:
        return LogRecord(
            ConsumerGroupTargetAssignmentMetadataKey(self.group_id),
            ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch),
        )

    def regex_record(self, regex: str, resolved: Resolved | None) -> LogRecord:
        value = resolved and ConsumerGroupRegularExpressionValue(
            topics=sorted(resolved.topics), version=resolved.version, timestamp_ms=resolved.timestamp_ms
        )
        return LogRecord(ConsumerGroupRegularExpressionKey(self.group_id, regex), value)

    def tombstones(self) -> list[LogRecord]:
        """All records of the group, deleted; the group's own last, so that at no point a member has no group."""
        records = [record for member_id in self.members for record in member_tombstones(self.group_id, member_id)]
        records += [self.regex_record(regex, None) for regex in self.regexes]
        if self.has_partition_metadata:
            records.append(LogRecord(ConsumerGroupPartitionMetadataKey(self.group_id), None))
        records.append(LogRecord(ConsumerGroupTargetAssignmentMetadataKey(self.group_id), None))
        records.append(LogRecord(ConsumerGroupMetadataKey(self.group_id), None))
        return records

    # Describing.

    def describe(self, assignor: str, image: Image) -> described.DescribedGroup:
        return described.DescribedGroup(
            group_id=self.group_id,
            group_state=self.state.value,
            group_epoch=self.epoch,
            assignment_epoch=self.target_epoch,
            assignor_name=assignor,
            members=[self._describe_member(member, image) for member in self.members.values()],
        )

    def _describe_member(self, member: ConsumerMember, image: Image) -> described.Member:
        return described.Member(
            member_id=member.id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topic_names),
            subscribed_topic_regex=member.regex,
            assignment=_described(member.assigned, image),
            target_assignment=_described(self.targets.get(member.id, EMPTY), image),
            member_type=1 if member.classic is None else 0,
        )


def _described(assignment: Assignment, image: Image) -> described.Assignment:
    return described.Assignment(
        topic_partitions=[
            described.TopicPartitions(
                topic_id=topic_id, topic_name=image.names[topic_id], partitions=sorted(partitions)
            )
            for topic_id, partitions in assignment.items()
            if topic_id in image.names
        ]
    )
