"""One consumer for each thread."""

from __future__ import annotations

import threading
from collections import defaultdict

import pytest

from ottla.blocking import Admin, ConsumerPool, Producer
from ottla.client.admin import NewTopic
from ottla.client.errors import BadSetting
from ottla.local.waiting import wait_for
from tests.conftest import Served

PARTITIONS = 4
RECORDS = 400


@pytest.fixture
def topic(broker: Served, fresh_name) -> str:
    name = fresh_name()
    with Admin(broker.bootstrap) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS)])
    return name


def fill(broker: Served, topic: str) -> None:
    with Producer(broker.bootstrap) as producer:
        for number in range(RECORDS):
            producer.send(topic, b"%d" % number, partition=number % PARTITIONS)


def test_threads_share_the_partitions_and_each_keeps_its_order(broker: Served, topic):
    seen: dict[int, list[int]] = defaultdict(list)
    by_thread: dict[str, set[int]] = defaultdict(set)

    def handle(record) -> None:
        seen[record.partition].append(int(record.value))
        by_thread[threading.current_thread().name].add(record.partition)

    with ConsumerPool(
        2,
        topic,
        handle=handle,
        bootstrap_servers=broker.bootstrap,
        group_id=topic,
        group_protocol="consumer",
        auto_offset_reset="earliest",
    ) as pool:
        wait_for(lambda: sorted(len(each.assignment()) for each in pool.consumers) == [2, 2] or None, "two each", 30)
        fill(broker, topic)
        wait_for(lambda: sum(map(len, seen.values())) >= RECORDS or None, "all records", 30)
    assert seen == {partition: list(range(partition, RECORDS, PARTITIONS)) for partition in range(PARTITIONS)}
    assert sorted(map(len, by_thread.values())) == [2, 2]


def test_a_handler_that_fails_stops_the_pool_and_its_record_is_read_again(broker: Served, topic):
    settings = {
        "bootstrap_servers": broker.bootstrap,
        "group_id": topic,
        "group_protocol": "consumer",
        "auto_offset_reset": "earliest",
    }
    fill(broker, topic)
    first: list[int] = []

    def clumsy(record) -> None:
        number = int(record.value)
        if number == 200:
            raise KeyError(number)
        first.append(number)

    pool = ConsumerPool(1, topic, handle=clumsy, **settings)
    pool.start()
    with pytest.raises(KeyError, match="200"):
        pool.wait()
    second: list[int] = []
    with ConsumerPool(1, topic, handle=lambda record: second.append(int(record.value)), **settings):
        wait_for(lambda: len(first) + len(second) >= RECORDS or None, "the rest", 30)
    assert sorted(first + second) == list(range(RECORDS))
    assert 200 in second


def test_a_pool_without_group_or_topic_is_refused():
    with pytest.raises(BadSetting, match="group_id"):
        ConsumerPool(2, "t", handle=print)
    with pytest.raises(BadSetting, match="at least one"):
        ConsumerPool(0, "t", handle=print, group_id="g")
    with pytest.raises(BadSetting, match="at least one topic"):
        ConsumerPool(2, handle=print, group_id="g")
