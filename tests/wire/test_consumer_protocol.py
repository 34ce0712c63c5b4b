"""ConsumerProtocol: other clients decode ours, and we decode theirs."""

from __future__ import annotations

import pytest
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AiokafkaSticky
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.structs import TopicPartition as AiokafkaPartition
from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from kafka.structs import TopicPartition as PythonPartition

from ottla.client.group.assignors import ASSIGNORS, decode_user_data
from ottla.client.values import TopicPartition
from ottla.errors import BadFrame
from ottla.wire.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

OWNED = (TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1))
GENERATION = 7


def sent(name: str) -> bytes:
    user_data = ASSIGNORS[name].user_data(OWNED, GENERATION)
    return encode_subscription(Subscription(("a", "b"), OWNED, GENERATION, user_data, rack="r1"))


def test_a_subscription_comes_back_as_it_was():
    data = sent("sticky")
    assert data[:2] == b"\0\3"
    again = decode_subscription(data, "static")
    user_data = ASSIGNORS["sticky"].user_data(OWNED, GENERATION)
    assert again == Subscription(("a", "b"), OWNED, GENERATION, user_data, "r1", "static")


def test_an_assignment_comes_back_as_it_was():
    assert decode_assignment(encode_assignment(reversed(OWNED))) == OWNED
    assert decode_assignment(encode_assignment([])) == ()
    assert decode_assignment(b"") == ()


def test_an_older_version_has_less_and_a_newer_one_more():
    oldest = b"\0\0" + b"\0\0\0\1\0\1a" + b"\xff\xff\xff\xff"
    assert decode_subscription(oldest) == Subscription(("a",))
    newer = b"\0\x09" + sent("range")[2:] + b"things of the future"
    assert decode_subscription(newer) == decode_subscription(sent("range"))


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_refused(data):
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except BadFrame:
            pass
    decode_user_data(data)


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_kafka_python_reads_our_subscription(name):
    theirs = ConsumerProtocolSubscription.decode(sent(name))
    assert sorted(theirs.topics) == ["a", "b"]
    assert {(t.topic, *t.partitions) for t in theirs.owned_partitions} == {("a", 0, 2), ("b", 1)}
    # Of sticky's user data it has a dialect of its own, which it alone reads: it takes our members for new ones.
    if name == "cooperative-sticky":
        member = CooperativeStickyAssignor.parse_member_metadata(theirs)
        assert sorted(tuple(partition) for partition in member.partitions) == [tuple(partition) for partition in OWNED]
        assert member.generation == GENERATION


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_aiokafka_reads_our_subscription(name):
    theirs = ConsumerProtocolMemberMetadata.decode(sent(name))
    assert sorted(theirs.subscription) == ["a", "b"]
    if name == "sticky":
        member = AiokafkaSticky.parse_member_metadata(theirs)
        assert sorted(tuple(partition) for partition in member.partitions) == [tuple(partition) for partition in OWNED]
        assert member.generation == GENERATION


def test_others_read_our_assignment():
    data = encode_assignment(OWNED)
    assert [tuple(p) for p in ConsumerProtocolMemberAssignment.decode(data).partitions()] == [tuple(p) for p in OWNED]
    theirs = ConsumerProtocolAssignment.decode(data)
    assert [(t.topic, list(t.partitions)) for t in theirs.assigned_partitions] == [("a", [0, 2]), ("b", [1])]


@pytest.mark.parametrize("assignor", [StickyPartitionAssignor, CooperativeStickyAssignor])
def test_we_read_what_kafka_python_owns(assignor):
    member = assignor()
    member.member_assignment = [PythonPartition(*partition) for partition in OWNED]
    member.generation = GENERATION
    ours = decode_subscription(member.metadata({"a", "b"}).encode())
    assert sorted(ours.topics) == ["a", "b"]
    if assignor is CooperativeStickyAssignor:
        assert ours.owned == OWNED
    else:
        assert decode_user_data(ours.user_data) == (OWNED, GENERATION)


def test_owned_partitions_of_aiokafka_are_decoded():
    metadata = AiokafkaSticky._metadata({"a", "b"}, [AiokafkaPartition(*partition) for partition in OWNED], GENERATION)
    ours = decode_subscription(metadata.encode())
    assert sorted(ours.topics) == ["a", "b"]
    owned, generation = decode_user_data(ours.user_data)
    assert (tuple(sorted(owned)), generation) == (OWNED, GENERATION)


def test_the_generation_is_found_wherever_a_cooperative_member_puts_it():
    """In the subscription, or in four bytes of user data, or at the end of what sticky sends."""
    assign = ASSIGNORS["cooperative-sticky"].assign
    disputed = (TopicPartition("a", 0),)
    rival = Subscription(("a",), disputed, generation=6)
    for old in (
        Subscription(("a",), disputed, generation=GENERATION),
        Subscription(("a",), disputed, user_data=GENERATION.to_bytes(4, "big")),
        Subscription(("a",), disputed, user_data=ASSIGNORS["sticky"].user_data(disputed, GENERATION)),
    ):
        assert assign({"a": 1}, {"rival": rival, "young": old}) == {"rival": [], "young": [disputed[0]]}
