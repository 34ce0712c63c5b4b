"""ConsumerProtocol: subscription and assignment of members of the classic group protocol.

A subscription goes from each member to the leader of its group (in JoinGroup), an assignment from the leader to each
member (in SyncGroup). The coordinator does not decode them, unless members of the classic protocol are in a consumer
group (KIP-848): then it reads the subscriptions and writes the assignments. Both begin with a version in two bytes. A
reader of a newer version ignores the fields it does not know, which come last, so all clients can be in one group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from ottla.errors import BadFrame
from ottla.runtime import Buffer
from ottla.wire.messages import decode, encode
from ottla.wire.schema import consumer_protocol_assignment, consumer_protocol_subscription
from ottla.wire.schema.consumer_protocol_assignment import ConsumerProtocolAssignment
from ottla.wire.schema.consumer_protocol_subscription import ConsumerProtocolSubscription
from ottla.wire.topic_partition import TopicPartition, by_topic
from ottla.wire.tree import Message

M = TypeVar("M", bound=Message)

PROTOCOL_TYPE: Final = "consumer"
VERSION_BYTES: Final = 2
NO_GENERATION: Final = -1


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics of one member, and the partitions it keeps during a cooperative rebalance."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    """The generation of `owned`; not in versions 0 and 1."""
    user_data: bytes | None = None
    """For the assignor in the leader."""
    rack: str | None = None
    instance_id: str | None = None
    """Not part of the message: a field of JoinGroup."""


def encode_subscription(subscription: Subscription) -> bytes:
    owned = [
        consumer_protocol_subscription.TopicPartition(topic=topic, partitions=partitions)
        for topic, partitions in by_topic(subscription.owned).items()
    ]
    message = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=owned,
        generation_id=subscription.generation,
        rack_id=subscription.rack,
    )
    return _versioned(message)


def decode_subscription(data: Buffer, instance_id: str | None = None) -> Subscription:
    """BadFrame if it is malformed."""
    message = _decode(ConsumerProtocolSubscription, data)
    return Subscription(
        topics=tuple(message.topics),
        owned=_flat(message.owned_partitions),
        generation=message.generation_id,
        user_data=message.user_data,
        rack=message.rack_id,
        instance_id=instance_id,
    )


def encode_assignment(
    partitions: Iterable[TopicPartition], user_data: bytes | None = None, *, version: int | None = None
) -> bytes:
    assigned = [
        consumer_protocol_assignment.TopicPartition(topic=topic, partitions=numbers)
        for topic, numbers in by_topic(partitions).items()
    ]
    return _versioned(ConsumerProtocolAssignment(assigned_partitions=assigned, user_data=user_data), version)


def decode_assignment(data: Buffer) -> tuple[TopicPartition, ...]:
    """BadFrame if it is malformed. No bytes mean no partitions: some leaders send that."""
    return decode_assignment_and_data(data)[0]


def decode_assignment_and_data(data: Buffer) -> tuple[tuple[TopicPartition, ...], bytes]:
    """With the user data of a custom assignor."""
    if not len(memoryview(data)):
        return (), b""
    message = _decode(ConsumerProtocolAssignment, data)
    return _flat(message.assigned_partitions), message.user_data or b""


def version_of(data: Buffer) -> int:
    view = memoryview(data)
    if len(view) < VERSION_BYTES:
        raise BadFrame(f"an embedded message of {len(view)} bytes")
    return int.from_bytes(view[:VERSION_BYTES], "big", signed=True)


def _flat(
    topics: Iterable[consumer_protocol_assignment.TopicPartition | consumer_protocol_subscription.TopicPartition],
) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic.topic, partition) for topic in topics for partition in topic.partitions)


def _versioned(message: Message, version: int | None = None) -> bytes:
    """In this version, or the last one we know."""
    version = message.VERSIONS[1] if version is None else min(version, message.VERSIONS[1])
    return version.to_bytes(VERSION_BYTES, "big") + encode(message, version)


def _decode(cls: type[M], data: Buffer) -> M:
    return decode(cls, min(version_of(data), cls.VERSIONS[1]), data, VERSION_BYTES, whole=False)
