"""The hand-made frames of groups, compared with kio."""

from __future__ import annotations

import datetime
import struct
from importlib import import_module

import pytest

from bench import frames, group_frames
from bench.history import java_hash
from tests.wire.oracle import kio_bytes, kio_class, kio_message

GROUP, TOPIC = "some-group", "some-topic"
HEADER_BYTES = 4 + 2 + 2 + 4 + 2 + len(frames.CLIENT_ID)


def decoded(api, version, frame, *, flexible):
    assert frames.I32.unpack_from(frame)[0] == len(frame) - 4
    return kio_message(kio_class(api, "request", version), bytes(frame[HEADER_BYTES + flexible :]))


def no_throttle(module):
    return module.i32Timedelta.parse(datetime.timedelta(0))


def test_a_commit_names_every_partition_and_no_member():
    message = decoded("offset_commit", 8, group_frames.commit(GROUP, TOPIC, 3, 77), flexible=True)
    (topic,) = message.topics
    assert (message.group_id, message.generation_id_or_member_epoch, message.member_id) == (GROUP, -1, "")
    assert [(each.partition_index, each.committed_offset) for each in topic.partitions] == [(0, 77), (1, 77), (2, 77)]


@pytest.mark.parametrize("partitions", [1, 50, 200])
def test_the_response_without_errors_is_known(partitions):
    module = import_module("kio.schema.offset_commit.v8.response")
    answered = tuple(
        module.OffsetCommitResponsePartition(partition_index=n, error_code=module.ErrorCode(0))
        for n in range(partitions)
    )
    topic = module.OffsetCommitResponseTopic(name=TOPIC, partitions=answered)
    message = module.OffsetCommitResponse(throttle_time=no_throttle(module), topics=(topic,))
    body = struct.pack(">ib", 1, 0) + kio_bytes(message)
    assert group_frames.committed(TOPIC, partitions) == group_frames.sized(body)


def test_one_offset_is_fetched():
    message = decoded("offset_fetch", 7, group_frames.offset_fetch(GROUP, TOPIC, 5), flexible=True)
    (topic,) = message.topics
    assert (message.group_id, topic.name, topic.partition_indexes) == (GROUP, TOPIC, (5,))


@pytest.mark.parametrize(("error", "found"), [(0, (0, 1234)), (14, (14, -1))])
def test_a_fetched_offset_or_its_error_is_read(error, found):
    module = import_module("kio.schema.offset_fetch.v7.response")
    partition = module.OffsetFetchResponsePartition(
        partition_index=5, committed_offset=1234, metadata="", error_code=module.ErrorCode(0)
    )
    topic = module.OffsetFetchResponseTopic(name=TOPIC, partitions=(partition,))
    message = module.OffsetFetchResponse(
        throttle_time=no_throttle(module), topics=(topic,), error_code=module.ErrorCode(error)
    )
    answer = struct.pack(">ib", 1, 0) + kio_bytes(message)
    assert group_frames.read_offset(memoryview(answer), TOPIC) == found


def test_a_member_joins_with_what_the_java_consumer_offers():
    message = decoded("join_group", 5, group_frames.join(GROUP, "m-1", TOPIC), flexible=False)
    assert (message.group_id, message.member_id, message.protocol_type) == (GROUP, "m-1", "consumer")
    assert [protocol.name for protocol in message.protocols] == ["range", "cooperative-sticky"]
    subscribed = kio_message(kio_class("consumer_protocol_subscription", "data", 1), message.protocols[0].metadata[2:])
    assert subscribed.topics == (TOPIC,)


def test_the_members_in_the_response_to_the_leader_are_read():
    module = import_module("kio.schema.join_group.v5.response")
    message = module.JoinGroupResponse(
        throttle_time=no_throttle(module),
        error_code=module.ErrorCode(0),
        generation_id=3,
        protocol_name="range",
        leader="a",
        member_id="a",
        members=tuple(
            module.JoinGroupResponseMember(member_id=each, group_instance_id=instance, metadata=b"said")
            for each, instance in (("a", None), ("b", "static"))
        ),
    )
    answer = struct.pack(">i", 1) + kio_bytes(message)
    assert group_frames.read_joined(memoryview(answer)) == group_frames.Joined(0, 3, "a", "a", ["a", "b"])


def test_the_leader_assigns_to_every_member():
    message = decoded("sync_group", 3, group_frames.sync(GROUP, 3, "a", ["a", "b"], TOPIC), flexible=False)
    assert (message.generation_id, message.member_id) == (3, "a")
    assert [each.member_id for each in message.assignments] == ["a", "b"]
    share = kio_message(kio_class("consumer_protocol_assignment", "data", 1), message.assignments[1].assignment[2:])
    (topic,) = share.assigned_partitions
    assert (topic.topic, len(topic.partitions)) == (TOPIC, group_frames.ASSIGNED_PARTITIONS)


def test_members_send_heartbeats_and_leave():
    beating = decoded("heartbeat", 3, group_frames.heartbeat(GROUP, 3, "a"), flexible=False)
    assert (beating.group_id, beating.generation_id, beating.member_id) == (GROUP, 3, "a")
    leaving = decoded("leave_group", 3, group_frames.leave(GROUP, ["a", "b"]), flexible=False)
    assert [member.member_id for member in leaving.members] == ["a", "b"]


@pytest.mark.parametrize(("text", "hashed"), [("", 0), ("hello", 99162322), ("polygenelubricants", -(1 << 31))])
def test_names_are_hashed_as_java_does(text, hashed):
    assert java_hash(text) == hashed
