"""Invalid requests: the broker refuses them, serves other clients, and bounds memory and disk."""

from __future__ import annotations

import gzip
import socket
import struct
import time
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from ottla.local.waiting import wait_for
from tests.conftest import EXTERNAL
from tests.harness.brokers import WatchedBroker
from tests.harness.raw import (
    Connection,
    batch,
    fetch,
    fetch_fields,
    header_v1,
    produce,
    produce_fields,
    record,
)
from tests.harness.topics import create_topic

pytestmark = pytest.mark.skipif(bool(EXTERNAL), reason="what Ottla promises; Apache Kafka differs in places")

CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_TOPIC, INVALID_REQUIRED_ACKS = 2, 10, 17, 21
INVALID_TIMESTAMP, TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR = 32, 36, 37, 38
INVALID_CONFIG, INVALID_RECORD = 40, 87
OTHERS_SERVED_WITHIN_S = 5.0
MEMORY_GROWTH_BYTES_MAX = 64 << 20


@pytest.fixture(autouse=True)
def others_are_served(broker):
    """After every test: another connection is answered in time, and memory has not run away."""
    assert isinstance(broker, WatchedBroker)
    before = broker.resident_bytes()
    yield
    with Connection(broker, timeout_s=OTHERS_SERVED_WITHIN_S) as bystander:
        assert bystander.call("api_versions", 0)["error_code"] == 0
    assert broker.resident_bytes() - before < MEMORY_GROWTH_BYTES_MAX


@pytest.fixture
def connection(broker):
    with Connection(broker) as connection:
        yield connection


TLS_CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(200)

BAD_FRAMES = {
    "length -1": struct.pack(">i", -1),
    "length -2^31": struct.pack(">i", -(2**31)),
    "length 2^31-1": struct.pack(">i", 2**31 - 1) + b"\0" * 100,
    "length over socket.request.max.bytes": struct.pack(">i", 104_857_601) + b"\0" * 100,
    "length 0": struct.pack(">i", 0),
    "shorter than a header": struct.pack(">i", 4) + b"\0\0\0\0",
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": TLS_CLIENT_HELLO,
    "client id longer than the frame": struct.pack(">ihhih", 10, 18, 0, 1, 32_000),
    "client id that is not utf-8": struct.pack(">ihhih", 12, 18, 0, 1, 2) + b"\xff\xfe",
}


@pytest.mark.parametrize("data", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
def test_an_invalid_frame_closes_the_connection(connection, data):
    connection.send(data)
    connection.assert_closed()


BAD_BODIES = {
    "array count 2^31-1": header_v1(3, 0) + struct.pack(">i", 2**31 - 1),
    "array count -7": header_v1(3, 0) + struct.pack(">i", -7),
    "compact array count 2^32-1": header_v1(3, 12) + b"\0" + b"\xff\xff\xff\xff\x0f" + b"\0" * 40,
    "string length 32767": header_v1(3, 1) + struct.pack(">ih", 1, 32_767) + b"abc",
    "varint without an end": header_v1(3, 12) + b"\0" + b"\xff" * 40,
    "tag section that claims 2^28 tags": header_v1(3, 12) + b"\xff\xff\xff\x7f" + b"\0" * 20,
    "name that is not utf-8": header_v1(3, 1) + struct.pack(">ih", 1, 2) + b"\xc3\x28",
    "truncated body": header_v1(19, 2) + b"\0\0",
    "records longer than the frame": header_v1(0, 3)
    + struct.pack(">hhiih", -1, -1, 1000, 1, 1)
    + b"t"
    + struct.pack(">iii", 1, 0, 1 << 30),
}


@pytest.mark.parametrize("payload", BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_a_body_with_a_wrong_size_closes_the_connection(connection, payload):
    connection.send_frame(payload)
    connection.assert_closed()


def test_unknown_tagged_fields_are_skipped(connection):
    header = struct.pack(">hhih", 18, 3, 1, 3) + b"raw" + b"\x01\x63\x03abc"
    connection.send_frame(header + b"\x04raw\x021" + b"\x02\x20\x01x\x21\x02yz")
    assert connection.receive_response("api_versions", 3, 1)["error_code"] == 0


def test_two_thousand_pipelined_requests_are_answered_in_order(connection):
    frame = b"".join(struct.pack(">i", 13) + header_v1(18, 0, correlation_id)[:13] for correlation_id in range(2_000))
    connection.send(frame)
    for correlation_id in range(2_000):
        assert connection.receive_response("api_versions", 0, correlation_id)["error_code"] == 0


def test_responses_to_a_client_that_never_reads_are_not_buffered(broker, connection, topic):
    produce(connection, topic, batch([b"x" * 500_000]))
    assert isinstance(broker, WatchedBroker)
    with Connection(broker, timeout_s=2) as mute:
        before = broker.resident_bytes()
        try:
            for _ in range(400):  # 200 MB of answers, if anybody buffered them
                mute.send_request("fetch", 11, fetch_fields(topic))
        except (TimeoutError, ConnectionError):
            pass  # the broker no longer reads, or has had enough: both are right
        assert broker.resident_bytes() - before < MEMORY_GROWTH_BYTES_MAX


def test_a_request_sent_byte_by_byte_is_answered(connection):
    connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    payload = header_v1(18, 0, 5)
    for byte in struct.pack(">i", len(payload)) + payload:
        connection.send(bytes([byte]))
    assert connection.receive_response("api_versions", 0, 5)["error_code"] == 0


def test_a_connection_with_an_incomplete_frame_is_closed_when_idle(start_broker):
    broker = start_broker("--set", "connections.max.idle.ms=500")
    with Connection(broker) as idle:
        idle.send(b"\0\0")
        started = time.monotonic()
        idle.assert_closed()
        assert time.monotonic() - started < 10


def test_a_frame_over_the_configured_limit_closes_the_connection(start_broker):
    broker = start_broker("--set", "socket.request.max.bytes=1000")
    with Connection(broker) as connection:
        connection.send(struct.pack(">i", 1001))
        connection.assert_closed()
    with Connection(broker) as connection:
        assert connection.call("api_versions", 0)["error_code"] == 0


TRUE = batch([b"a", b"b"])
BAD_BATCHES: dict[str, tuple[bytes | None, int]] = {
    "wrong checksum": (batch(crc=1), CORRUPT_MESSAGE),
    "one bit flipped": (TRUE[:-1] + bytes([TRUE[-1] ^ 1]), CORRUPT_MESSAGE),
    "magic 3": (batch(magic=3), CORRUPT_MESSAGE),
    "magic 1": (batch(magic=1), CORRUPT_MESSAGE),
    "longer than the data": (batch(length=5_000), INVALID_RECORD),
    "length -1": (batch(length=-1), CORRUPT_MESSAGE),
    "cut off": (TRUE[:-10], INVALID_RECORD),
    "shorter than a header": (TRUE[:30], INVALID_RECORD),
    "empty": (batch([], last_offset_delta=0, record_count=0), INVALID_RECORD),
    "count says more": (batch([b"a"], record_count=5), INVALID_RECORD),
    "count says less": (batch([b"a", b"b"], record_count=1), INVALID_RECORD),
    "negative count": (batch([b"a"], record_count=-1), INVALID_RECORD),
    "last offset says more": (batch([b"a"], last_offset_delta=7), INVALID_RECORD),
    "negative last offset": (batch([b"a"], last_offset_delta=-1), INVALID_RECORD),
    "base offset not 0": (batch(base_offset=5), INVALID_RECORD),
    "a control batch of a client": (batch(attributes=0x20), INVALID_RECORD),
    "a transactional batch without a transaction": (
        batch(attributes=0x10, producer_id=1, producer_epoch=0, base_sequence=0),
        INVALID_RECORD,
    ),
    "two batches": (batch([b"a"]) + batch([b"b"]), INVALID_RECORD),
    "rubbish": (b"\x13" * 200, CORRUPT_MESSAGE),
    "no batch at all": (b"", INVALID_RECORD),
}
# An answer one may argue about; what counts is that it is an error and nothing was written.
EITHER = {"no batch at all", "a transactional batch without a transaction", "length -1"}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_an_invalid_batch_is_refused_and_not_appended(connection, topic, name):
    data, expected = BAD_BATCHES[name]
    answer = produce(connection, topic, data)
    if name in EITHER:
        assert answer["error_code"] != 0
    else:
        assert answer["error_code"] == expected
    seen = fetch(connection, topic)
    assert (seen["high_watermark"], seen["records"] or b"") == (0, b"")
    assert produce(connection, topic, batch())["base_offset"] == 0


def test_a_batch_over_the_limit_of_its_topic_is_refused(connection, make_topic):
    topic = make_topic(max_message_bytes=500)
    assert produce(connection, topic, batch([b"x" * 600]))["error_code"] == MESSAGE_TOO_LARGE
    assert produce(connection, topic, batch([b"x" * 300]))["error_code"] == 0


def test_a_batch_from_too_far_in_the_future_is_refused(connection, make_topic):
    topic = make_topic(message_timestamp_after_max_ms=1_000)
    future = batch(base_timestamp=int(time.time() * 1000) + 3_600_000)
    assert produce(connection, topic, future)["error_code"] == INVALID_TIMESTAMP


def test_a_record_without_a_key_is_refused_by_a_compacted_topic(connection, make_topic):
    topic = make_topic(cleanup_policy="compact")
    mixed = batch([b"a", b"b", b"c"], records=record(0, b"a") + record(1, b"b", key=b"k") + record(2, b"c"))
    for version in (8, 9):
        refused = produce(connection, topic, mixed, version=version)
        assert refused["error_code"] == INVALID_RECORD
        assert [error["batch_index"] for error in refused["record_errors"]] == [0, 2]
        assert all(error["batch_index_error_message"] for error in refused["record_errors"])
    keyed = batch([b"v"], records=record(0, b"v", key=b"k"))
    assert produce(connection, topic, keyed)["error_code"] == 0


@pytest.fixture
def careful(start_broker, fresh_name):
    """A connection to a broker that opens every batch, and a topic there."""
    broker = start_broker("--set", "record.validation=full")
    topic = create_topic(AdminClient({"bootstrap.servers": broker.bootstrap}), fresh_name())
    with Connection(broker) as connection:
        yield broker, connection, topic


def test_full_validation_finds_invalid_records_inside_a_batch(careful):
    _, connection, topic = careful
    lies = {
        "offset deltas": batch([b"a", b"b"], records=record(0, b"a") + record(5, b"b")),
        "fewer records": batch([b"a", b"b"], records=record(0, b"a")),
        "bytes left over": batch([b"a"], records=record(0, b"a") + b"left over"),
        "no records": batch([b"a"], records=b"\xff" * 20),
    }
    for lie, data in lies.items():
        assert produce(connection, topic, data)["error_code"] == INVALID_RECORD, lie
    assert produce(connection, topic, batch([b"a", b"b"]))["error_code"] == 0


def test_a_decompression_bomb_is_refused_before_it_is_decompressed(careful):
    """300 MB of zeros behind 300 KB of gzip, where the broker has reason to look inside."""
    broker, connection, topic = careful
    before = broker.resident_bytes()
    bomb = batch([b"a"], attributes=1, records=gzip.compress(bytes(300 << 20)))
    answer = produce(connection, topic, bomb)
    assert answer["error_code"] in (CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE)
    assert broker.resident_bytes() - before < MEMORY_GROWTH_BYTES_MAX


@pytest.mark.parametrize("acks", [5, 2, -2])
def test_invalid_acks_are_refused(connection, topic, acks):
    assert produce(connection, topic, batch(), acks=acks)["error_code"] == INVALID_REQUIRED_ACKS


def test_an_error_with_acks_0_closes_the_connection(connection, topic):
    connection.send_request("produce", 9, produce_fields(topic, batch(crc=1), acks=0))
    connection.assert_closed()


BAD_NAMES = {
    "parent": "../x",
    "dots": "..",
    "dot": ".",
    "slash": "a/b",
    "nul": "a\0b",
    "250 characters": "x" * 250,
    "empty": "",
    "not ascii": "příliš",
    "newline": "a\nb",
    "space": "a b",
}


def create(connection: Connection, name: str, **options: Any) -> int:
    wanted = {"name": name, "num_partitions": 1, "replication_factor": 1, **options}
    answer = connection.call("create_topics", 7, topics=[wanted], timeout=10_000)
    code: int = answer["topics"][0]["error_code"]
    return code


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES.keys())
def test_a_bad_topic_name_is_refused_and_never_becomes_a_path(broker, connection, name):
    before = sorted(path.name for path in broker.directory.rglob("*") if "stderr" not in path.name)
    assert create(connection, name) == INVALID_TOPIC
    answer = connection.call("metadata", 9, topics=[{"name": name}], allow_auto_topic_creation=True)
    assert answer["topics"][0]["error_code"] == INVALID_TOPIC
    after = sorted(path.name for path in broker.directory.rglob("*") if "stderr" not in path.name)
    assert [path for path in after if path not in before] == []


def test_names_that_would_collide_in_metrics_are_refused(connection, fresh_name):
    name = fresh_name().replace("-", "") + ".x_y"
    assert create(connection, name) == 0
    assert create(connection, name.replace(".", "_")) == INVALID_TOPIC
    assert create(connection, name) == TOPIC_ALREADY_EXISTS


BAD_TOPICS: dict[str, tuple[dict[str, Any], int]] = {
    "no partitions": ({"num_partitions": 0}, INVALID_PARTITIONS),
    "negative partitions": ({"num_partitions": -5}, INVALID_PARTITIONS),
    "999 replicas": ({"replication_factor": 999}, INVALID_REPLICATION_FACTOR),
    "no replicas": ({"replication_factor": 0}, INVALID_REPLICATION_FACTOR),
    "unknown config": ({"configs": [{"name": "no.such.thing", "value": "1"}]}, INVALID_CONFIG),
    "bad config value": ({"configs": [{"name": "retention.ms", "value": "soon"}]}, INVALID_CONFIG),
    "config out of range": ({"configs": [{"name": "segment.bytes", "value": "-4"}]}, INVALID_CONFIG),
}


@pytest.mark.parametrize("name", BAD_TOPICS)
def test_a_topic_with_invalid_numbers_or_configs_is_refused(connection, fresh_name, name):
    options, expected = BAD_TOPICS[name]
    topic = fresh_name()
    assert create(connection, topic, **options) == expected
    answer = connection.call("metadata", 9, topics=[{"name": topic}], allow_auto_topic_creation=False)
    assert answer["topics"][0]["error_code"] == 3


def test_a_client_fetch_with_a_replica_id_does_not_move_the_high_watermark(connection, topic):
    """CVE-2018-1288: a client that claims to be a follower must not count as one."""
    produce(connection, topic, batch([b"x"] * 3))
    answer = connection.call("fetch", 11, **fetch_fields(topic, replica_id=2))
    reported = [partition for each in answer["responses"] for partition in each["partitions"]]
    assert answer["error_code"] != 0 or all(partition["error_code"] != 0 for partition in reported)
    assert fetch(connection, topic, 3)["high_watermark"] == 3


def test_a_thousand_connections_leak_no_file_descriptor(broker):
    assert isinstance(broker, WatchedBroker)
    with Connection(broker) as connection:
        connection.call("api_versions", 0)
    before = broker.open_descriptors()
    for _ in range(10):
        connections = [Connection(broker) for _ in range(100)]
        for each in connections[::3]:
            each.call("api_versions", 0)
        for each in connections:
            each.socket.close()
    assert wait_for(lambda: broker.open_descriptors() <= before, "the descriptors of closed connections")
