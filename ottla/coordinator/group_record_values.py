"""The values of `__consumer_offsets` that are coded by table: what Kafka calls GroupMetadata and ConsumerGroup*.

The tables follow Kafka's schemas field by field; `wire.tree` explains their notation.
"""

from __future__ import annotations

from ottla.wire.tree import UNSET, ZERO_UUID, Message, Struct


class ClassicGroupMember(Struct):
    """A member of a classic group, with what the chosen protocol says of it."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "group_instance_id",
        "member_id",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "subscription",
    )
    FIELDS = (
        "member_id string 0+",
        "group_instance_id string 3+ null 3+",
        "client_id string 0+",
        "client_host string 0+",
        "rebalance_timeout_ms int32 1+",
        "session_timeout_ms int32 0+",
        "subscription bytes 0+",
        "assignment bytes 0+",
    )

    def __init__(
        self,
        *,
        member_id: str = "",
        group_instance_id: str | None = None,
        client_id: str = "",
        client_host: str = "",
        rebalance_timeout_ms: int = -1,
        session_timeout_ms: int = 0,
        subscription: bytes = b"",
        assignment: bytes = b"",
    ) -> None:
        self.member_id: str = member_id
        self.group_instance_id: str | None = group_instance_id
        self.client_id: str = client_id
        self.client_host: str = client_host
        self.rebalance_timeout_ms: int = rebalance_timeout_ms
        self.session_timeout_ms: int = session_timeout_ms
        self.subscription: bytes = subscription
        self.assignment: bytes = assignment


class GroupMetadataValue(Message):
    __slots__ = ("current_state_timestamp_ms", "generation", "leader", "members", "protocol", "protocol_type")
    API_KEY = -1
    KIND = "data"
    VERSIONS = (0, 4)
    FLEXIBLE_FROM = 4
    FIELDS = (
        "protocol_type string 0+",
        "generation int32 0+",
        "protocol string 0+ null 0+",
        "leader string 0+ null 0+",
        "current_state_timestamp_ms int64 2+",
        "members []ClassicGroupMember 0+",
    )

    def __init__(
        self,
        *,
        protocol_type: str = "",
        generation: int = 0,
        protocol: str | None = None,
        leader: str | None = None,
        current_state_timestamp_ms: int = -1,
        members: list[ClassicGroupMember] = UNSET,
    ) -> None:
        self.protocol_type: str = protocol_type
        self.generation: int = generation
        self.protocol: str | None = protocol
        self.leader: str | None = leader
        self.current_state_timestamp_ms: int = current_state_timestamp_ms
        self.members: list[ClassicGroupMember] = [] if members is UNSET else members


class ConsumerGroupMetadataValue(Message):
    __slots__ = ("epoch", "metadata_hash")
    API_KEY = -1
    KIND = "data"
    VERSIONS = (0, 0)
    FLEXIBLE_FROM = 0
    FIELDS = (
        "epoch int32 0+",
        "metadata_hash int64 0+ tag 0",
    )

    def __init__(
        self,
        *,
        epoch: int = 0,
        metadata_hash: int = 0,
    ) -> None:
        self.epoch: int = epoch
        self.metadata_hash: int = metadata_hash


class PartitionRacks(Struct):
    __slots__ = ("partition", "racks")
    FIELDS = (
        "partition int32 0+",
        "racks []string 0+",
    )

    def __init__(
        self,
        *,
        partition: int = 0,
        racks: list[str] = UNSET,
    ) -> None:
        self.partition: int = partition
        self.racks: list[str] = [] if racks is UNSET else racks


class TopicMetadata(Struct):
    __slots__ = ("partition_count", "partition_metadata", "topic_id", "topic_name")
    FIELDS = (
        "topic_id uuid 0+",
        "topic_name string 0+",
        "partition_count int32 0+",
        "partition_metadata []PartitionRacks 0+",
    )

    def __init__(
        self,
        *,
        topic_id: bytes = ZERO_UUID,
        topic_name: str = "",
        partition_count: int = 0,
        partition_metadata: list[PartitionRacks] = UNSET,
    ) -> None:
        self.topic_id: bytes = topic_id
        self.topic_name: str = topic_name
        self.partition_count: int = partition_count
        self.partition_metadata: list[PartitionRacks] = [] if partition_metadata is UNSET else partition_metadata


class ConsumerGroupPartitionMetadataValue(Message):
    __slots__ = ("topics",)
    API_KEY = -1
    KIND = "data"
    VERSIONS = (0, 0)
    FLEXIBLE_FROM = 0
    FIELDS = ("topics []TopicMetadata 0+",)

    def __init__(
        self,
        *,
        topics: list[TopicMetadata] = UNSET,
    ) -> None:
        self.topics: list[TopicMetadata] = [] if topics is UNSET else topics


class ClassicProtocol(Struct):
    __slots__ = ("metadata", "name")
    FIELDS = (
        "name string 0+",
        "metadata bytes 0+",
    )

    def __init__(
        self,
        *,
        name: str = "",
        metadata: bytes = b"",
    ) -> None:
        self.name: str = name
        self.metadata: bytes = metadata


class ClassicMemberMetadata(Struct):
    """What a member of a consumer group said that speaks the classic protocol."""

    __slots__ = ("session_timeout_ms", "supported_protocols")
    FIELDS = (
        "session_timeout_ms int32 0+",
        "supported_protocols []ClassicProtocol 0+",
    )

    def __init__(
        self,
        *,
        session_timeout_ms: int = 0,
        supported_protocols: list[ClassicProtocol] = UNSET,
    ) -> None:
        self.session_timeout_ms: int = session_timeout_ms
        self.supported_protocols: list[ClassicProtocol] = [] if supported_protocols is UNSET else supported_protocols


class ConsumerGroupMemberMetadataValue(Message):
    __slots__ = (
        "classic_member_metadata",
        "client_host",
        "client_id",
        "instance_id",
        "rack_id",
        "rebalance_timeout_ms",
        "server_assignor",
        "subscribed_topic_names",
        "subscribed_topic_regex",
    )
    API_KEY = -1
    KIND = "data"
    VERSIONS = (0, 0)
    FLEXIBLE_FROM = 0
    FIELDS = (
        "instance_id string 0+ null 0+",
        "rack_id string 0+ null 0+",
        "client_id string 0+",
        "client_host string 0+",
        "subscribed_topic_names []string 0+",
        "subscribed_topic_regex string 0+ null 0+",
        "rebalance_timeout_ms int32 0+",
        "server_assignor string 0+ null 0+",
        "classic_member_metadata ClassicMemberMetadata 0+ null 0+ tag 0",
    )

    def __init__(
        self,
        *,
        instance_id: str | None = None,
        rack_id: str | None = None,
        client_id: str = "",
        client_host: str = "",
        subscribed_topic_names: list[str] = UNSET,
        subscribed_topic_regex: str | None = None,
        rebalance_timeout_ms: int = -1,
        server_assignor: str | None = None,
        classic_member_metadata: ClassicMemberMetadata | None = UNSET,
    ) -> None:
        """Left out, a member is a classic one with nothing to say: so Kafka reads it, and never leaves it out."""
        self.instance_id: str | None = instance_id
        self.rack_id: str | None = rack_id
        self.client_id: str = client_id
        self.client_host: str = client_host
        self.subscribed_topic_names: list[str] = [] if subscribed_topic_names is UNSET else subscribed_topic_names
        self.subscribed_topic_regex: str | None = subscribed_topic_regex
        self.rebalance_timeout_ms: int = rebalance_timeout_ms
        self.server_assignor: str | None = server_assignor
        self.classic_member_metadata: ClassicMemberMetadata | None = (
            ClassicMemberMetadata() if classic_member_metadata is UNSET else classic_member_metadata
        )


class ConsumerGroupTargetAssignmentMetadataValue(Message):
    __slots__ = ("assignment_epoch",)
    API_KEY = -1
    KIND = "data"
    VERSIONS = (0, 0)
    FLEXIBLE_FROM = 0
    FIELDS = ("assignment_epoch int32 0+",)

    def __init__(
        self,
        *,
        assignment_epoch: int = 0,
    ) -> None:
        self.assignment_epoch: int = assignment_epoch


class TopicPartitions(Struct):
    __slots__ = ("partitions", "topic_id")
    FIELDS = (
        "topic_id uuid 0+",
        "partitions []int32 0+",
    )

    def __init__(
        self,
        *,
        topic_id: bytes = ZERO_UUID,
        partitions: list[int] = UNSET,
    ) -> None:
        self.topic_id: bytes = topic_id
        self.partitions: list[int] = [] if partitions is UNSET else partitions


class ConsumerGroupTargetAssignmentMemberValue(Message):
    __slots__ = ("topic_partitions",)
    API_KEY = -1
    KIND = "data"
    VERSIONS = (0, 0)
    FLEXIBLE_FROM = 0
    FIELDS = ("topic_partitions []TopicPartitions 0+",)

    def __init__(
        self,
        *,
        topic_partitions: list[TopicPartitions] = UNSET,
    ) -> None:
        self.topic_partitions: list[TopicPartitions] = [] if topic_partitions is UNSET else topic_partitions


class ConsumerGroupCurrentMemberAssignmentValue(Message):
    __slots__ = (
        "assigned_partitions",
        "member_epoch",
        "partitions_pending_revocation",
        "previous_member_epoch",
        "state",
    )
    API_KEY = -1
    KIND = "data"
    VERSIONS = (0, 0)
    FLEXIBLE_FROM = 0
    FIELDS = (
        "member_epoch int32 0+",
        "previous_member_epoch int32 0+",
        "state int8 0+",
        "assigned_partitions []TopicPartitions 0+",
        "partitions_pending_revocation []TopicPartitions 0+",
    )

    def __init__(
        self,
        *,
        member_epoch: int = 0,
        previous_member_epoch: int = 0,
        state: int = 0,
        assigned_partitions: list[TopicPartitions] = UNSET,
        partitions_pending_revocation: list[TopicPartitions] = UNSET,
    ) -> None:
        self.member_epoch: int = member_epoch
        self.previous_member_epoch: int = previous_member_epoch
        self.state: int = state
        self.assigned_partitions: list[TopicPartitions] = [] if assigned_partitions is UNSET else assigned_partitions
        self.partitions_pending_revocation: list[TopicPartitions] = (
            [] if partitions_pending_revocation is UNSET else partitions_pending_revocation
        )


class ConsumerGroupRegularExpressionValue(Message):
    __slots__ = ("timestamp_ms", "topics", "version")
    API_KEY = -1
    KIND = "data"
    VERSIONS = (0, 0)
    FLEXIBLE_FROM = 0
    FIELDS = (
        "topics []string 0+",
        "version int64 0+",
        "timestamp_ms int64 0+",
    )

    def __init__(
        self,
        *,
        topics: list[str] = UNSET,
        version: int = 0,
        timestamp_ms: int = 0,
    ) -> None:
        self.topics: list[str] = [] if topics is UNSET else topics
        self.version: int = version
        self.timestamp_ms: int = timestamp_ms
