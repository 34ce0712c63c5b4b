"""What members of the classic protocol put into JoinGroup and expect from SyncGroup, when they are consumers.

The classic coordinator passes these bytes on unread. A consumer group that has such members reads their subscriptions
and writes their assignments itself. Both begin with a version in two bytes; of a newer one we read what we know.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

from ottla.cluster.image import Image
from ottla.coordinator.assignors import Assignment, by_topic
from ottla.errors import BadFrame
from ottla.wire import messages
from ottla.wire.schema.consumer_protocol_assignment import ConsumerProtocolAssignment, TopicPartition
from ottla.wire.schema.consumer_protocol_subscription import ConsumerProtocolSubscription
from ottla.wire.tree import Message

M = TypeVar("M", bound=Message)

PROTOCOL_TYPE: Final = "consumer"
_VERSION_BYTES: Final = 2


class Subscription(NamedTuple):
    topics: frozenset[str]
    owned: Assignment
    rack_id: str | None


def read_subscription(data: bytes, image: Image) -> Subscription:
    """BadFrame if it is none."""
    message = _decode(ConsumerProtocolSubscription, data)
    owned = by_topic(
        (image.topics[each.topic].id, partition)
        for each in message.owned_partitions
        if each.topic in image.topics
        for partition in each.partitions
    )
    return Subscription(frozenset(message.topics), owned, message.rack_id or None)


def read_assignment(data: bytes, image: Image) -> tuple[Assignment, bytes]:
    """The partitions, and what a custom assignor added for its members. No bytes are no partitions."""
    if not data:
        return {}, b""
    message = _decode(ConsumerProtocolAssignment, data)
    assigned = by_topic(
        (image.topics[each.topic].id, partition)
        for each in message.assigned_partitions
        if each.topic in image.topics
        for partition in each.partitions
    )
    return assigned, message.user_data or b""


def write_assignment(assignment: Assignment, image: Image, subscription: bytes) -> bytes:
    """In the version in which the member wrote its subscription."""
    version = min(_version(subscription), ConsumerProtocolAssignment.VERSIONS[1])
    topics = [
        TopicPartition(topic=image.names[topic_id], partitions=sorted(partitions))
        for topic_id, partitions in assignment.items()
        if topic_id in image.names
    ]
    topics.sort(key=lambda each: each.topic)
    message = ConsumerProtocolAssignment(assigned_partitions=topics, user_data=b"")
    return version.to_bytes(_VERSION_BYTES, "big") + messages.encode(message, version)


def _version(data: bytes) -> int:
    if len(data) < _VERSION_BYTES:
        raise BadFrame(f"an embedded message of {len(data)} bytes")
    return int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)


def _decode(cls: type[M], data: bytes) -> M:
    return messages.decode(cls, min(_version(data), cls.VERSIONS[1]), data, _VERSION_BYTES, whole=False)
