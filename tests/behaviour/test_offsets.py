"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: log start, log end, and offsets by time."""

from __future__ import annotations

import pytest

from tests.harness.raw import Connection, batch, fetch, produce, record

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4
OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_LEADER_EPOCH = 1, 3, 75
T0 = 1_750_000_000_000


@pytest.fixture
def connection(broker):
    with Connection(broker) as connection:
        yield connection


def list_offset(connection: Connection, topic: str, timestamp: int, version: int = 8) -> tuple[int, int, int]:
    """(error, timestamp, offset)"""
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    answer = connection.call(
        "list_offsets", version, replica_id=-1, topics=[{"name": topic, "partitions": [partition]}]
    )
    found = answer["topics"][0]["partitions"][0]
    return found["error_code"], found["timestamp"], found["offset"]


def stamped(*timestamps: int) -> bytes:
    records = b"".join(record(i, b"v", timestamp_delta=t - timestamps[0]) for i, t in enumerate(timestamps))
    return batch([b"v"] * len(timestamps), records=records, base_timestamp=timestamps[0], max_timestamp=max(timestamps))


def test_an_empty_partition_starts_and_ends_at_zero(connection, topic):
    assert list_offset(connection, topic, EARLIEST) == (0, -1, 0)
    assert list_offset(connection, topic, LATEST) == (0, -1, 0)
    assert list_offset(connection, topic, MAX_TIMESTAMP) == (0, -1, -1)
    assert list_offset(connection, topic, T0) == (0, -1, -1)


def test_list_offsets_by_timestamp_is_exact_to_the_record(connection, topic):
    produce(connection, topic, stamped(T0, T0 + 10, T0 + 20))
    produce(connection, topic, stamped(T0 + 30, T0 + 40))
    cases = [
        (T0 - 1, (T0, 0)),
        (T0, (T0, 0)),
        (T0 + 5, (T0 + 10, 1)),
        (T0 + 20, (T0 + 20, 2)),
        (T0 + 21, (T0 + 30, 3)),
        (T0 + 40, (T0 + 40, 4)),
        (T0 + 41, (-1, -1)),
    ]
    for asked, expected in cases:
        assert list_offset(connection, topic, asked) == (0, *expected), asked - T0


@pytest.mark.parametrize("version", [1, 2, 5, 6, 7, 10, 11])
def test_latest_and_earliest_mean_the_same_in_every_version(connection, topic, version):
    produce(connection, topic, batch([b"a", b"b"]))
    assert list_offset(connection, topic, EARLIEST, version)[2] == 0
    assert list_offset(connection, topic, LATEST, version)[2] == 2


def test_the_record_with_the_highest_timestamp_is_found(connection, topic):
    produce(connection, topic, stamped(T0, T0 + 500, T0 + 100))
    produce(connection, topic, stamped(T0 + 200))
    assert list_offset(connection, topic, MAX_TIMESTAMP) == (0, T0 + 500, 1)


def test_an_unknown_partition_is_named_by_an_error(connection, topic):
    assert list_offset(connection, "no-such-topic", LATEST)[0] == UNKNOWN_TOPIC_OR_PARTITION


def test_delete_records_raises_the_log_start(connection, topic):
    produce(connection, topic, batch([b"x"] * 3))
    produce(connection, topic, batch([b"y"] * 3))

    def delete(offset: int) -> tuple[int, int]:
        topics = [{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}]
        answer = connection.call("delete_records", 2, topics=topics, timeout=10_000)
        found = answer["topics"][0]["partitions"][0]
        return found["error_code"], found["low_watermark"]

    assert delete(2) == (0, 2)
    assert list_offset(connection, topic, EARLIEST) == (0, -1, 2)
    assert fetch(connection, topic, 1)["error_code"] == OFFSET_OUT_OF_RANGE
    assert fetch(connection, topic, 2)["error_code"] == 0
    assert fetch(connection, topic, 2)["log_start_offset"] == 2
    assert delete(100)[0] == OFFSET_OUT_OF_RANGE
    assert delete(-1) == (0, 6), "-1 means up to the high watermark"
    assert list_offset(connection, topic, EARLIEST) == (0, -1, 6)
    assert list_offset(connection, topic, LATEST) == (0, -1, 6)
    # The next offset is never used twice.
    assert produce(connection, topic, batch())["base_offset"] == 6


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_end_of_a_leader_epoch_is_the_log_end(connection, topic, version):
    produce(connection, topic, batch([b"x"] * 4))

    def end_of(epoch: int, current: int = -1) -> tuple[int, int, int]:
        partition = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
        answer = connection.call(
            "offset_for_leader_epoch",
            version,
            replica_id=-2,
            topics=[{"topic": topic, "partitions": [partition]}],
        )
        found = answer["topics"][0]["partitions"][0]
        return found["error_code"], found["leader_epoch"], found["end_offset"]

    assert end_of(0) == (0, 0, 4)
    assert end_of(99) == (0, -1, -1), "an epoch nobody has led yet"
    assert end_of(0, current=99)[0] == UNKNOWN_LEADER_EPOCH
