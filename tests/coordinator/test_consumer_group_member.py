"""Records of a consumer group member, with the bytes that Kafka writes."""

from __future__ import annotations

import pytest

from ottla.coordinator.consumer_group_member import (
    ClassicSide,
    ConsumerMember,
    MemberState,
    current_record,
    metadata_record,
    with_current,
    with_metadata,
)
from ottla.coordinator.group_record_values import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
)
from ottla.coordinator.group_records import ConsumerGroupMemberMetadataKey, decode_value, encode_key, encode_value

PLAIN = ConsumerMember(
    "m",
    instance_id="a",
    rack_id="",
    client_id="c",
    client_host="h",
    topic_names=frozenset({"t"}),
    rebalance_timeout_ms=5,
    server_assignor="",
)
CLASSIC = PLAIN._replace(classic=ClassicSide(7, (("range", b"xy"),)))


@pytest.mark.parametrize(
    ("member", "written"),
    [
        # That it is no classic member is said, not left out: Kafka takes what is left out for a classic member.
        (PLAIN, "00000261010263026802027401000000050101000100"),
        (CLASSIC, "0000026101026302680202740100000005010100110100000007020672616e67650378790000"),
    ],
    ids=["consumer", "classic"],
)
def test_metadata_has_the_bytes_that_kafka_writes(member: ConsumerMember, written: str):
    record = metadata_record("g", member)
    assert encode_value(record.value).hex() == written
    value = decode_value(ConsumerGroupMemberMetadataKey("g", "m"), bytes.fromhex(written))
    assert isinstance(value, ConsumerGroupMemberMetadataValue)
    assert with_metadata(ConsumerMember("m"), value) == member
    assert encode_key(record.key).hex() == "000500016700016d"


def test_the_current_assignment_is_decoded_from_its_record():
    member = ConsumerMember(
        "m",
        epoch=3,
        previous_epoch=2,
        state=MemberState.UNREVOKED,
        assigned={b"t" * 16: frozenset({0, 2})},
        revoking={b"u" * 16: frozenset({1})},
    )
    record = current_record("g", member)
    assert isinstance(record.value, ConsumerGroupCurrentMemberAssignmentValue)
    assert with_current(ConsumerMember("m"), record.value) == member


def test_an_unknown_member_state_is_unknown():
    value = ConsumerGroupCurrentMemberAssignmentValue(state=9)
    assert with_current(ConsumerMember("m"), value).state is MemberState.UNKNOWN
