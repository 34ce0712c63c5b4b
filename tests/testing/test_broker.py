"""Test broker in this process: real clients, injected faults, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from ottla.blocking import Admin
from ottla.blocking import Producer as OttlaProducer
from ottla.client.errors import ClientError
from ottla.client.values import TopicPartition
from ottla.errors import ErrorCode
from ottla.testing import Broker
from tests.harness.alone import run_alone

BROKERS = 100
READY_SECONDS_MAX = 0.3


@pytest.fixture(scope="module")
def broker():
    with Broker({"auto.create.topics.enable": False}) as broker:
        yield broker


def confluent_values(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"of-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        return [message.value() for message in consumer.consume(count, timeout=20)]
    finally:
        consumer.close()


def test_other_clients_work_with_it(broker):
    topic = broker.create_topic(partitions=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, b"from confluent-kafka")
    assert producer.flush(20) == 0
    assert confluent_values(broker.bootstrap_servers, topic, 1) == [b"from confluent-kafka"]
    assert [record.value for record in topic.consume(1)] == [b"from confluent-kafka"]


def test_records_are_written_and_read_and_groups_have_a_lag(broker):
    topic = broker.create_topic(config={"retention_ms": 60_000})
    written = topic.produce(["one", b"two", ("key", b"three")])
    assert [metadata.offset for metadata in written] == [0, 1, 2]
    assert [record.value for record in broker.consume(topic, 2, group="slow")] == [b"one", b"two"]
    assert broker.lag("slow") == {TopicPartition(topic, 0): 1}
    assert [record.key for record in topic.consume(1, group="slow")] == [b"key"]
    assert broker.lag("slow") == {TopicPartition(topic, 0): 0}


def test_missing_records_are_an_assertion_error(broker):
    topic = broker.create_topic()
    topic.produce(b"one")
    with pytest.raises(AssertionError, match=r"only 1 of 2 records of .* within 0\.2 s"):
        topic.consume(2, timeout=0.2)


def test_settings_are_taken(broker):
    with pytest.raises(ClientError), OttlaProducer(broker.bootstrap_servers, max_block_ms=500) as producer:
        producer.send_and_wait("never-created", b"x")


def test_a_refused_produce_request_is_sent_again(broker):
    topic = broker.create_topic()
    fault = broker.inject("Produce", error="not_leader_or_follower", times=2)
    topic.produce(b"insistent")
    assert fault.hits == 2
    assert [record.value for record in topic.consume(1)] == [b"insistent"]


def test_a_permanent_error_reaches_the_user(broker):
    topic = broker.create_topic()
    with broker.inject("produce", error=ErrorCode.topic_authorization_failed, times=None):
        with pytest.raises(ClientError) as refused:
            topic.produce(b"x")
        failed = []
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce(topic, b"x", on_delivery=lambda error, _: failed.append(error.name()))
        producer.flush(20)
    assert refused.value.code is ErrorCode.topic_authorization_failed
    assert failed == ["TOPIC_AUTHORIZATION_FAILED"]
    topic.produce(b"now it goes")


def test_a_request_is_delayed(broker):
    topic = broker.create_topic()
    began = time.monotonic()
    broker.inject("Produce", delay_ms=300)
    topic.produce(b"slow")
    assert time.monotonic() - began >= 0.3
    assert [record.value for record in topic.consume(1)] == [b"slow"]


def test_a_connection_is_cut(broker):
    topic = broker.create_topic()
    fault = broker.inject("Produce", error="disconnect")
    topic.produce([b"again"])
    assert fault.hits == 1
    assert [record.value for record in topic.consume(1)] == [b"again"]


def test_metadata_can_fail_too(broker):
    topic = broker.create_topic()
    fault = broker.inject("Metadata", error="leader_not_available", times=3)
    topic.produce(b"found in the end")
    assert fault.hits == 3


@pytest.mark.parametrize("api", ["Fetch", "ListOffsets", "FindCoordinator", "OffsetFetch", "JoinGroup"])
def test_consumers_retry_after_a_refused_fetch(broker, api):
    topic = broker.create_topic()
    topic.produce(b"read in the end")
    code = "not_leader_or_follower" if api in ("Fetch", "ListOffsets") else "coordinator_not_available"
    fault = broker.inject(api, error=code)
    assert [record.value for record in topic.consume(1, group=f"despite-{api}")] == [b"read in the end"]
    fault.cancel()


def test_a_refused_commit_is_an_error(broker):
    topic = broker.create_topic()
    topic.produce(b"x")
    broker.consume(topic, 1, group="commits")
    broker.inject("OffsetCommit", error="group_authorization_failed")
    with Admin(broker.bootstrap_servers) as admin, pytest.raises(ClientError) as refused:
        admin.alter_group_offsets("commits", {TopicPartition(topic, 0): 0})
    assert refused.value.code is ErrorCode.group_authorization_failed


def test_admin_calls_can_fail(broker):
    broker.inject("CreateTopics", error="policy_violation")
    with pytest.raises(ClientError) as refused:
        broker.create_topic()
    assert refused.value.code is ErrorCode.policy_violation


def test_wrong_usage_is_an_error(broker):
    with pytest.raises(ValueError, match="there is no API 'Prodduce'"):
        broker.inject("Prodduce", error=6)
    with pytest.raises(ValueError, match="there is no error 'oops'"):
        broker.inject("Produce", error="oops")
    with pytest.raises(ValueError, match="a fault needs error="):
        broker.inject("Produce")


def test_a_confluent_client_receives_injected_errors(broker):
    topic = broker.create_topic()
    broker.inject("ListOffsets", error="topic_authorization_failed", times=None)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "x"})
    try:
        with pytest.raises(KafkaException):
            consumer.get_watermark_offsets(ConfluentPartition(topic, 0), timeout=10)
    finally:
        consumer.close()
        broker._faults.clear()


def descriptors() -> set[str]:
    kept = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            kept.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            pass
    return {each for each in kept if each.startswith("socket:") or "ottla-test-" in each}


def directories() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).glob("ottla-test-*")}


def start_and_stop_a_hundred_brokers() -> None:
    with Broker() as first:
        first.create_topic("t").produce(b"loads what is loaded once")
    gc.collect()
    before = descriptors(), set(threading.enumerate())
    starts = []
    began = time.monotonic()
    for number in range(BROKERS):
        made = Broker()
        launched = time.monotonic()
        made.start()
        starts.append(time.monotonic() - launched)
        topic = made.create_topic("t")
        topic.produce(f"broker {number}")
        made.stop()
    total = time.monotonic() - began
    starts.sort()
    gc.collect()
    assert (descriptors(), set(threading.enumerate())) == before
    assert directories() == set()
    print(f"{BROKERS} brokers in {total:.1f} s; ready in {starts[BROKERS // 2]:.3f} s, the median")
    assert starts[BROKERS // 2] < READY_SECONDS_MAX


def test_a_hundred_brokers_leave_nothing_behind(tmp_path, capsys):
    output = run_alone(start_and_stop_a_hundred_brokers, tmp_path)
    with capsys.disabled():
        print("\n" + output, end="")


def test_no_task_is_left_in_the_brokers_loop():
    left: list[asyncio.Task] = []
    made = Broker().start()
    topic = made.create_topic()
    topic.produce(b"x")
    made.consume(topic, 1, group="g")
    thread = made._thread
    assert thread is not None
    close = thread.close

    def look_and_close() -> None:
        async def look() -> None:
            left.extend(task for task in asyncio.all_tasks() if task is not asyncio.current_task())

        thread.run(look())
        close()

    thread.close = look_and_close  # type: ignore[method-assign]
    made.stop()
    assert left == []


def start_a_broker_that_cannot_start() -> None:
    with pytest.raises(Exception, match=r"log\.segment\.bytes"):
        Broker({"log.segment.bytes": "many"}).start()
    assert threading.enumerate() == [threading.main_thread()]
    assert directories() == set()


def test_a_broker_that_cannot_start_leaves_nothing_behind(tmp_path):
    run_alone(start_a_broker_that_cannot_start, tmp_path)
