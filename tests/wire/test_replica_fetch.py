"""Fetch of followers, against the leader's codec and the schema."""

from __future__ import annotations

import pytest

from ottla.errors import BadFrame
from ottla.net.streaming import Streamed
from ottla.wire import fetch, messages
from ottla.wire.fetch import FetchPartition, PartitionFetched
from ottla.wire.replica_fetch import VERSION, FetchParams, decode_response, encode_request
from ottla.wire.schema.fetch import FetchRequest

T, U = bytes(range(16)), bytes(range(16, 32))
WANTED = FetchParams(replica_id=3, replica_epoch=17, wait_ms_max=500, bytes_min=1, bytes_max=10_000)


def test_the_leader_decodes_a_request_of_a_follower():
    topics = {T: [FetchPartition(0, 5, 100, 4, 7, 1000), FetchPartition(1, 6, 0, -1, 0, 1000)]}
    data = encode_request(WANTED, 9, 2, topics, {U: [3, 4]})
    message = fetch.decode(memoryview(data), 0, VERSION)
    assert message.replica_id == 3
    assert message.replica_epoch == 17
    assert (message.session_id, message.session_epoch) == (9, 2)
    assert message.topics == [(T, topics[T])]
    assert message.forgotten == [(U, [3, 4])]


def test_a_request_follows_the_schema():
    data = encode_request(WANTED, 9, 2, {T: [FetchPartition(0, 5, 100, 4, 7, 1000)]}, {U: [3]})
    message = messages.decode(FetchRequest, VERSION, memoryview(data))
    assert message.replica_state.replica_id == 3
    assert message.replica_state.replica_epoch == 17
    (topic,) = message.topics
    (partition,) = topic.partitions
    assert (partition.fetch_offset, partition.last_fetched_epoch, partition.log_start_offset) == (100, 4, 7)
    assert messages.encode(message, VERSION) == data


def test_a_follower_decodes_a_response_of_the_leader():
    sent = [
        PartitionFetched(0, 0, 10, 10, 1, None, -1, b"records"),
        PartitionFetched(1, 6, leader_id=2, leader_epoch=9),
        PartitionFetched(2, 0, 10, 10, 1, [(1, 2), (3, 4)], -1, b"", diverging=(3, 44)),
    ]
    data = Streamed(fetch.encode_response(VERSION, [(T, sent)], session_id=77)).load()
    answer = decode_response(memoryview(data))
    assert (answer.error, answer.session_id) == (0, 77)
    first, second, third = (fetched for topic, fetched in answer.partitions if topic == T)
    assert (first.records, first.high_watermark, first.log_start) == (b"records", 10, 1)
    assert second.error == 6
    assert third.diverging == (3, 44)


def test_a_truncated_response_is_a_bad_frame():
    data = Streamed(fetch.encode_response(VERSION, [(T, [PartitionFetched(0, records=b"abc")])])).load()
    for size in range(len(data) - 2):  # what is missing at the very end are empty tags
        with pytest.raises(BadFrame):
            decode_response(memoryview(data[:size]))
