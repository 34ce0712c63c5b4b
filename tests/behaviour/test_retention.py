"""Retention by time and by size, independent of consumers."""

from __future__ import annotations

import time

import pytest
from confluent_kafka.admin import AdminClient

from ottla.local.waiting import wait_for
from tests.harness.topics import create_topic
from tests.interop.clients import CLIENTS, Confluent, Record

CONFLUENT = Confluent()
SEGMENT_BYTES = 1_048_576


@pytest.fixture
def retaining(start_broker):
    """A broker that looks for old segments all the time."""
    return start_broker("--set", "log.retention.check.interval.ms=100", "--set", "log.segment.delete.delay.ms=0")


def topic_on(broker, **config):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    return create_topic(admin, "kept-for-a-while", segment_bytes=SEGMENT_BYTES, **config)


def test_records_older_than_the_retention_time_go(retaining):
    topic = topic_on(retaining, retention_ms=600_000)
    an_hour_ago_ms = int(time.time() * 1000) - 3_600_000
    old = [Record(b"x" * 100_000, timestamp_ms=an_hour_ago_ms) for _ in range(25)]
    CONFLUENT.produce(retaining.bootstrap, topic, old)
    CONFLUENT.produce(retaining.bootstrap, topic, [Record(b"new")])

    def start() -> int:
        return CONFLUENT.bounds(retaining.bootstrap, topic)[0]

    assert wait_for(lambda: start() > 10, "old segments to go")
    for reader in CLIENTS:
        assert reader.bounds(retaining.bootstrap, topic)[1] == 26
    assert CONFLUENT.consume(retaining.bootstrap, topic, 1, start=25)[0].value == b"new"


def test_a_partition_over_its_size_loses_its_oldest_segments(retaining):
    topic = topic_on(retaining, retention_bytes=2 * SEGMENT_BYTES)
    for _ in range(10):
        CONFLUENT.produce(retaining.bootstrap, topic, [Record(b"x" * 100_000) for _ in range(10)])
    assert wait_for(lambda: CONFLUENT.bounds(retaining.bootstrap, topic)[0] >= 60, "the oldest segments to go")

    def kept_bytes() -> int:
        return sum(path.stat().st_size for path in retaining.data.glob(f"{topic}-0/*.log"))

    assert wait_for(lambda: 2 * SEGMENT_BYTES <= kept_bytes() <= 4 * SEGMENT_BYTES, "the files to go")
    assert CONFLUENT.bounds(retaining.bootstrap, topic)[1] == 100


def test_records_stay_a_week_by_default(retaining):
    topic = topic_on(retaining)
    six_days_ago_ms = int(time.time() * 1000) - 6 * 24 * 3_600_000
    old = [Record(b"x" * 100_000, timestamp_ms=six_days_ago_ms) for _ in range(25)]
    CONFLUENT.produce(retaining.bootstrap, topic, old)
    eight_days_ago_ms = int(time.time() * 1000) - 8 * 24 * 3_600_000
    other = create_topic(
        AdminClient({"bootstrap.servers": retaining.bootstrap}), "too-old", segment_bytes=SEGMENT_BYTES
    )
    CONFLUENT.produce(
        retaining.bootstrap, other, [Record(b"x" * 100_000, timestamp_ms=eight_days_ago_ms) for _ in range(25)]
    )
    assert wait_for(lambda: CONFLUENT.bounds(retaining.bootstrap, other)[0] > 10, "what is too old to go")
    assert CONFLUENT.bounds(retaining.bootstrap, topic) == (0, 25)
