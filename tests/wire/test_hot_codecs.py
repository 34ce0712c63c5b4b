"""The hand-written codecs of Produce and Fetch, against kio byte for byte, and against invalid input."""

from __future__ import annotations

import random
import time
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.errors import BadFrame
from ottla.net.streaming import Streamed
from ottla.wire import fetch, produce
from ottla.wire.fetch import PartitionFetched
from ottla.wire.messages import decode, encode
from ottla.wire.primitives import pack_uvarint
from ottla.wire.produce import PartitionProduced
from ottla.wire.schema.fetch import FetchResponse
from ottla.wire.schema.produce import ProduceResponse
from tests.wire import oracle

PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)
ITERATIONS = 20


def topic_key(topic):
    """The topic of a kio message the way our codecs name it."""
    if hasattr(topic, "topic_id"):
        return topic.topic_id.bytes if isinstance(topic.topic_id, uuid.UUID) else bytes(16)
    return getattr(topic, "name", None) or getattr(topic, "topic", "")


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_requests_read_as_kio_wrote_them(version):
    chance = random.Random(version)
    cls = oracle.kio_class("produce", "request", version)
    for _ in range(ITERATIONS):
        theirs = oracle.random_message(cls, chance)
        ours = produce.decode(memoryview(oracle.kio_bytes(theirs)), 0, version)
        assert ours.transactional_id == theirs.transactional_id
        assert ours.acks == theirs.acks
        assert ours.timeout_ms == round(theirs.timeout.total_seconds() * 1000)
        assert [topic for topic, _ in ours.topics] == [topic_key(topic) for topic in theirs.topic_data]
        for (_, partitions), topic in zip(ours.topics, theirs.topic_data, strict=True):
            assert [(i, None if r is None else bytes(r)) for i, r in partitions] == [
                (p.index, p.records) for p in topic.partition_data
            ]


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_requests_read_as_kio_wrote_them(version):
    chance = random.Random(version)
    cls = oracle.kio_class("fetch", "request", version)
    for _ in range(ITERATIONS):
        theirs = oracle.random_message(cls, chance)
        ours = fetch.decode(memoryview(oracle.kio_bytes(theirs)), 0, version)
        replica_id = theirs.replica_state.replica_id if version >= 15 else theirs.replica_id
        assert ours.replica_id == replica_id
        assert ours.wait_ms_max == round(theirs.max_wait.total_seconds() * 1000)
        assert (ours.bytes_min, ours.bytes_max) == (theirs.min_bytes, theirs.max_bytes)
        assert ours.isolation_level == theirs.isolation_level
        assert ours.session_id == getattr(theirs, "session_id", 0)
        assert ours.session_epoch == getattr(theirs, "session_epoch", -1)
        assert ours.rack == getattr(theirs, "rack_id", "")
        assert [topic for topic, _ in ours.topics] == [topic_key(topic) for topic in theirs.topics]
        for (_, partitions), topic in zip(ours.topics, theirs.topics, strict=True):
            assert [(p.partition, p.offset, p.bytes_max, p.leader_epoch, p.log_start) for p in partitions] == [
                (
                    p.partition,
                    p.fetch_offset,
                    p.partition_max_bytes,
                    getattr(p, "current_leader_epoch", -1),
                    getattr(p, "log_start_offset", -1),
                )
                for p in topic.partitions
            ]
        forgotten = getattr(theirs, "forgotten_topics_data", ())
        assert ours.forgotten == [(topic_key(topic), list(topic.partitions)) for topic in forgotten]


def names(version, ids_from):
    return [b"0123456789abcdef", bytes(range(16))] if version >= ids_from else ["actors", "x" * 200]


def read_back(data, cls, version):
    """Through kio's reader and writer and our generic codec: the same bytes each time."""
    name = cls.__name__.removesuffix("Response").lower()
    assert oracle.kio_bytes(oracle.kio_message(oracle.kio_class(name, "response", version), data)) == data
    tree = decode(cls, version, data)
    assert encode(tree, version) == data
    return tree


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_answers_are_those_of_kio(version):
    first, second = names(version, produce.TOPIC_IDS_FROM)
    results = [
        (
            first,
            [
                PartitionProduced(0, 0, 42, 1_700_000_000_000, 7),
                PartitionProduced(300, 87, message="no", record_errors=[(3, "no key"), (500, "no key")]),
            ],
        ),
        (second, [PartitionProduced(1, 6, message=None, leader_id=3, leader_epoch=9)]),
    ]
    data = produce.encode_response(version, results)
    tree = read_back(data, ProduceResponse, version)
    appended, refused = tree.responses[0].partition_responses
    assert (appended.index, appended.error_code, appended.base_offset) == (0, 0, 42)
    assert appended.log_append_time_ms == 1_700_000_000_000
    assert refused.error_code == 87
    if version >= 8:
        assert refused.error_message == "no"
        found = [(error.batch_index, error.batch_index_error_message) for error in refused.record_errors]
        assert found == [(3, "no key"), (500, "no key")]
    if version >= 10:
        leader = tree.responses[1].partition_responses[0].current_leader
        assert (leader.leader_id, leader.leader_epoch) == (3, 9)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_answers_are_those_of_kio(version):
    first, second = names(version, fetch.TOPIC_IDS_FROM)
    results = [
        (first, [PartitionFetched(0, 0, 9, 8, 1, None, -1, b"r" * 300), PartitionFetched(1, 0, 5, 5, 0, [], -1, b"")]),
        (
            second,
            [
                PartitionFetched(2, 0, 5, 4, 0, [(1000, 3), (1001, 4)], 2, bytearray(b"abc")),
                PartitionFetched(3, 6, leader_id=2, leader_epoch=11),
            ],
        ),
    ]
    parts = fetch.encode_response(version, results, session_id=77)
    tree = read_back(Streamed(parts).load(), FetchResponse, version)
    one, two = tree.responses[0].partitions
    assert (one.high_watermark, one.last_stable_offset, one.records) == (9, 8, b"r" * 300)
    assert two.records == b""
    three, four = tree.responses[1].partitions
    assert [(a.producer_id, a.first_offset) for a in three.aborted_transactions] == [(1000, 3), (1001, 4)]
    assert four.error_code == 6
    if version >= 7:
        assert tree.session_id == 77
    if version >= 12:
        assert (four.current_leader.leader_id, four.current_leader.leader_epoch) == (2, 11)


def test_records_of_an_answer_are_not_copied():
    records = bytearray(b"r" * 1000)
    buffers = fetch.encode_response(12, [("t", [PartitionFetched(0, records=records)])])
    assert any(buffer is records for buffer in buffers)


def test_records_of_a_request_are_views_of_the_receive_buffer():
    cls = oracle.kio_class("produce", "request", 9)
    chance = random.Random(1)
    while True:
        theirs = oracle.random_message(cls, chance)
        if any(p.records for t in theirs.topic_data for p in t.partition_data):
            break
    buffer = bytearray(oracle.kio_bytes(theirs))
    views = [r for _, ps in produce.decode(memoryview(buffer), 0, 9).topics for _, r in ps if r]
    assert all(view.obj is buffer for view in views)


@pytest.mark.parametrize(
    ("codec", "name", "versions"), [(produce, "produce", PRODUCE_VERSIONS), (fetch, "fetch", FETCH_VERSIONS)]
)
def test_cut_or_changed_requests_are_a_bad_frame_or_a_request(codec, name, versions):
    for version in versions:
        chance = random.Random(version)
        data = oracle.kio_bytes(oracle.random_message(oracle.kio_class(name, "request", version), chance))
        for cut in range(0, len(data), max(1, len(data) // 50)):
            with pytest.raises(BadFrame):
                codec.decode(memoryview(data[:cut]), 0, version)
        codec.decode(memoryview(data + b"\0"), 0, version)  # Kafka passes over what follows, and clients rely on it
        for _ in range(200):
            mutated = bytearray(data)
            mutated[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            try:
                codec.decode(memoryview(mutated), 0, version)
            except BadFrame:
                continue


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=400), st.sampled_from(PRODUCE_VERSIONS), st.sampled_from(FETCH_VERSIONS))
def test_any_bytes_are_a_bad_frame_or_a_request(data, produce_version, fetch_version):
    for codec, version in ((produce, produce_version), (fetch, fetch_version)):
        try:
            codec.decode(memoryview(data), 0, version)
        except BadFrame:
            continue


def test_a_frame_full_of_tiny_entries_is_refused_before_it_costs_much():
    head = b"\x00" + b"\xff\xff" + bytes(4) + b"\x02" + b"\x02t" + b"\xff\xff\xff\xff\x0f"
    hostile = memoryview(head + bytes(20_000_000))
    began = time.monotonic()
    with pytest.raises(BadFrame):
        produce.decode(hostile, 0, 9)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("version", range(produce.FLEXIBLE_FROM, 14))
def test_the_usual_request_is_read_and_answered_as_in_general(version):
    topic = names(version, produce.TOPIC_IDS_FROM)[0]
    named = pack_uvarint(len(topic) + 1) + topic.encode() if isinstance(topic, str) else topic
    records = b"r" * 200
    request = (
        b"\0\xff\xff\0\0\x75\x30\x02" + named + b"\x02\0\0\0\x07" + pack_uvarint(len(records) + 1) + records + b"\0\0\0"
    )
    general = produce.decode(memoryview(request), 0, version)
    one = produce.decode_one(memoryview(request), 0, version)
    assert one is not None
    assert (one.acks, one.topic) == (general.acks, general.topics[0][0])
    ((partition, found),) = general.topics[0][1]
    assert (one.partition, one.records) == (partition, found)
    assert (partition, bytes(found or b"")) == (7, records)
    answer = produce.encode_response(version, [(topic, [PartitionProduced(7, 0, 42, -1, 3)])])
    assert produce.encode_one(one.topic_bytes, 7, 42, -1, 3) == answer


@pytest.mark.parametrize("version", range(produce.FLEXIBLE_FROM, 14))
def test_any_other_request_is_left_to_the_general_reader(version):
    chance = random.Random(version)
    cls = oracle.kio_class("produce", "request", version)
    for _ in range(300):
        data = memoryview(oracle.kio_bytes(oracle.random_message(cls, chance)))
        one = produce.decode_one(data, 0, version)
        if one is not None:
            (topic, ((partition, records),)) = produce.decode(data, 0, version).topics[0]
            assert (one.topic, one.partition, one.records) == (topic, partition, records)
