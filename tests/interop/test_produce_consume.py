"""What one client writes, every client reads back as it was: codecs, sizes, headers, nulls, times, seeks."""

from __future__ import annotations

import struct
import time

import pytest
from confluent_kafka import TopicPartition

from tests.harness.raw import Connection, fetch
from tests.interop.clients import CLIENTS, CODECS, LATEST, Client, Confluent, Record, take, untimed

NOW_MS = 1_750_000_000_000
RECORDS = [
    Record(b"plain", b"key", (), NOW_MS),
    Record(b"null key", None, (), NOW_MS + 1),
    Record(None, b"null value", (), NOW_MS + 2),
    Record(b"", b"", (), NOW_MS + 3),
    Record(b"headers", b"h", (("a", b"1"), ("a", b"2"), ("empty", b"")), NOW_MS + 4),
    Record("žluťoučký kůň".encode(), "klíč".encode(), (("hlavička", "ř".encode()),), NOW_MS + 5),
    Record(bytes(range(256)) * 20, b"binary", (), NOW_MS + 6),
]


@pytest.mark.parametrize("codec", CODECS)
def test_every_client_reads_what_a_client_wrote(broker, topic, client: Client, codec):
    offsets = client.produce(broker.bootstrap, topic, RECORDS, codec=codec)
    assert offsets == list(range(len(RECORDS)))
    for reader in CLIENTS:
        assert reader.consume(broker.bootstrap, topic, len(RECORDS)) == RECORDS, f"read by {reader.name}"


@pytest.mark.parametrize("codec", CODECS)
def test_clients_compress_as_configured(broker, topic, client: Client, codec):
    """A client that takes the broker for an old one sends uncompressed, and says nothing."""
    client.produce(broker.bootstrap, topic, [Record(b"squeeze me " * 100)] * 20, codec=codec)
    with Connection(broker) as connection:
        (attributes,) = struct.unpack_from(">h", fetch(connection, topic)["records"], 21)
    assert CODECS[attributes & 7] == codec


def test_compressed_batches_are_stored_as_they_were_sent(broker, topic):
    many = [Record(b"squeeze me " * 100, str(i).encode(), timestamp_ms=NOW_MS) for i in range(500)]
    for codec in CODECS:
        Confluent().produce(broker.bootstrap, topic, many, codec=codec)
    for reader in CLIENTS:
        assert reader.consume(broker.bootstrap, topic, 500 * len(CODECS)) == many * len(CODECS)


@pytest.mark.parametrize("size", [1, 1_000_000])
def test_a_record_of_one_byte_and_of_a_megabyte_comes_back(broker, topic, client: Client, size):
    # 1,000,000 bytes: the default max.message.bytes of 1,048,588 counts the batch's own bytes too.
    records = [Record(b"x" * size), Record(bytes(i * 7 & 0xFF for i in range(256)) * (size // 256) + b"!")]
    assert client.produce(broker.bootstrap, topic, records) == [0, 1]
    for reader in CLIENTS:
        assert untimed(reader.consume(broker.bootstrap, topic, 2)) == records


def test_a_header_may_be_null(broker, topic):
    record = Record(b"v", None, (("null", None), ("empty", b"")), NOW_MS)
    Confluent().produce(broker.bootstrap, topic, [record])
    for reader in CLIENTS:
        assert reader.consume(broker.bootstrap, topic, 1) == [record]


def test_the_producers_clock_is_kept_by_default(broker, topic, client: Client):
    client.produce(broker.bootstrap, topic, [Record(b"old", timestamp_ms=1_000), Record(b"new")])
    before_ms = int(time.time() * 1000) - 60_000
    for reader in CLIENTS:
        old, new = reader.consume(broker.bootstrap, topic, 2)
        assert (old.timestamp_ms, old.timestamp_type) == (1_000, "CreateTime")
        assert new.timestamp_ms is not None
        assert before_ms < new.timestamp_ms < before_ms + 120_000


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_log_append_time_replaces_the_producers_clock(broker, make_topic, client: Client, codec):
    topic = make_topic(message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    client.produce(broker.bootstrap, topic, [Record(b"a", timestamp_ms=1_000), Record(b"b")], codec=codec)
    after_ms = int(time.time() * 1000)
    for reader in CLIENTS:
        for record in reader.consume(broker.bootstrap, topic, 2):
            assert record.timestamp_type == "LogAppendTime"
            assert record.timestamp_ms is not None
            assert before_ms <= record.timestamp_ms <= after_ms


def test_reading_starts_at_any_offset(broker, topic, client: Client):
    client.produce(broker.bootstrap, topic, [Record(str(i).encode()) for i in range(20)])
    for start in (0, 1, 7, 19):
        records = client.consume(broker.bootstrap, topic, 20 - start, start=start)
        assert [(r.offset, r.value) for r in records] == [(i, str(i).encode()) for i in range(start, 20)]


def test_reading_from_latest_sees_only_what_comes_after(broker, topic):
    confluent = Confluent()
    confluent.produce(broker.bootstrap, topic, [Record(b"before")] * 3)
    consumer = confluent.consumer(broker.bootstrap)
    try:
        consumer.assign([TopicPartition(topic, 0, LATEST)])
        # The position is known once the first empty fetch is out; watermarks come with its answer.
        deadline = time.monotonic() + 15
        while consumer.get_watermark_offsets(TopicPartition(topic, 0), cached=True)[1] != 3:
            assert consumer.poll(0.1) is None
            assert time.monotonic() < deadline
        confluent.produce(broker.bootstrap, topic, [Record(b"after")])
        assert [(r.offset, r.value) for r in take(consumer, 1)] == [(3, b"after")]
    finally:
        consumer.close()


def test_an_empty_partition_starts_and_ends_at_zero(broker, topic, client: Client):
    assert client.bounds(broker.bootstrap, topic) == (0, 0)


def test_bounds_follow_the_writes(broker, topic, client: Client):
    client.produce(broker.bootstrap, topic, [Record(b"x")] * 5)
    assert client.bounds(broker.bootstrap, topic) == (0, 5)


def test_an_offset_is_found_by_time(broker, topic, client: Client):
    stamps = [NOW_MS, NOW_MS + 100, NOW_MS + 200]
    client.produce(broker.bootstrap, topic, [Record(b"x", timestamp_ms=stamp) for stamp in stamps for _ in range(3)])
    cases = [(0, 0), (NOW_MS, 0), (NOW_MS + 1, 3), (NOW_MS + 100, 3), (NOW_MS + 200, 6), (NOW_MS + 201, None)]
    for asked, expected in cases:
        assert client.offset_at(broker.bootstrap, topic, asked) == expected, asked


def test_an_offset_is_found_by_time_inside_a_compressed_batch(broker, topic, client: Client):
    records = [Record(b"x" * 50, timestamp_ms=NOW_MS + i) for i in range(50)]
    Confluent().produce(broker.bootstrap, topic, records, codec="zstd")
    assert client.offset_at(broker.bootstrap, topic, NOW_MS + 30) == 30


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_each_acks_setting_delivers(broker, topic, client: Client, acks):
    offsets = client.produce(broker.bootstrap, topic, [Record(str(i).encode()) for i in range(50)], acks=acks)
    if acks != 0:
        assert offsets == list(range(50))
    records = CLIENTS[0].consume(broker.bootstrap, topic, 50)
    assert [r.value for r in records] == [str(i).encode() for i in range(50)]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_an_idempotent_producer_writes_each_record_once(broker, topic, client: Client, codec):
    records = [Record(str(i).encode()) for i in range(1_000)]
    offsets = client.produce(broker.bootstrap, topic, records, idempotent=True, codec=codec)
    assert offsets == list(range(1_000))
    assert untimed(client.consume(broker.bootstrap, topic, 1_000)) == records
    assert client.bounds(broker.bootstrap, topic) == (0, 1_000)


def test_a_topic_is_created_by_the_first_write(broker, fresh_name, client: Client):
    topic = fresh_name()
    assert client.produce(broker.bootstrap, topic, [Record(b"first")]) == [0]
    assert client.consume(broker.bootstrap, topic, 1)[0].value == b"first"


def test_a_record_over_the_topics_limit_is_refused(broker, make_topic, client: Client):
    topic = make_topic(max_message_bytes=1_000)
    with pytest.raises(Exception, match=r"(?i)size.?too.?large|10.*large"):
        client.produce(broker.bootstrap, topic, [Record(b"x" * 2_000)])
    assert client.produce(broker.bootstrap, topic, [Record(b"x" * 500)]) == [0]
    assert client.bounds(broker.bootstrap, topic) == (0, 1)
