"""The compiled codecs against kio's, for every API, kind and version; and against invalid input."""

from __future__ import annotations

import random
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.errors import BadFrame
from ottla.wire.messages import (
    decode,
    decode_request,
    decode_response,
    encode,
    encode_request,
    encode_response,
    message_class,
)
from ottla.wire.primitives import pack_uvarint
from ottla.wire.schema.api_versions import ApiVersionsRequest
from ottla.wire.schema.consumer_protocol_subscription import ConsumerProtocolSubscription
from ottla.wire.schema.create_topics import CreateTopicsRequest
from ottla.wire.schema.fetch import FetchRequest
from ottla.wire.schema.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.wire.schema.offset_commit import OffsetCommitRequest
from ottla.wire.tree import ZERO_UUID
from tests.wire import oracle

ITERATIONS = 6
BY_API = sorted({(api, kind) for api, kind, _ in oracle.CASES})


def versions(api, kind):
    return [v for a, k, v in oracle.CASES if (a, k) == (api, kind)]


@pytest.mark.parametrize(("api", "kind"), BY_API)
def test_bytes_and_trees_are_those_of_kio_in_every_version(api, kind):
    for version in versions(api, kind):
        chance = random.Random(f"{api} {kind} {version}")
        cls = oracle.kio_class(api, kind, version)
        for _ in range(ITERATIONS):
            theirs = oracle.random_message(cls, chance)
            data = oracle.kio_bytes(theirs)
            tree = oracle.ours(theirs)
            assert encode(tree, version) == data
            for buffer in (data, bytearray(data), memoryview(data)):
                assert decode(type(tree), version, buffer) == tree
            assert oracle.kio_bytes(oracle.kio_message(cls, encode(tree, version))) == data


@pytest.mark.parametrize(("api", "kind"), BY_API)
def test_cut_short_lengthened_or_changed_messages_are_a_bad_frame_or_a_message(api, kind):
    for version in versions(api, kind):
        chance = random.Random(f"{kind} {api} {version}")
        cls = oracle.our_class(api, kind, version)
        data = oracle.kio_bytes(oracle.random_message(oracle.kio_class(api, kind, version), chance))
        for cut in {chance.randrange(len(data)) for _ in range(10) if data}:
            with pytest.raises(BadFrame):
                decode(cls, version, data[:cut])
        with pytest.raises(BadFrame):
            decode(cls, version, data + b"\0")
        for _ in range(15 if data else 0):
            mutated = bytearray(data)
            for _ in range(chance.randrange(1, 4)):
                mutated[chance.randrange(len(data)) :: len(data)] = bytes([chance.choice((0, 1, 127, 128, 255))])
            try:
                decode(cls, version, mutated)
            except BadFrame:
                pass


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(oracle.CASES), st.binary(max_size=120))
def test_arbitrary_bytes_are_a_bad_frame_or_a_message(case, data):
    api, kind, version = case
    cls = oracle.our_class(api, kind, version)
    try:
        message = decode(cls, version, data)
    except BadFrame:
        return
    assert decode(cls, version, encode(message, version)) == message


HUGE = b"\xff\xff\xff\xff\x0f"
HOSTILE = [
    pytest.param(MetadataRequest, 12, HUGE, id="compact array of 2^32-2 elements"),
    pytest.param(MetadataRequest, 12, HUGE + bytes(2_000_000), id="the same, with some bytes behind"),
    pytest.param(MetadataRequest, 12, b"\xff" * 50, id="endless varint"),
    pytest.param(MetadataRequest, 1, b"\x7f\xff\xff\xff", id="array of 2^31-1 elements"),
    pytest.param(MetadataRequest, 1, b"\x80\x00\x00\x00", id="array of negative length"),
    pytest.param(MetadataRequest, 0, b"\xff\xff\xff\xff", id="null where the version knows none"),
    pytest.param(MetadataRequest, 12, b"\x01\0\0" + HUGE, id="2^32-1 tagged fields"),
    pytest.param(MetadataRequest, 12, b"\x01\0\0\x01\x05" + HUGE, id="tagged field of 2^32-1 bytes"),
    pytest.param(ApiVersionsRequest, 3, HUGE, id="compact string of 2^32-2 bytes"),
    pytest.param(ApiVersionsRequest, 3, b"\x03\xc3\x28\x01\0", id="string that is not UTF-8"),
    pytest.param(OffsetCommitRequest, 2, b"\x7f\xff" + bytes(9), id="string longer than the frame"),
    pytest.param(OffsetCommitRequest, 2, b"\xff\xfe" + bytes(99), id="string of length -2"),
    pytest.param(FetchRequest, 12, bytes(21) + b"\x01\x01\x01\x01\x00\x09", id="tagged field of another length"),
    pytest.param(CreateTopicsRequest, 5, b"\xc0\x96\xb1\x02" + b"\x01" * 5_000_000, id="5 million structures"),
]


@pytest.mark.parametrize(("cls", "version", "data"), HOSTILE)
def test_hostile_input_costs_neither_time_nor_memory(cls, version, data):
    with pytest.raises(BadFrame):  # the codec is compiled before the clock runs
        decode(cls, version, b"")
    tracemalloc.start()
    started = time.perf_counter()
    try:
        with pytest.raises(BadFrame):
            decode(cls, version, data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
        assert time.perf_counter() - started < 1
    finally:
        tracemalloc.stop()


def test_nested_arrays_share_one_budget_of_elements():
    group = b"\x02g" + bytes(4) + b"\x02m" + b"\0"
    topic = b"\x02t" + pack_uvarint(30_001) + bytes(30_000 * 18) + b"\0"
    few, many = (group + pack_uvarint(topics + 1) + topic * topics + b"\0" for topics in (2, 9))
    assert len(decode(OffsetCommitRequest, 8, few).topics[1].partitions) == 30_000
    with pytest.raises(BadFrame, match="more elements"):
        decode(OffsetCommitRequest, 8, many)


def test_unknown_tagged_fields_are_skipped():
    known = encode(MetadataRequest(topics=[MetadataRequestTopic(name="a")]), 12)
    assert known.endswith(b"\0")
    strange = known[:-1] + b"\x02" + b"\x63\x03xyz" + b"\xff\xff\xff\xff\x0f\x00"
    assert decode(MetadataRequest, 12, strange) == decode(MetadataRequest, 12, known)


def test_a_tag_that_comes_twice_counts_the_last_time():
    head = encode(FetchRequest(), 12)[:-1]
    message = decode(FetchRequest, 12, head + b"\x02" + b"\x00\x02\x02a" + b"\x00\x02\x02b")
    assert message.cluster_id == "b"


def test_a_field_that_a_version_lacks_is_left_out_and_comes_back_as_its_default():
    partition = MetadataResponsePartition(leader_id=3, leader_epoch=9, offline_replicas=[4])
    response = MetadataResponse(
        throttle_time_ms=7,
        topics=[MetadataResponseTopic(name="t", topic_id=bytes(15) + b"1", partitions=[partition])],
    )
    old = decode(MetadataResponse, 0, encode(response, 0))
    assert old.throttle_time_ms == 0
    assert old.topics[0].topic_id == ZERO_UUID
    assert old.topics[0].partitions == [MetadataResponsePartition(leader_id=3)]
    assert decode(MetadataResponse, 13, encode(response, 13)) == response


def test_null_in_a_version_without_null_is_an_empty_string_or_a_bug():
    unnamed = MetadataResponse(topics=[MetadataResponseTopic(name=None)])
    assert decode(MetadataResponse, 12, encode(unnamed, 12)).topics[0].name is None
    assert decode(MetadataResponse, 11, encode(unnamed, 11)).topics[0].name == ""
    assert decode(MetadataResponse, 1, encode(unnamed, 1)).topics[0].name == ""
    assert decode(MetadataRequest, 1, encode(MetadataRequest(topics=None), 1)).topics is None
    with pytest.raises(ValueError, match=r"MetadataRequest\.topics may not be null in version 0"):
        encode(MetadataRequest(topics=None), 0)


@pytest.mark.parametrize("version", [2, 12])
def test_values_that_do_not_fit_are_a_bug(version):
    for topic in (MetadataResponseTopic(error_code=40_000), MetadataResponseTopic(name="x" * 40_000)):
        with pytest.raises(ValueError):
            encode(MetadataResponse(topics=[topic]), version)


def test_a_version_that_does_not_exist_is_a_bad_frame_to_read_and_a_bug_to_write():
    for version in (-1, 14):
        with pytest.raises(BadFrame):
            decode(MetadataRequest, version, b"")
        with pytest.raises(ValueError, match="versions 0 to 13"):
            encode(MetadataRequest(), version)


def test_decoded_values_own_their_bytes():
    buffer = bytearray(encode(ConsumerProtocolSubscription(topics=["abc"], user_data=b"data"), 1))
    message = decode(ConsumerProtocolSubscription, 1, memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert (message.topics, message.user_data) == (["abc"], b"data")
    buffer.append(0)  # nothing holds on to the buffer either


def test_embedded_data_of_a_later_version_can_be_read_as_far_as_it_is_known():
    later = encode(ConsumerProtocolSubscription(topics=["abc"], rack_id="r"), 3) + b"more"
    with pytest.raises(BadFrame):
        decode(ConsumerProtocolSubscription, 3, later)
    assert decode(ConsumerProtocolSubscription, 3, later, whole=False).rack_id == "r"


def test_messages_can_be_named_by_api_key():
    request = MetadataRequest(topics=[MetadataRequestTopic(name="a")])
    body = encode_request(3, 9, request)
    assert decode_request(3, 9, b"head" + body, 4) == request
    assert decode_response(3, 9, encode_response(3, 9, MetadataResponse())) == MetadataResponse()
    assert message_class(3, "response") is MetadataResponse


def test_messages_print_their_fields_and_compare_by_value():
    assert repr(MetadataRequestTopic(name="a")) == f"MetadataRequestTopic(topic_id={ZERO_UUID!r}, name='a')"
    assert MetadataRequestTopic(name="a") == MetadataRequestTopic(name="a") != MetadataRequestTopic(name="b")
    assert MetadataRequest() != MetadataResponse()
    first, second = MetadataResponse(), MetadataResponse()
    assert first.topics is not second.topics
