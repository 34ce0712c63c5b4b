"""Records of `__transaction_state`, with the bytes that Kafka writes."""

from __future__ import annotations

import pytest

from ottla.coordinator.transaction_records import (
    TransactionKey,
    TransactionState,
    TransactionValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from ottla.errors import Fault
from ottla.wire.topic_partition import TopicPartition

KEY = TransactionKey("tx")


def test_a_key_has_kafkas_bytes():
    assert encode_key(KEY) == bytes.fromhex("0000 0002 7478")
    assert decode_key(bytes.fromhex("0000 0002 7478")) == KEY


def test_an_empty_transaction_has_kafkas_bytes():
    value = TransactionValue(1000, 3, 60_000, TransactionState.EMPTY, (), 7, -1)
    data = bytes.fromhex(
        "0001 00000000000003e8 0003 0000ea60 00"  # version, producer id, epoch, timeout, state
        "00 0000000000000007 ffffffffffffffff 00"  # no partitions, updated, started, no tags
    )
    assert encode_value(value) == data
    assert decode_value(KEY, data) == value


def test_an_ongoing_transaction_has_kafkas_bytes():
    value = TransactionValue(
        1,
        0,
        1000,
        TransactionState.ONGOING,
        (TopicPartition("t", 0), TopicPartition("t", 2), TopicPartition("u", 1)),
        9,
        8,
        previous_producer_id=1,
        version=2,
    )
    data = bytes.fromhex(
        "0001 0000000000000001 0000 000003e8 01"
        "03 02 74 03 00000000 00000002 00  02 75 02 00000001 00"
        "0000000000000009 0000000000000008"
        "02  00 08 0000000000000001  02 02 0002"
    )
    assert encode_value(value) == data
    assert decode_value(KEY, data) == value


def test_version_0_is_decoded():
    data = bytes.fromhex(
        "0000 0000000000000001 0000 000003e8 02"
        "00000001 0001 74 00000002 00000005 00000003"
        "0000000000000009 0000000000000008"
    )
    assert decode_value(KEY, data) == TransactionValue(
        1, 0, 1000, TransactionState.PREPARE_COMMIT, (TopicPartition("t", 3), TopicPartition("t", 5)), 9, 8
    )


def test_every_field_is_decoded():
    value = TransactionValue(
        2**40,
        32766,
        2**31 - 1,
        TransactionState.PREPARE_ABORT,
        (TopicPartition("ü" * 100, 2**31 - 1),),
        1,
        2,
        3,
        4,
        2,
        5,
    )
    assert decode_value(KEY, encode_value(value)) == value


def test_unknown_tags_are_skipped():
    data = encode_value(TransactionValue(1, 0, 1000))
    assert decode_value(KEY, data[:-1] + bytes.fromhex("01 09 03 aabbcc")) == TransactionValue(1, 0, 1000)


def test_unknown_types_of_records_are_skipped():
    assert decode_key(bytes.fromhex("0005 0001 78")) is None


@pytest.mark.parametrize("state", TransactionState)
def test_states_have_kafkas_names(state: TransactionState):
    names = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")
    assert state.label == names[state]


def test_truncated_records_are_faults():
    whole = encode_value(
        TransactionValue(1, 0, 1000, TransactionState.ONGOING, (TopicPartition("topic", 1),), 1, 1, 1, 1, 2, 1)
    )
    for size in range(len(whole)):
        with pytest.raises(Fault):
            decode_value(KEY, whole[:size])
    with pytest.raises(Fault):
        decode_value(KEY, whole[:16] + b"\x09" + whole[17:])
    for data in (b"", b"\0\0", b"\0\0\0\5a", b"\0\0\xff\xff", b"\0\0\0\2\xff\xff"):
        with pytest.raises(Fault):
            decode_key(data)
