"""A member of a consumer group, and its records.

A member is immutable; a change makes a new one. It has three records in the log: its metadata (client and
subscription), its current assignment (epoch, state and partitions), and its target assignment.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from ottla.coordinator.assignors import EMPTY, Assignment, by_topic
from ottla.coordinator.decision import LogRecord
from ottla.coordinator.group_record_values import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupTargetAssignmentMemberValue,
    TopicPartitions,
)
from ottla.coordinator.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
)

JOINING: Final = 0
"""The epoch of a member that joins, or rejoins without partitions."""
LEAVING: Final = -1
LEAVING_STATIC: Final = -2
"""A static member leaves, and its assignment is kept until its session ends."""


class MemberState(IntEnum):
    """The state of reconciliation. The numbers are those of the log."""

    STABLE = 0
    """It has the target assignment of its epoch."""
    UNREVOKED = 1
    """It has to revoke partitions, and has not confirmed it yet."""
    UNRELEASED = 2
    """Other members have not released the rest of its target yet."""
    UNKNOWN = 127


class Timer(IntEnum):
    """The timers of a member."""

    SESSION = 0
    REVOCATION = 1
    JOIN = 2
    SYNC = 3


class ClassicSide(NamedTuple):
    """What only a classic member has."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Its assignors, preferred ones first, each with the encoded subscription."""


class ConsumerMember(NamedTuple):
    id: str
    epoch: int = JOINING
    previous_epoch: int = JOINING
    state: MemberState = MemberState.STABLE
    assigned: Assignment = EMPTY
    revoking: Assignment = EMPTY
    """Partitions that it has to revoke before another member gets them."""
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    regex: str = ""
    """Empty: it subscribes by names only."""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicSide | None = None

    def moved_to(self, epoch: int) -> ConsumerMember:
        """The previous epoch is kept: the response with the new one may be lost."""
        return self if epoch == self.epoch else self._replace(epoch=epoch, previous_epoch=self.epoch)

    def reconciled(self, epoch: int) -> bool:
        return self.state == MemberState.STABLE and self.epoch == epoch


class HasTopicPartitions(Protocol):
    topic_id: bytes
    partitions: list[int]


def assignment_of(topics: Iterable[HasTopicPartitions]) -> Assignment:
    return by_topic((topic.topic_id, partition) for topic in topics for partition in topic.partitions)


def _wire_partitions(assignment: Assignment) -> list[TopicPartitions]:
    return [
        TopicPartitions(topic_id=topic_id, partitions=sorted(assignment[topic_id])) for topic_id in sorted(assignment)
    ]


# Records.


def metadata_record(group_id: str, member: ConsumerMember) -> LogRecord:
    classic = member.classic
    return LogRecord(
        ConsumerGroupMemberMetadataKey(group_id, member.id),
        ConsumerGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topic_names),
            subscribed_topic_regex=member.regex,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            server_assignor=member.server_assignor,
            classic_member_metadata=classic
            and ClassicMemberMetadata(
                session_timeout_ms=classic.session_timeout_ms,
                supported_protocols=[ClassicProtocol(name=name, metadata=said) for name, said in classic.protocols],
            ),
        ),
    )


def with_metadata(member: ConsumerMember, value: ConsumerGroupMemberMetadataValue) -> ConsumerMember:
    said = value.classic_member_metadata
    classic = None
    if said is not None:
        protocols = tuple((protocol.name, protocol.metadata) for protocol in said.supported_protocols)
        classic = ClassicSide(said.session_timeout_ms, protocols)
    return member._replace(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topic_names=frozenset(value.subscribed_topic_names),
        regex=value.subscribed_topic_regex or "",
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
        classic=classic,
    )


def current_record(group_id: str, member: ConsumerMember) -> LogRecord:
    return LogRecord(
        ConsumerGroupCurrentMemberAssignmentKey(group_id, member.id),
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=member.state,
            assigned_partitions=_wire_partitions(member.assigned),
            partitions_pending_revocation=_wire_partitions(member.revoking),
        ),
    )


def with_current(member: ConsumerMember, value: ConsumerGroupCurrentMemberAssignmentValue) -> ConsumerMember:
    known = value.state in (MemberState.STABLE, MemberState.UNREVOKED, MemberState.UNRELEASED)
    return member._replace(
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state) if known else MemberState.UNKNOWN,
        assigned=assignment_of(value.assigned_partitions),
        revoking=assignment_of(value.partitions_pending_revocation),
    )


def target_record(group_id: str, member_id: str, target: Assignment) -> LogRecord:
    return LogRecord(
        ConsumerGroupTargetAssignmentMemberKey(group_id, member_id),
        ConsumerGroupTargetAssignmentMemberValue(topic_partitions=_wire_partitions(target)),
    )


def target_of(value: ConsumerGroupTargetAssignmentMemberValue) -> Assignment:
    return assignment_of(value.topic_partitions)


def member_tombstones(group_id: str, member_id: str) -> list[LogRecord]:
    """In this order: after a part of them the member still exists."""
    return [
        LogRecord(ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), None),
        LogRecord(ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), None),
        LogRecord(ConsumerGroupMemberMetadataKey(group_id, member_id), None),
    ]
