"""The clients without `async`, with a real broker."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import wait
from typing import Any

import pytest

from ottla.blocking import Admin, Consumer, Producer
from ottla.client.admin import NewTopic
from ottla.client.consuming.consumer_coordinator import RebalanceListener
from ottla.client.consuming.consumer_records import NotDeserialized
from ottla.client.errors import ClientError, TopicExists, UnknownTopic, Unreachable
from ottla.client.values import TopicPartition
from ottla.local.waiting import wait_for
from tests.conftest import Served, StartBroker

BROKERS = ("ottla-offload", "ottla-store")
"""Threads of brokers that other tests share in this process; no client has such threads."""


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not [name for name in left if not name.startswith(BROKERS)]


@pytest.fixture
def topic(broker: Served, fresh_name) -> str:
    name = fresh_name()
    with Admin(broker.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 2)])
    return name


def fill(broker: Served, topic: str, count: int, partition: int = 0) -> None:
    with Producer(broker.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=partition)


def test_records_are_written_and_read_in_order(broker: Served, topic):
    with Producer(broker.bootstrap, value_serializer=str.encode) as producer:
        assert producer.send_and_wait(topic, "0", partition=0)[:3] == (topic, 0, 0)
        sent = [producer.send(topic, str(number), partition=0) for number in range(1, 5000)]
        producer.flush()
        assert all(each.done() for each in sent)
        assert [each.result().offset for each in sent] == list(range(1, 5000))
        assert producer.partitions_for(topic) == {0, 1}
    with Consumer(bootstrap_servers=broker.bootstrap, value_deserializer=int) as consumer:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        consumer.seek_to_beginning()
        for number, record in enumerate(consumer):
            assert record.value == record.offset == number
            if number == 4998:
                break
        assert consumer.position(tp) == 4999
        assert consumer.lag() == {tp: 1}
        assert [each.offset for each in consumer.getmany(timeout_ms=5000)[tp]] == [4999]


def test_many_threads_may_share_a_producer(broker: Served, topic):
    with Producer(broker.bootstrap, buffer_memory=100_000) as producer:

        def send(partition: int) -> None:
            for number in range(2000):
                producer.send(topic, b"%d" % number, partition=partition)

        threads = [threading.Thread(target=send, args=(partition,)) for partition in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
    with Consumer(topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        read: dict[int, list[int]] = {0: [], 1: []}
        while sum(map(len, read.values())) < 4000:
            record = consumer.getone()
            read[record.partition].append(int(record.value))
    assert read == {0: list(range(2000)), 1: list(range(2000))}


def test_blocking_clients_work_inside_a_running_loop(broker: Served, topic):
    async def notebook() -> int:
        with Producer(broker.bootstrap) as producer:
            return producer.send_and_wait(topic, b"v", partition=0).offset

    assert asyncio.run(notebook()) == 0


def test_a_commit_counts_records_that_the_user_has_seen(broker: Served, topic):
    fill(broker, topic, 100)
    tp = TopicPartition(topic, 0)
    settings = {"bootstrap_servers": broker.bootstrap, "group_id": topic, "auto_offset_reset": "earliest"}
    with Consumer(enable_auto_commit=False, **settings) as consumer:
        consumer.assign([tp])
        for record in consumer:
            if record.offset == 9:
                break
        consumer.commit()
        assert consumer.committed(tp) == 10
        assert consumer.position(tp) == 10
        assert consumer.lag() == {tp: 90}
        assert consumer.getone().offset == 10
        consumer.pause(tp)
        assert consumer.getmany(timeout_ms=50) == {}
        consumer.resume(tp)
        assert consumer.getone().offset == 11
    with Consumer(**settings) as consumer:
        consumer.assign([tp])
        assert [consumer.getone().offset for _ in range(5)] == [10, 11, 12, 13, 14]
    with Consumer(**settings) as consumer:
        consumer.assign([tp])
        assert consumer.getone().offset == 15


def test_the_record_that_failed_is_read_again_and_nothing_before_it(broker: Served, topic):
    fill(broker, topic, 100)
    settings = {"bootstrap_servers": broker.bootstrap, "group_id": topic, "group_protocol": "consumer"}

    def fail() -> None:
        with Consumer(topic, auto_offset_reset="earliest", **settings) as consumer:
            for record in consumer:
                1 // (7 - record.offset)

    with pytest.raises(ZeroDivisionError):
        fail()
    with Consumer(topic, **settings) as consumer:
        assert consumer.getone().offset == 7
        assert consumer.subscription() == {topic}
        assert consumer.group_metadata().group_id == topic


def test_a_slow_batch_does_not_end_the_membership(broker: Served, topic):
    fill(broker, topic, 8)

    class Losing(RebalanceListener):
        def on_partitions_lost(self, lost):
            losses.append(lost)

    losses: list[object] = []
    with Consumer(
        bootstrap_servers=broker.bootstrap,
        group_id=topic,
        auto_offset_reset="earliest",
        max_poll_interval_ms=1000,
        auto_commit_interval_ms=100,
    ) as consumer:
        consumer.subscribe([topic], listener=Losing())
        seen = []
        for record in consumer:
            seen.append(record.offset)
            if record.offset == 7 or len(seen) > 8:
                break
            time.sleep(0.3)  # a call for records every 0.3 s, and all of them come at once
        assert (seen, losses) == (list(range(8)), [])
        assert (consumer.committed(TopicPartition(topic, 0)) or 0) > 0, "it commits meanwhile"


def test_a_revoked_partition_continues_at_its_committed_offset(broker: Served, topic):
    for partition in range(2):
        fill(broker, topic, 20, partition)
    settings: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap,
        "group_id": topic,
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 100,
        "partition_assignment_strategy": "range",
    }
    with Consumer(topic, **settings) as consumer:
        before = [consumer.getone() for _ in range(5)]
        with Consumer(topic, **settings) as other:
            wait_for(lambda: len(other.assignment()) == len(consumer.assignment()) == 1, "one for each", 30)
            (kept,) = consumer.assignment()
            after = []
            while (record := consumer.next_within(1000)) is not None:
                after.append((record.partition, record.offset))
    # The last returned record does not count as processed yet.
    first = before[-1].offset if before[-1].partition == kept.partition else 0
    assert after == [(kept.partition, offset) for offset in range(first, 20)]


def test_a_commit_during_a_revocation_counts_only_records_that_were_seen(broker: Served, topic):
    for partition in range(2):
        fill(broker, topic, 20, partition)
    revoking, may_go = threading.Event(), threading.Event()

    class Slow(RebalanceListener):
        async def on_partitions_revoked(self, revoked):
            revoking.set()
            await asyncio.to_thread(may_go.wait, 30)

    settings: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap,
        "group_id": topic,
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 100,
        "enable_auto_commit": False,
        "partition_assignment_strategy": "cooperative-sticky",
    }
    partitions = [TopicPartition(topic, number) for number in range(2)]
    with Consumer(**settings) as consumer:
        consumer.subscribe(topic, listener=Slow())
        wait_for(lambda: len(consumer.assignment()) == 2, "both", 30)
        wait_for(lambda: all(consumer.highwater(tp) == 20 for tp in partitions), "all of both", 30)
        shown = [consumer.getone()]
        with Consumer(topic, **settings):
            assert revoking.wait(30)
            while (record := consumer.next_within(100)) is not None:
                shown.append(record)
            consumer.commit()
            may_go.set()
            wait_for(lambda: len(consumer.assignment()) == 1, "one was given up", 30)
            (kept,) = consumer.assignment()
            (lost,) = set(partitions) - {kept}
            assert (consumer.committed(kept), len(shown)) == (20, 20 + (shown[0].partition == lost.partition))
            assert (consumer.committed(lost) or 0) == sum(each.partition == lost.partition for each in shown)


def test_a_stopped_client_leaves_no_thread_of_its_callbacks(broker: Served):
    busy, may_end = threading.Event(), threading.Event()

    def work() -> None:
        busy.set()
        may_end.wait(30)

    with Producer(broker.bootstrap) as producer:
        assert producer._thread is not None
        producer._thread.loop.call_soon_threadsafe(producer._thread.loop.run_in_executor, None, work)
        assert busy.wait(30)
        later = threading.Timer(0.2, may_end.set)
        later.start()
    later.join()


def test_max_block_ms_ends_for_all_waiting_records_at_once(broker: Served, topic):
    with Producer(broker.bootstrap, allow_auto_create_topics=False, max_block_ms=1000) as producer:
        began = time.monotonic()
        lost = [producer.send(f"{topic}-not-there", b"v") for _ in range(20)]
        good = producer.send(topic, b"v", partition=0)
        assert good.result(30).offset == 0
        assert time.monotonic() - began < 10, "a second each would be twenty"
        assert {type(each.exception()) for each in lost} == {UnknownTopic}


def test_metadata_of_a_topic_is_requested_while_its_record_waits_behind_another(start_broker: StartBroker):
    broker = start_broker("--set", "auto.create.topics.enable=false")
    with Producer(broker.bootstrap, max_block_ms=3000) as producer:
        with pytest.raises(UnknownTopic):
            producer.send_and_wait("late", b"v")
        lost = producer.send("not-there", b"v")
        late = producer.send("late", b"v")
        with Admin(broker.bootstrap) as admin:
            admin.create_topics([NewTopic("late")])
        assert late.result(30).offset == 0
        assert isinstance(lost.exception(), UnknownTopic)


def test_senders_wait_for_buffer_memory_in_order(broker: Served, topic):
    one_by_one: dict[str, Any] = {"batch_size": 1, "buffer_memory": 2000, "max_in_flight_requests_per_connection": 1}
    with Producer(broker.bootstrap, max_block_ms=1000, **one_by_one) as producer:
        sent = [producer.send(topic, bytes(1000), partition=0) for _ in range(8000)]
        assert [each.result(60).offset for each in sent] == list(range(8000)), "the last waited for longer"


def test_an_error_of_the_partitioner_is_raised_to_the_sender(broker: Served, topic):
    def clumsy(topic, record, partitions):
        raise KeyError("none")

    with Producer(broker.bootstrap, partitioner=clumsy) as producer:
        for _ in range(2):  # the first waits until the partitions are known, the second does not
            with pytest.raises(KeyError, match="none"):
                producer.send(topic, b"v").result(30)


def test_a_record_can_be_cancelled_while_it_waits(broker: Served, topic):
    with Producer(broker.bootstrap, allow_auto_create_topics=False, max_block_ms=1000) as producer:
        producer.send_and_wait(topic, b"first", partition=0)
        lost = producer.send(f"{topic}-not-there", b"v")
        back = [producer.send(topic, value, partition=0) for value in (b"back", bytes(2_000_000))]
        assert [each.cancel() for each in back] == [True, True]
        assert producer.send_and_wait(topic, b"second", partition=0).offset == 1
        assert isinstance(lost.exception(), UnknownTopic)


def test_errors_are_raised_to_the_caller(broker: Served, topic):
    with pytest.raises(Unreachable):
        Producer("127.0.0.1:1", bootstrap_timeout_ms=0).start()
    producer = Producer(broker.bootstrap, max_block_ms=200)
    with pytest.raises(ClientError, match="comes first"):
        producer.send(topic, b"v")
    with producer:
        with pytest.raises(TypeError):
            producer.send(topic, 17)
        sent = [producer.send(topic, b"v", partition=9), producer.send(topic, b"v", partition=0)]
        wait(sent, 30)
        with pytest.raises(ClientError, match="no partition 9"):
            sent[0].result()
        assert sent[1].result().offset == 0
        with pytest.raises(ClientError, match="started before"):
            producer.start()
    with pytest.raises(ClientError, match="stopped"):
        producer.send(topic, b"v")
    with Admin(broker.bootstrap) as admin, pytest.raises(TopicExists):
        admin.create_topics([topic])
    with (
        Consumer(
            topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", value_deserializer=int
        ) as consumer,
        pytest.raises(NotDeserialized),
    ):
        consumer.getone()


def test_a_listener_cannot_call_its_consumer(broker: Served, topic):
    class Impatient(RebalanceListener):
        def on_partitions_assigned(self, assigned):
            consumer.commit()

    with Consumer(bootstrap_servers=broker.bootstrap, group_id=topic, group_protocol="consumer") as consumer:
        consumer.subscribe([topic], listener=Impatient())
        with pytest.raises(ClientError, match="own thread"):
            consumer.getone()


def test_the_admin_client_has_the_same_methods(broker: Served, topic):
    fill(broker, topic, 10)
    tp = TopicPartition(topic, 0)
    with Admin(broker.bootstrap) as admin:
        assert topic in {each.name for each in admin.list_topics()}
        admin.create_partitions(topic, 3)
        assert len(admin.describe_topics([topic])[topic].partitions) == 3
        assert admin.delete_records({tp: 4}) == {tp: 4}
        assert admin.list_offsets({tp: "earliest"})[tp].offset == 4
        admin.alter_group_offsets(topic, {tp: 6})
        assert admin.group_offsets(topic)[tp].offset == 6
        assert admin.group_lag(topic)[tp].lag == 4
        assert topic in {each.group_id for each in admin.list_groups()}
        admin.delete_groups([topic])
        assert admin.describe_cluster().brokers
        admin.delete_topics([topic])
