"""The hand-made frames of the load, compared with kio."""

from __future__ import annotations

import struct

import crc32c
import pytest

from bench import frames
from tests.wire.oracle import kio_bytes, kio_class, kio_message

HEADER_BYTES = 4 + 2 + 2 + 4 + 2 + len(frames.CLIENT_ID) + 1
TOPIC = "bench-0000000000000001"


def body_of(frame: bytes | bytearray) -> bytes:
    assert frames.I32.unpack_from(frame)[0] == len(frame) - 4
    return bytes(frame[HEADER_BYTES:])


@pytest.mark.parametrize(("record_size", "count"), [(1, 1), (100, 640), (10_000, 6)])
def test_a_batch_has_a_valid_checksum_and_names_its_records(record_size, count):
    batch = frames.batch(record_size, count)
    header = frames.BATCH_HEADER.unpack_from(batch)
    assert header[1] == len(batch) - 12
    assert header[4] == crc32c.crc32c(batch[21:])
    assert (header[6], header[-1]) == (count - 1, count)


def test_produce_has_the_batch_and_acks_all():
    batch = frames.batch(100, 3)
    message = kio_message(kio_class("produce", "request", 9), body_of(frames.produce(TOPIC, 3, batch)))
    (topic,) = message.topic_data
    (partition,) = topic.partition_data
    assert (message.acks, topic.name, partition.index) == (-1, TOPIC, 3)
    assert bytes(partition.records) == batch


def test_the_position_of_the_fetch_offset_is_right():
    frame, offset_at = frames.fetch(TOPIC, 2)
    frames.I64.pack_into(frame, offset_at, 1234)
    message = kio_message(kio_class("fetch", "request", 12), body_of(frame))
    (partition,) = message.topics[0].partitions
    assert (message.topics[0].topic, partition.partition, partition.fetch_offset) == (TOPIC, 2, 1234)
    assert (message.session_epoch, partition.partition_max_bytes) == (-1, 1 << 20)


def test_topics_are_created_and_deleted_by_name():
    created = kio_message(kio_class("create_topics", "request", 5), body_of(frames.create_topic(TOPIC, 4)))
    assert (created.topics[0].name, created.topics[0].num_partitions) == (TOPIC, 4)
    deleted = kio_message(kio_class("delete_topics", "request", 4), body_of(frames.delete_topic(TOPIC)))
    assert deleted.topic_names == (TOPIC,)


def fetch_answer(records: bytes, error: int = 0) -> memoryview:
    """The answer to a Fetch of partition 0 of TOPIC, as kio writes it, behind a response header."""
    response = kio_class("fetch", "response", 12)
    module = __import__(response.__module__, fromlist=["*"])
    partition = module.PartitionData(
        partition_index=0,
        error_code=module.ErrorCode(error),
        high_watermark=50,
        aborted_transactions=None,
        records=records,
    )
    topic = module.FetchableTopicResponse(topic=TOPIC, partitions=(partition,))
    message = response(
        throttle_time=module.i32Timedelta.parse(__import__("datetime").timedelta(0)),
        error_code=module.ErrorCode(0),
        responses=(topic,),
    )
    return memoryview(struct.pack(">ib", 1, 0) + kio_bytes(message))


def test_a_fetch_response_is_counted_by_its_complete_batches():
    batch = frames.batch(100, 10)
    second = frames.BATCH_START.pack(10, len(batch) - 12) + batch[12:]
    fetched = frames.read_fetched(fetch_answer(batch + second + batch[:-1]), TOPIC, 0)
    assert fetched == frames.Fetched(0, 50, 20, 20)


def test_an_empty_fetch_response_keeps_the_offset():
    assert frames.read_fetched(fetch_answer(b""), TOPIC, 7) == frames.Fetched(0, 50, 7, 0)


def test_an_error_in_a_fetch_response_is_detected():
    assert frames.read_fetched(fetch_answer(b"", error=6), TOPIC, 7).error == 6
