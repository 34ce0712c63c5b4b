"""The records of the transaction topic: Kafka's bytes, and nothing else taken for them."""

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

KEY = TransactionKey("tx")


def test_a_key_is_kafkas():
    assert encode_key(KEY) == bytes.fromhex("0000 0002 7478")
    assert decode_key(bytes.fromhex("0000 0002 7478")) == KEY


def test_an_empty_transaction_is_kafkas():
    value = TransactionValue(1000, 3, 60_000, TransactionState.EMPTY, (), 7, -1)
    data = bytes.fromhex(
        "0001 00000000000003e8 0003 0000ea60 00"  # version, producer id, epoch, timeout, state
        "00 0000000000000007 ffffffffffffffff 00"  # no partitions, updated, started, no tags
    )
    assert encode_value(value) == data
    assert decode_value(KEY, data) == value


def test_an_ongoing_transaction_is_kafkas():
    value = TransactionValue(
        1, 0, 1000, TransactionState.ONGOING, (("t", 0), ("t", 2), ("u", 1)), 9, 8, previous_producer_id=1, version=2
    )
    data = bytes.fromhex(
        "0001 0000000000000001 0000 000003e8 01"
        "03 02 74 03 00000000 00000002 00  02 75 02 00000001 00"
        "0000000000000009 0000000000000008"
        "02  00 08 0000000000000001  02 02 0002"
    )
    assert encode_value(value) == data
    assert decode_value(KEY, data) == value


def test_the_version_of_old_brokers_is_read():
    data = bytes.fromhex(
        "0000 0000000000000001 0000 000003e8 02"
        "00000001 0001 74 00000002 00000005 00000003"
        "0000000000000009 0000000000000008"
    )
    assert decode_value(KEY, data) == TransactionValue(
        1, 0, 1000, TransactionState.PREPARE_COMMIT, (("t", 3), ("t", 5)), 9, 8
    )


def test_every_field_comes_back():
    value = TransactionValue(
        2**40, 32766, 2**31 - 1, TransactionState.PREPARE_ABORT, (("ü" * 100, 2**31 - 1),), 1, 2, 3, 4, 2, 5
    )
    assert decode_value(KEY, encode_value(value)) == value


def test_tags_of_a_later_release_are_passed_over():
    data = encode_value(TransactionValue(1, 0, 1000))
    assert decode_value(KEY, data[:-1] + bytes.fromhex("01 09 03 aabbcc")) == TransactionValue(1, 0, 1000)


def test_a_kind_of_record_that_is_not_ours_is_passed_over():
    assert decode_key(bytes.fromhex("0005 0001 78")) is None


@pytest.mark.parametrize("state", TransactionState)
def test_states_are_named_as_kafka_names_them(state: TransactionState):
    names = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")
    assert state.label == names[state]


def test_damaged_records_are_faults_wherever_they_end():
    whole = encode_value(TransactionValue(1, 0, 1000, TransactionState.ONGOING, (("topic", 1),), 1, 1, 1, 1, 2, 1))
    for size in range(len(whole)):
        with pytest.raises(Fault):
            decode_value(KEY, whole[:size])
    with pytest.raises(Fault):
        decode_value(KEY, whole[:16] + b"\x09" + whole[17:])
    for data in (b"", b"\0\0", b"\0\0\0\5a", b"\0\0\xff\xff", b"\0\0\0\2\xff\xff"):
        with pytest.raises(Fault):
            decode_key(data)
