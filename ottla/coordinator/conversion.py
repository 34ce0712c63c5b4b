"""Online migration between classic and consumer groups (KIP-848), one member after another.

Upgrade: a member of the consumer protocol joins a classic group of consumers. The group becomes a consumer group with
the same assignments; its classic members have to rejoin, and keep the classic protocol. Downgrade: the last member
of the consumer protocol has left. The group becomes a classic group of the remaining members, and rebalances.

The tombstones of the one type and the records of the other are appended as one batch: at no time is there a group of
both types or of none. `group.consumer.migration.policy` says which of the two is allowed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from ottla.cluster.image import Image
from ottla.coordinator.assignors import EMPTY, Assignment, by_topic
from ottla.coordinator.classic_group import ClassicGroup
from ottla.coordinator.classic_members import ClassicMember
from ottla.coordinator.consumer_group_data import ConsumerGroupData
from ottla.coordinator.consumer_group_member import (
    ClassicSide,
    ConsumerMember,
    current_record,
    metadata_record,
    target_record,
)
from ottla.coordinator.decision import Decision, LogRecord
from ottla.coordinator.group_context import GroupContext
from ottla.coordinator.group_record_values import GroupMetadataValue, MemberMetadata
from ottla.coordinator.group_records import GroupMetadataKey
from ottla.coordinator.target import metadata_hash
from ottla.errors import BadFrame, ErrorCode, Refused
from ottla.wire.consumer_protocol import (
    PROTOCOL_TYPE,
    decode_assignment_and_data,
    decode_subscription,
    encode_assignment,
    version_of,
)
from ottla.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from ottla.coordinator.consumer_group import ConsumerGroup

UPGRADES = ("bidirectional", "upgrade")
DOWNGRADES = ("bidirectional", "downgrade")
KNOWN_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
"""The user data of these assignors (librdkafka's sticky ones) only repeats the last assignment. Other assignors may
need theirs, so their groups are not upgraded. (Kafka refuses all assignments with user data.)"""


def topic_ids(partitions: Iterable[TopicPartition], image: Image) -> Assignment:
    """The ids of existing topics, from the names that classic members use."""
    return by_topic((image.topics[topic].id, partition) for topic, partition in partitions if topic in image.topics)


def classic_assignment(assignment: Assignment, image: Image, subscription: bytes) -> bytes:
    """For SyncGroup, in the version of the member's subscription."""
    partitions = [
        TopicPartition(image.names[topic_id], partition)
        for topic_id, each in assignment.items()
        if topic_id in image.names
        for partition in each
    ]
    return encode_assignment(partitions, b"", version=version_of(subscription))


def upgrade(classic: ClassicGroup, context: GroupContext) -> Decision:
    """Turns a classic group into a consumer group of the same members. Refused if that is not possible."""
    members = _upgraded_members(classic, context)
    again = Refused(ErrorCode.rebalance_in_progress)
    return Decision(
        [*classic.tombstones(), *_records_of(classic, members, context)],
        [(reply_to, again) for reply_to in classic.pending_replies()],
    )


def upgraded(classic: ClassicGroup) -> None:
    """The upgrade is decided, with replies to all waiting requests of the classic group: forget them."""
    for each in classic.members:
        classic.members.take_join(each)
        each.syncing = None


def _upgraded_members(classic: ClassicGroup, context: GroupContext) -> list[ConsumerMember]:
    why = f"Cannot upgrade classic group {classic.id} to consumer group: "
    if context.config.group_consumer_migration_policy not in UPGRADES:
        raise Refused(ErrorCode.group_id_not_found, why + "online upgrade is disabled.")
    if classic.protocol_type != PROTOCOL_TYPE:
        raise Refused(ErrorCode.group_id_not_found, why + "its members are no consumers.")
    if len(classic.members) > context.config.group_consumer_max_size:
        raise Refused(ErrorCode.group_id_not_found, why + "it has more members than a consumer group may have.")
    try:
        return [_upgraded(each, classic, context, why) for each in classic.members]
    except BadFrame as failure:
        raise Refused(ErrorCode.group_id_not_found, f"{why}a member's subscription is malformed: {failure}") from None


def _upgraded(member: ClassicMember, classic: ClassicGroup, context: GroupContext, why: str) -> ConsumerMember:
    # In the first rebalance no protocol has been chosen yet; all protocols carry the same topics.
    subscription = decode_subscription(member.metadata(classic.protocol) or member.protocols[0][1])
    assigned, user_data = decode_assignment_and_data(member.assignment)
    if user_data and classic.protocol not in KNOWN_ASSIGNORS:
        raise Refused(ErrorCode.group_id_not_found, why + "a custom assignor is in use.")
    return ConsumerMember(
        member.id,
        epoch=classic.generation,
        previous_epoch=classic.generation,
        assigned=topic_ids(assigned, context.image),
        instance_id=member.instance_id,
        rack_id=subscription.rack or None,
        client_id=member.client.id,
        client_host=member.client.host,
        topic_names=frozenset(subscription.topics),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicSide(member.session_timeout_ms, tuple(member.protocols)),
    )


def _records_of(classic: ClassicGroup, members: Collection[ConsumerMember], context: GroupContext) -> list[LogRecord]:
    state = ConsumerGroupData(classic.id)
    epoch = classic.generation
    return [
        *(metadata_record(classic.id, member) for member in members),
        state.epoch_record(epoch, metadata_hash(members, {}, context.image)),
        *(target_record(classic.id, member.id, member.assigned) for member in members),
        state.target_epoch_record(epoch),
        *(current_record(classic.id, member) for member in members),
    ]


def can_downgrade(group: ConsumerGroup, left: Mapping[str, ConsumerMember]) -> bool:
    config = group.context.config
    return (
        bool(left)
        and all(member.classic is not None for member in left.values())
        and config.group_consumer_migration_policy in DOWNGRADES
        and len(left) <= config.group_max_size
    )


def downgrade(group: ConsumerGroup, left: Mapping[str, ConsumerMember], now_ms: int) -> list[LogRecord]:
    """The records of a classic group of the remaining members. It has no leader: so it rebalances."""
    protocol = _select_protocol([member.classic for member in left.values() if member.classic is not None])
    members = []
    for member in left.values():
        assert member.classic is not None
        subscription = dict(member.classic.protocols)[protocol]
        target = group.state.targets.get(member.id, EMPTY)
        members.append(
            MemberMetadata(
                member_id=member.id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.classic.session_timeout_ms,
                subscription=subscription,
                assignment=classic_assignment(target, group.context.image, subscription),
            )
        )
    value = GroupMetadataValue(
        protocol_type=PROTOCOL_TYPE,
        generation=group.state.epoch,
        protocol=protocol,
        leader=None,
        current_state_timestamp_ms=now_ms,
        members=members,
    )
    return [*group.tombstones(), LogRecord(GroupMetadataKey(group.id), value)]


def _select_protocol(members: Collection[ClassicSide]) -> str:
    """The assignor that all support and most prefer."""
    common = set.intersection(*({name for name, _ in member.protocols} for member in members))
    votes: dict[str, int] = {}
    for member in members:
        favourite = next(name for name, _ in member.protocols if name in common)
        votes[favourite] = votes.get(favourite, 0) + 1
    return max(sorted(votes), key=votes.__getitem__)
