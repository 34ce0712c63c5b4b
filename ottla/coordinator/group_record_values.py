"""Values of `__consumer_offsets`: Kafka's GroupMetadataValue and ConsumerGroup*Value, field by field
(`record_schema`)."""

from __future__ import annotations

from ottla.coordinator.record_schema import RecordValue, schema, wire
from ottla.wire.tree import ZERO_UUID, Struct


@schema
class MemberMetadata(Struct):
    """A member of a classic group, with the subscription and assignment of the chosen protocol."""

    member_id: str = wire("string 0+", default="")
    group_instance_id: str | None = wire("string 3+ null 3+", default=None)
    client_id: str = wire("string 0+", default="")
    client_host: str = wire("string 0+", default="")
    rebalance_timeout_ms: int = wire("int32 1+", default=-1)
    session_timeout_ms: int = wire("int32 0+", default=0)
    subscription: bytes = wire("bytes 0+", default=b"")
    assignment: bytes = wire("bytes 0+", default=b"")


@schema
class GroupMetadataValue(RecordValue):
    VERSIONS = (0, 4)
    FLEXIBLE_FROM = 4

    protocol_type: str = wire("string 0+", default="")
    generation: int = wire("int32 0+", default=0)
    protocol: str | None = wire("string 0+ null 0+", default=None)
    leader: str | None = wire("string 0+ null 0+", default=None)
    current_state_timestamp_ms: int = wire("int64 2+", default=-1)
    members: list[MemberMetadata] = wire("[]MemberMetadata 0+", default_factory=list)


@schema
class ConsumerGroupMetadataValue(RecordValue):
    epoch: int = wire("int32 0+", default=0)
    metadata_hash: int = wire("int64 0+ tag 0", default=0)


@schema
class PartitionRacks(Struct):
    partition: int = wire("int32 0+", default=0)
    racks: list[str] = wire("[]string 0+", default_factory=list)


@schema
class TopicMetadata(Struct):
    topic_id: bytes = wire("uuid 0+", default=ZERO_UUID)
    topic_name: str = wire("string 0+", default="")
    partition_count: int = wire("int32 0+", default=0)
    partition_metadata: list[PartitionRacks] = wire("[]PartitionRacks 0+", default_factory=list)


@schema
class ConsumerGroupPartitionMetadataValue(RecordValue):
    topics: list[TopicMetadata] = wire("[]TopicMetadata 0+", default_factory=list)


@schema
class ClassicProtocol(Struct):
    name: str = wire("string 0+", default="")
    metadata: bytes = wire("bytes 0+", default=b"")


@schema
class ClassicMemberMetadata(Struct):
    """Fields of a classic member in a consumer group."""

    session_timeout_ms: int = wire("int32 0+", default=0)
    supported_protocols: list[ClassicProtocol] = wire("[]ClassicProtocol 0+", default_factory=list)


@schema
class ConsumerGroupMemberMetadataValue(RecordValue):
    instance_id: str | None = wire("string 0+ null 0+", default=None)
    rack_id: str | None = wire("string 0+ null 0+", default=None)
    client_id: str = wire("string 0+", default="")
    client_host: str = wire("string 0+", default="")
    subscribed_topic_names: list[str] = wire("[]string 0+", default_factory=list)
    subscribed_topic_regex: str | None = wire("string 0+ null 0+", default=None)
    rebalance_timeout_ms: int = wire("int32 0+", default=-1)
    server_assignor: str | None = wire("string 0+ null 0+", default=None)
    classic_member_metadata: ClassicMemberMetadata | None = wire(
        "ClassicMemberMetadata 0+ null 0+ tag 0", default_factory=ClassicMemberMetadata
    )
    """If the tag is missing, Kafka reads a classic member without protocols; Kafka always writes it."""


@schema
class ConsumerGroupTargetAssignmentMetadataValue(RecordValue):
    assignment_epoch: int = wire("int32 0+", default=0)


@schema
class TopicPartitions(Struct):
    topic_id: bytes = wire("uuid 0+", default=ZERO_UUID)
    partitions: list[int] = wire("[]int32 0+", default_factory=list)


@schema
class ConsumerGroupTargetAssignmentMemberValue(RecordValue):
    topic_partitions: list[TopicPartitions] = wire("[]TopicPartitions 0+", default_factory=list)


@schema
class ConsumerGroupCurrentMemberAssignmentValue(RecordValue):
    member_epoch: int = wire("int32 0+", default=0)
    previous_member_epoch: int = wire("int32 0+", default=0)
    state: int = wire("int8 0+", default=0)
    assigned_partitions: list[TopicPartitions] = wire("[]TopicPartitions 0+", default_factory=list)
    partitions_pending_revocation: list[TopicPartitions] = wire("[]TopicPartitions 0+", default_factory=list)


@schema
class ConsumerGroupRegularExpressionValue(RecordValue):
    topics: list[str] = wire("[]string 0+", default_factory=list)
    version: int = wire("int64 0+", default=0)
    timestamp_ms: int = wire("int64 0+", default=0)
