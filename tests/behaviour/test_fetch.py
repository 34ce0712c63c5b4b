"""Fetch as the protocol has it: whole batches, byte limits, long polls, wakes and errors."""

from __future__ import annotations

import struct
import time
import uuid

import pytest

from tests.harness.raw import Connection, batch, fetch, fetch_fields, produce

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION = 1, 3
FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, UNKNOWN_TOPIC_ID = 74, 75, 100


@pytest.fixture
def connection(broker):
    with Connection(broker) as connection:
        yield connection


def batches(records: bytes | None) -> list[tuple[int, int]]:
    """(base offset, size) of each batch in an answer; a cut-off one at the end is an error here."""
    found, position = [], 0
    data = records or b""
    while position < len(data):
        base_offset, length = struct.unpack_from(">qi", data, position)
        assert position + 12 + length <= len(data), "the last batch is cut off"
        found.append((base_offset, 12 + length))
        position += 12 + length
    return found


def test_an_empty_partition_has_all_its_offsets_at_zero(connection, topic):
    answer = fetch(connection, topic)
    assert answer["error_code"] == 0
    assert (answer["high_watermark"], answer["last_stable_offset"], answer["log_start_offset"]) == (0, 0, 0)
    assert not answer["records"]


@pytest.mark.parametrize("version", [4, 11, 12])
def test_an_offset_inside_a_batch_returns_the_whole_batch(connection, topic, version):
    produce(connection, topic, batch([b"a"]))
    produce(connection, topic, batch([b"b", b"c", b"d"]))
    for offset in (1, 2, 3):
        answer = fetch(connection, topic, offset, version=version)
        assert [base for base, _ in batches(answer["records"])] == [1]
        assert answer["high_watermark"] == 4


def test_the_bytes_come_back_as_they_were_sent_but_for_the_stamp(connection, topic):
    sent = batch([b"x" * 100, b"y" * 100])
    produce(connection, topic, sent)
    received = fetch(connection, topic)["records"]
    # Base offset, and from the magic byte on everything the checksum covers, untouched.
    assert received[:12] == sent[:12]
    assert received[16:] == sent[16:]
    assert struct.unpack_from(">i", received, 12)[0] >= 0, "the leader epoch was not stamped"


def test_the_first_batch_is_returned_however_small_the_limit(connection, topic):
    produce(connection, topic, batch([b"x" * 5_000]))
    produce(connection, topic, batch([b"y" * 5_000]))
    answer = fetch(connection, topic, partition_max_bytes=10, max_bytes=10)
    assert [base for base, _ in batches(answer["records"])] == [0]


def test_answers_stay_within_the_limit_in_whole_batches(connection, topic):
    sizes = []
    for _ in range(10):
        sent = batch([b"x" * 1_000])
        sizes.append(len(sent))
        produce(connection, topic, sent)
    received = fetch(connection, topic, partition_max_bytes=3 * sizes[0] + 10)["records"]
    # Kafka may append a cut-off batch; the whole ones are what counts.
    whole = received[: len(received) // sizes[0] * sizes[0]]
    assert batches(whole) == [(0, sizes[0]), (1, sizes[0]), (2, sizes[0])]


def test_fetch_at_the_log_end_is_empty_and_beyond_it_out_of_range(connection, topic):
    produce(connection, topic, batch([b"x"] * 3))
    at_end = fetch(connection, topic, 3)
    assert (at_end["error_code"], at_end["high_watermark"]) == (0, 3)
    assert not at_end["records"]
    for beyond in (4, 1_000_000):
        answer = fetch(connection, topic, beyond)
        assert (answer["error_code"], answer["aborted_transactions"]) == (OFFSET_OUT_OF_RANGE, None)


def test_fetch_of_unknown_topics_and_partitions_returns_their_errors(connection, topic):
    by_id = connection.call("fetch", 13, **fetch_fields(topic, topic_id=uuid.uuid4()))
    for answer, code in (
        (fetch(connection, "no-such-topic"), UNKNOWN_TOPIC_OR_PARTITION),
        (fetch(connection, topic, partition=17), UNKNOWN_TOPIC_OR_PARTITION),
        (by_id["responses"][0]["partitions"][0], UNKNOWN_TOPIC_ID),
    ):
        assert (answer["error_code"], answer["aborted_transactions"]) == (code, [])


def test_a_stale_or_future_leader_epoch_is_refused(connection, topic):
    fields = fetch_fields(topic)
    fields["topics"][0]["partitions"][0]["current_leader_epoch"] = 1_000
    answer = connection.call("fetch", 12, **fields)
    assert answer["responses"][0]["partitions"][0]["error_code"] == UNKNOWN_LEADER_EPOCH


def test_fetch_without_records_returns_after_max_wait(connection, topic):
    started = time.monotonic()
    answer = fetch(connection, topic, max_wait=300, min_bytes=1)
    waited = time.monotonic() - started
    assert answer["error_code"] == 0
    assert not answer["records"]
    assert 0.25 < waited < 3


def test_a_delayed_fetch_completes_when_records_are_appended(broker, connection, topic):
    with Connection(broker) as writer:
        correlation_id = connection.send_request("fetch", 11, fetch_fields(topic, max_wait=30_000, min_bytes=1))
        started = time.monotonic()
        produce(writer, topic, batch([b"wake up"]))
        answer = connection.receive_response("fetch", 11, correlation_id)
    assert time.monotonic() - started < 10
    assert batches(answer["responses"][0]["partitions"][0]["records"])[0][0] == 0


def test_fetch_waits_for_min_bytes(broker, connection, topic):
    size = len(batch([b"x" * 1_000]))
    with Connection(broker) as writer:
        wanted = fetch_fields(topic, max_wait=30_000, min_bytes=3 * size)
        correlation_id = connection.send_request("fetch", 11, wanted)
        for _ in range(3):
            produce(writer, topic, batch([b"x" * 1_000]))
        answer = connection.receive_response("fetch", 11, correlation_id)
    assert len(batches(answer["responses"][0]["partitions"][0]["records"])) == 3


def test_answers_leave_in_the_order_of_the_requests(connection, topic):
    waiting = connection.send_request("fetch", 11, fetch_fields(topic, max_wait=300, min_bytes=1))
    behind = connection.send_request("api_versions", 0, {})
    assert connection.receive_response("fetch", 11, waiting)["error_code"] == 0
    assert connection.receive_response("api_versions", 0, behind)["error_code"] == 0


def test_one_fetch_returns_many_partitions(broker, connection, make_topic):
    topic = make_topic(partitions=20)
    for partition in range(20):
        produce(connection, topic, batch([str(partition).encode()]), partition=partition)
    topic_partition = fetch_fields(topic)["topics"][0]["partitions"][0]
    partitions = [{**topic_partition, "partition": partition} for partition in range(20)]
    fields = {**fetch_fields(topic), "topics": [{"topic": topic, "partitions": partitions}]}
    answer = connection.call("fetch", 11, **fields)
    found = {each["partition_index"]: each["high_watermark"] for each in answer["responses"][0]["partitions"]}
    assert found == dict.fromkeys(range(20), 1)
