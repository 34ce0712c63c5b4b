"""Formatters for `__consumer_offsets` and `__transaction_state`."""

from __future__ import annotations

import json

import pytest

from ottla.cli.kafka_scripts import coordinator_formatters as coordinators
from ottla.cli.kafka_scripts.options import ToolFailure
from ottla.client.consuming.consumer_records import ConsumerRecord
from ottla.coordinator import group_records, transaction_records
from ottla.coordinator.group_record_values import GroupMetadataValue, MemberMetadata
from ottla.wire.topic_partition import TopicPartition


def record(key=b"k", value=b"v", headers=()):
    return ConsumerRecord("t", 1, 2, 3, key, value, headers)


def printed(formatter, key, value, coder=group_records):
    data = formatter()(record(coder.encode_key(key), None if value is None else coder.encode_value(value)))
    return json.loads(data) if data else None


def test_committed_offsets_are_printed_as_kafka_prints_them():
    key = group_records.OffsetCommitKey("g", "t", 3)
    value = group_records.OffsetCommitValue(7, 1, "note", 99, topic_id=bytes(15) + b"\1")
    assert printed(coordinators.offsets, key, value) == {
        "key": {"type": 1, "data": {"group": "g", "topic": "t", "partition": 3}},
        "value": {
            "version": 4,
            "data": {
                "offset": 7, "leaderEpoch": 1, "metadata": "note", "commitTimestamp": 99,
                "topicId": "AAAAAAAAAAAAAAAAAAAAAQ",
            },
        },
    }  # fmt: skip
    old = printed(coordinators.offsets, key, group_records.OffsetCommitValue(7, -1, "", 99, 100))
    assert old["value"] == {
        "version": 1,
        "data": {"offset": 7, "metadata": "", "commitTimestamp": 99, "expireTimestamp": 100},
    }
    assert printed(coordinators.offsets, key, None)["value"] is None
    assert printed(coordinators.groups, key, value) is None


def test_groups_are_printed_as_kafka_prints_them():
    member = MemberMetadata(member_id="m", client_id="c", client_host="/h", subscription=b"s", assignment=b"a")
    value = GroupMetadataValue(protocol_type="consumer", generation=2, members=[member])
    assert printed(coordinators.groups, group_records.GroupMetadataKey("g"), value)["value"] == {
        "version": 3,
        "data": {
            "protocolType": "consumer", "generation": 2, "protocol": None, "leader": None,
            "currentStateTimestamp": -1,
            "members": [{
                "memberId": "m", "groupInstanceId": None, "clientId": "c", "clientHost": "/h", "rebalanceTimeout": -1,
                "sessionTimeout": 0, "subscription": "cw==", "assignment": "YQ==",
            }],
        },
    }  # fmt: skip


def test_transactions_are_printed_as_kafka_prints_them():
    key = transaction_records.TransactionKey("tx")
    value = transaction_records.TransactionValue(
        4,
        1,
        60_000,
        transaction_records.TransactionState.ONGOING,
        (TopicPartition("t", 0), TopicPartition("t", 2)),
        9,
        8,
        previous_producer_id=3,
        version=2,
    )
    assert printed(coordinators.transactions, key, value, transaction_records) == {
        "key": {"type": 0, "data": {"transactionalId": "tx"}},
        "value": {
            "version": 1,
            "data": {
                "producerId": 4, "previousProducerId": 3, "producerEpoch": 1, "transactionTimeoutMs": 60_000,
                "transactionStatus": 1, "transactionPartitions": [{"topic": "t", "partitionIds": [0, 2]}],
                "transactionLastUpdateTimestampMs": 9, "transactionStartTimestampMs": 8, "clientTransactionVersion": 2,
            },
        },
    }  # fmt: skip
    empty = transaction_records.TransactionValue(4, 0, 60_000)
    data = printed(coordinators.transactions, key, empty, transaction_records)["value"]["data"]
    assert data["transactionPartitions"] is None


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (b"x", b"", "version from key's buffer"),
        (b"\0\1\0\7", b"", "record with version 1 from key's buffer"),
        (b"\0\1\0\1g\0\1t\0\0\0\0", b"\0", "version from value's buffer"),
        (b"\0\1\0\1g\0\1t\0\0\0\0", b"\0\4\0", "record with version 4 from value's buffer"),
        (b"\0\1\0\1g\0\1t\0\0\0\0", b"\0\x09", "record with version 9 from value's buffer"),
    ],
)
def test_a_record_that_is_not_of_a_coordinator_is_refused(key, value, words):
    with pytest.raises(ToolFailure, match=f"Could not read record at offset 2 due to: Could not read {words}"):
        coordinators.offsets()(record(key, value))
    assert coordinators.offsets()(record(None, b"")) == b""
