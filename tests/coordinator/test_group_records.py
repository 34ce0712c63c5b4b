"""Records of `__consumer_offsets`: encoded and decoded by us and by Kafka."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.coordinator import group_record_values as values
from ottla.coordinator import group_records
from ottla.errors import Fault

REPOSITORY = Path(__file__).parents[2]
JARS = REPOSITORY / ".bench" / "kafka" / "jars"

TOPIC_ID = bytes(range(16))
SOME = values.TopicPartitions(topic_id=TOPIC_ID, partitions=[0, 3])

RECORDS = [
    (group_records.OffsetCommitKey("g", "t", 3), group_records.OffsetCommitValue(5, 2, "nöte", 123)),
    (
        group_records.OffsetCommitKey("g", "t", 3),
        group_records.OffsetCommitValue(5, -1, "n" * 4096, 123, topic_id=TOPIC_ID),
    ),
    (group_records.OffsetCommitKey("g", "t", 3), group_records.OffsetCommitValue(2**62, -1, "", 123, 456)),
    (group_records.OffsetCommitKey("g", "t", 3), None),
    (
        group_records.GroupMetadataKey("g"),
        values.GroupMetadataValue(
            protocol_type="consumer",
            generation=3,
            protocol="range",
            leader="m",
            current_state_timestamp_ms=1,
            members=[
                values.MemberMetadata(
                    member_id="m",
                    group_instance_id="i",
                    client_id="c",
                    client_host="/h",
                    rebalance_timeout_ms=60000,
                    session_timeout_ms=10000,
                    subscription=b"s",
                    assignment=b"a",
                ),
                values.MemberMetadata(member_id="n", client_id="c", client_host="/h"),
            ],
        ),
    ),
    (group_records.GroupMetadataKey("g"), values.GroupMetadataValue(protocol_type="", current_state_timestamp_ms=1)),
    (group_records.GroupMetadataKey("g"), None),
    (group_records.ConsumerGroupMetadataKey("g"), values.ConsumerGroupMetadataValue(epoch=3, metadata_hash=-7)),
    (group_records.ConsumerGroupMetadataKey("g"), values.ConsumerGroupMetadataValue(epoch=3)),
    (
        group_records.ConsumerGroupPartitionMetadataKey("g"),
        values.ConsumerGroupPartitionMetadataValue(
            topics=[
                values.TopicMetadata(
                    topic_id=TOPIC_ID,
                    topic_name="t",
                    partition_count=1,
                    partition_metadata=[values.PartitionRacks(partition=0, racks=["a"])],
                )
            ]
        ),
    ),
    (
        group_records.ConsumerGroupMemberMetadataKey("g", "m"),
        values.ConsumerGroupMemberMetadataValue(
            instance_id="i",
            client_id="c",
            client_host="/h",
            subscribed_topic_names=["t", "u"],
            subscribed_topic_regex="a.*",
            rebalance_timeout_ms=300000,
            server_assignor="uniform",
            classic_member_metadata=values.ClassicMemberMetadata(
                session_timeout_ms=1, supported_protocols=[values.ClassicProtocol(name="range", metadata=b"q")]
            ),
        ),
    ),
    (group_records.ConsumerGroupMemberMetadataKey("g", "m"), values.ConsumerGroupMemberMetadataValue(rack_id="r")),
    (
        group_records.ConsumerGroupTargetAssignmentMetadataKey("g"),
        values.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=4),
    ),
    (
        group_records.ConsumerGroupTargetAssignmentMemberKey("g", "m"),
        values.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=[SOME]),
    ),
    (
        group_records.ConsumerGroupCurrentMemberAssignmentKey("g", "m"),
        values.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=3, previous_member_epoch=2, state=1, assigned_partitions=[SOME]
        ),
    ),
    (
        group_records.ConsumerGroupRegularExpressionKey("g", "a.*"),
        values.ConsumerGroupRegularExpressionValue(topics=["a"], version=3, timestamp_ms=4),
    ),
]


def encoded(key: tuple[object, ...], value: object | None) -> tuple[bytes, bytes | None]:
    return group_records.encode_key(key), None if value is None else group_records.encode_value(value)


@pytest.mark.parametrize(("key", "value"), RECORDS, ids=lambda part: type(part).__name__)
def test_records_are_decoded_as_they_were_encoded(key: tuple[object, ...], value: object | None):
    raw_key, raw_value = encoded(key, value)
    read = group_records.decode_key(raw_key)
    assert read == key
    assert type(read) is type(key)
    assert raw_value is None or group_records.decode_value(read, raw_value) == value


@pytest.mark.skipif(not (JARS.is_dir() and shutil.which("java")), reason="needs Java and Kafka's jars (make bench)")
def test_kafkas_coordinator_reads_every_record_and_would_write_the_same_bytes():
    wanted = []
    for key, value in RECORDS:
        raw_key, raw_value = encoded(key, value)
        wanted.append(f"{raw_key.hex()} {'-' if raw_value is None else raw_value.hex()}")
    done = subprocess.run(
        ["java", "-cp", f"{JARS}/*", str(Path(__file__).parent / "ReadRecords.java")],
        input="\n".join(wanted) + "\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reported = done.stdout.splitlines()
    assert [" ".join(line.split(" ")[:2]) for line in reported] == wanted
    assert "metadata='nöte'" in reported[0]
    assert "subscribedTopicRegex='a.*'" in reported[10]


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("0000 0000000000000005 0004 6e6f7465 000000000000007b", group_records.OffsetCommitValue(5, -1, "note", 123)),
        (
            "0001 0000000000000005 0000 000000000000007b 00000000000001c8",
            group_records.OffsetCommitValue(5, -1, "", 123, 456),
        ),
        ("0002 0000000000000005 0000 000000000000007b", group_records.OffsetCommitValue(5, -1, "", 123)),
        ("0003 0000000000000005 00000002 0000 000000000000007b", group_records.OffsetCommitValue(5, 2, "", 123)),
        (
            "0004 0000000000000005 00000002 01 000000000000007b 02 07 01 ff 00 10" + TOPIC_ID.hex(),
            group_records.OffsetCommitValue(5, 2, "", 123, topic_id=TOPIC_ID),
        ),
    ],
    ids=["version 0", "version 1", "version 2", "version 3", "a later release's tag before ours"],
)
def test_offsets_of_every_release_are_read(data: str, value: group_records.OffsetCommitValue):
    assert group_records.decode_value(group_records.OffsetCommitKey("g", "t", 0), bytes.fromhex(data)) == value


def test_the_oldest_key_is_read():
    old = bytes.fromhex("0000 0001 67 0001 74 00000003")
    assert group_records.decode_key(old) == group_records.OffsetCommitKey("g", "t", 3)


def test_records_of_unknown_types_are_skipped():
    share_group_metadata = bytes.fromhex("000b 0001 67")
    assert group_records.decode_key(share_group_metadata) is None


@given(st.sampled_from(RECORDS), st.data())
def test_a_damaged_record_is_a_fault(record, data):
    """Cut short or with a byte changed: read as something, or a Fault."""
    raw_key, raw_value = encoded(*record)
    which = data.draw(st.sampled_from([raw_key, raw_value or raw_key]))
    at = data.draw(st.integers(0, len(which) - 1))
    damaged = which[:at] if data.draw(st.booleans()) else which[:at] + bytes([which[at] ^ 0xFF]) + which[at + 1 :]
    try:
        if which is raw_key:
            group_records.decode_key(damaged)
        else:
            group_records.decode_value(record[0], damaged)
    except Fault:
        pass
