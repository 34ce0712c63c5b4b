"""Transactions of other clients: committed ones are read completely, aborted ones not at all."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from ottla.local.waiting import wait_for
from tests.conftest import Served
from tests.harness.topics import MakeTopic
from tests.interop.clients import Confluent
from tests.interop.transactional import (
    TRANSACTIONAL,
    ConfluentTransactional,
    Fenced,
    Transactional,
    read,
    read_until,
)

Begin = Callable[..., Transactional]


@pytest.fixture(params=TRANSACTIONAL, ids=lambda kind: kind.name)
def begin(request: pytest.FixtureRequest, broker: Served) -> Iterator[Begin]:
    """Makes producers; `begin("id")` gives one that is ready."""
    made: list[Transactional] = []

    def begin(transactional_id: str, **options: Any) -> Transactional:
        made.append(request.param(broker.bootstrap, transactional_id, **options))
        return made[-1]

    yield begin
    for producer in made:
        producer.close()


@pytest.fixture
def name() -> str:
    return f"tx-{uuid.uuid4().hex[:8]}"


def last_stable(admin: AdminClient, topic: str, partition: int = 0) -> tuple[int, int]:
    """As ListOffsets tells it: to readers of committed records, and to all others."""
    asked = {TopicPartition(topic, partition): OffsetSpec.latest()}
    return tuple(
        admin.list_offsets(asked, isolation_level=level)[TopicPartition(topic, partition)].result(10).offset
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    )


def test_committed_records_are_seen_and_aborted_ones_are_not(begin: Begin, broker: Served, topic: str, name: str):
    producer = begin(name)
    producer.begin()
    producer.send(topic, b"a1", b"a2")
    producer.commit()
    producer.begin()
    producer.send(topic, b"b1", b"b2")
    producer.abort()
    producer.begin()
    producer.send(topic, b"c1")
    producer.commit()
    read_until(broker.bootstrap, topic, [b"a1", b"a2", b"c1"])
    assert read(broker.bootstrap, topic, committed=False) == [b"a1", b"a2", b"b1", b"b2", b"c1"]


def test_one_transaction_over_many_partitions_is_seen_whole(
    begin: Begin, broker: Served, make_topic: MakeTopic, name: str
):
    topic = make_topic(4)
    producer = begin(name)
    for committed in (True, False, True):
        producer.begin()
        for partition in range(4):
            producer.send(topic, b"yes" if committed else b"no", partition=partition)
        producer.commit() if committed else producer.abort()
    for partition in range(4):
        read_until(broker.bootstrap, topic, [b"yes", b"yes"], partition=partition)


def test_read_committed_stops_at_an_open_transaction(
    begin: Begin, broker: Served, admin: AdminClient, topic: str, name: str
):
    producer = begin(name)
    producer.begin()
    producer.send(topic, b"open")
    plain = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    plain.produce(topic, b"plain")
    assert plain.flush(10) == 0
    assert last_stable(admin, topic) == (0, 2)
    assert read(broker.bootstrap, topic) == []
    assert read(broker.bootstrap, topic, committed=False) == [b"open", b"plain"]
    producer.commit()
    read_until(broker.bootstrap, topic, [b"open", b"plain"])
    wait_for(lambda: last_stable(admin, topic) == (3, 3), "the marker")


def test_offsets_and_lag_are_exact_though_markers_take_offsets(begin: Begin, broker: Served, topic: str, name: str):
    producer = begin(name)
    for number in range(3):
        producer.begin()
        producer.send(topic, b"%d" % number)
        producer.commit()
    read_until(broker.bootstrap, topic, [b"0", b"1", b"2"])
    low, high = Confluent().bounds(broker.bootstrap, topic)
    assert (low, high) == (0, 6)
    consumer = Confluent().consumer(broker.bootstrap, **{"isolation.level": "read_committed"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        offsets: list[int] = []

        def caught_up() -> bool:
            offsets.extend(message.offset() for message in consumer.consume(10, timeout=0.2))
            return consumer.position([TopicPartition(topic, 0)])[0].offset >= 5

        wait_for(caught_up, "the reader to pass the last record")
        assert offsets == [0, 2, 4]
    finally:
        consumer.close()


def test_a_new_producer_fences_the_one_before(begin: Begin, broker: Served, topic: str, name: str):
    old = begin(name)
    old.begin()
    old.send(topic, b"zombie")
    new = begin(name)
    new.begin()
    new.send(topic, b"alive")
    with pytest.raises(Fenced):
        old.commit()
    new.commit()
    read_until(broker.bootstrap, topic, [b"alive"])


def test_a_transaction_past_its_timeout_is_aborted(begin: Begin, broker: Served, topic: str, name: str):
    producer = begin(name, timeout_ms=1500)
    producer.begin()
    producer.send(topic, b"late")
    plain = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    plain.produce(topic, b"behind")
    assert plain.flush(10) == 0
    read_until(broker.bootstrap, topic, [b"behind"])
    with pytest.raises(Fenced):
        producer.commit()


def test_offsets_in_a_transaction_count_when_it_is_committed(
    begin: Begin, broker: Served, admin: AdminClient, make_topic: MakeTopic, name: str
):
    """Consume, transform, produce: the copy and the place in the source move together."""
    source, target = make_topic(), make_topic()
    group = f"group-{name}"
    plain = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(4):
        plain.produce(source, b"%d" % number)
    assert plain.flush(10) == 0
    consumer = Confluent().consumer(broker.bootstrap, **{"group.id": group, "isolation.level": "read_committed"})
    producer = begin(name)

    def committed() -> int:
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(source, 0)])
        return admin.list_consumer_group_offsets([asked])[group].result(10).topic_partitions[0].offset

    try:
        for number, keep in ((0, True), (1, False), (1, True), (2, False)):
            producer.begin()
            producer.send(target, b"copy of %d" % number)
            producer.send_offsets(consumer, group, source, number + 1)
            producer.commit() if keep else producer.abort()
        read_until(broker.bootstrap, target, [b"copy of 0", b"copy of 1"])
        wait_for(lambda: committed() == 2, "the offsets of the transaction")
    finally:
        consumer.close()


def test_offset_fetch_with_require_stable_refuses_unstable_offsets(
    broker: Served, admin: AdminClient, make_topic: MakeTopic, name: str
):
    source = make_topic()
    group = f"group-{name}"
    consumer = Confluent().consumer(broker.bootstrap, **{"group.id": group})
    producer = ConfluentTransactional(broker.bootstrap, name)
    try:
        producer.begin()
        producer.send_offsets(consumer, group, source, 7)
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(source, 0)])
        future = admin.list_consumer_group_offsets([asked], require_stable=True, request_timeout=1)[group]
        try:
            refused = future.result(10).topic_partitions[0].error is not None
        except confluent_kafka.KafkaException:
            refused = True
        assert refused
        producer.commit()

        def stable() -> bool:
            found = admin.list_consumer_group_offsets([asked], require_stable=True)[group].result(10)
            return bool(found.topic_partitions[0].offset == 7)

        wait_for(stable, "the offset to be stable")
    finally:
        consumer.close()
        producer.close()


def test_concurrent_transactions_are_independent(begin: Begin, broker: Served, topic: str, name: str):
    one, two = begin(f"{name}-1"), begin(f"{name}-2")
    one.begin()
    two.begin()
    for number in range(3):
        one.send(topic, b"one %d" % number)
        two.send(topic, b"two %d" % number)
    two.commit()
    assert read(broker.bootstrap, topic) == []
    one.abort()
    read_until(broker.bootstrap, topic, [b"two 0", b"two 1", b"two 2"])
