"""What the log promises: order, immutability, independent readers, replay."""

from __future__ import annotations

import threading

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.harness.raw import Connection, fetch
from tests.interop.clients import CLIENTS, EARLIEST, Client, Confluent, Record, take, untimed

CONFLUENT = Confluent()


def numbered(count: int, start: int = 0, partition: int = 0) -> list[Record]:
    return [Record(str(i).encode(), partition=partition) for i in range(start, start + count)]


def assigned(broker, topic: str, offset: int, partition: int = 0):
    consumer = CONFLUENT.consumer(broker.bootstrap)
    consumer.list_topics(topic, 10)
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
    return consumer


def test_records_of_one_producer_are_appended_in_the_order_sent(broker, topic, client: Client):
    records = numbered(2_000)
    assert client.produce(broker.bootstrap, topic, records, idempotent=True) == list(range(2_000))
    assert untimed(client.consume(broker.bootstrap, topic, 2_000)) == records


def test_a_consumer_sees_records_in_log_order_while_they_are_written(broker, topic):
    consumer = assigned(broker, topic, 0)
    writer = threading.Thread(target=CONFLUENT.produce, args=(broker.bootstrap, topic, numbered(20_000)))
    writer.start()
    try:
        seen = take(consumer, 20_000)
    finally:
        writer.join()
        consumer.close()
    assert [record.offset for record in seen] == list(range(20_000))
    assert [record.value for record in seen] == [str(i).encode() for i in range(20_000)]


def test_two_readers_at_different_offsets_do_not_disturb_each_other(broker, topic):
    CONFLUENT.produce(broker.bootstrap, topic, numbered(8))
    reader_a, reader_b = assigned(broker, topic, 4), assigned(broker, topic, 7)
    try:
        assert [r.offset for r in take(reader_a, 1)] == [4]
        assert [r.offset for r in take(reader_b, 1)] == [7]
        CONFLUENT.produce(broker.bootstrap, topic, numbered(1, start=8))
        assert [r.offset for r in take(reader_b, 1)] == [8]
        assert [r.offset for r in take(reader_a, 4)] == [5, 6, 7, 8]
    finally:
        reader_a.close()
        reader_b.close()


def test_each_partition_counts_its_own_offsets(broker, make_topic):
    topic = make_topic(partitions=3)
    for partition, count in enumerate((6, 9, 10)):
        CONFLUENT.produce(broker.bootstrap, topic, numbered(count, partition=partition))
    ends = [CONFLUENT.bounds(broker.bootstrap, topic, partition) for partition in range(3)]
    assert ends == [(0, 6), (0, 9), (0, 10)]


def test_a_record_is_identified_by_topic_partition_and_offset(broker, make_topic):
    topics = [make_topic(partitions=2), make_topic(partitions=2)]
    for number, topic in enumerate(topics):
        for partition in (0, 1):
            values = [f"{number}/{partition}/{offset}".encode() for offset in range(5)]
            CONFLUENT.produce(broker.bootstrap, topic, [Record(v, partition=partition) for v in values])
    for number, topic in enumerate(topics):
        for partition in (0, 1):
            found = CONFLUENT.consume(broker.bootstrap, topic, 1, start=3, partition=partition)
            assert found[0].value == f"{number}/{partition}/3".encode()


def test_records_do_not_change_when_more_are_appended(broker, topic):
    CONFLUENT.produce(broker.bootstrap, topic, numbered(10), codec="lz4")
    with Connection(broker) as connection:
        first = fetch(connection, topic)["records"]
        CONFLUENT.produce(broker.bootstrap, topic, numbered(1_000, start=10), codec="zstd")
        again = fetch(connection, topic)["records"]
    assert again[: len(first)] == first


def test_records_stay_after_they_were_read(broker, topic):
    CONFLUENT.produce(broker.bootstrap, topic, numbered(100))
    for reader in CLIENTS:
        for _ in range(2):
            assert len(reader.consume(broker.bootstrap, topic, 100, start=EARLIEST)) == 100


def test_a_consumer_seeks_forward_and_backward(broker, topic):
    CONFLUENT.produce(broker.bootstrap, topic, numbered(50))
    consumer = assigned(broker, topic, 0)
    try:
        take(consumer, 1)
        for offset in (40, 3, 49, 0, 25):
            consumer.seek(confluent_kafka.TopicPartition(topic, 0, offset))
            assert [r.offset for r in take(consumer, 1)] == [offset]
    finally:
        consumer.close()


def test_a_producer_outruns_its_consumers(broker, topic):
    CONFLUENT.produce(broker.bootstrap, topic, numbered(12))
    slow, slower = assigned(broker, topic, 0), assigned(broker, topic, 0)
    try:
        assert take(slow, 9)[-1].offset == 8
        assert take(slower, 6)[-1].offset == 5
        # Their offsets are skipped: the next write is offset 12.
        assert CONFLUENT.produce(broker.bootstrap, topic, numbered(1, start=12)) == [12]
        assert [r.offset for r in take(slow, 4)] == [9, 10, 11, 12]
    finally:
        slow.close()
        slower.close()


def test_readers_see_up_to_the_high_watermark_and_writes_go_to_the_log_end(broker, topic):
    with Connection(broker) as connection:
        for count in (0, 3, 5):
            if count:
                CONFLUENT.produce(broker.bootstrap, topic, numbered(count))
            low, high = CONFLUENT.bounds(broker.bootstrap, topic)
            answer = fetch(connection, topic, high)
            assert (low, answer["high_watermark"], answer["records"] or b"") == (0, high, b"")
            # With one replica all that is written is replicated: the next write starts at the high watermark.
            assert CONFLUENT.produce(broker.bootstrap, topic, numbered(1)) == [high]


def test_keyed_records_keep_their_order_and_their_partition(broker, make_topic):
    topic = make_topic(partitions=4)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for number in range(400):
        producer.produce(topic, key=f"employee-{number % 10}", value=str(number))
    assert producer.flush(30) == 0
    homes: dict[bytes, set[int]] = {}
    order: dict[bytes, list[int]] = {}
    for partition in range(4):
        _, end = CONFLUENT.bounds(broker.bootstrap, topic, partition)
        for record in CONFLUENT.consume(broker.bootstrap, topic, end, partition=partition) if end else []:
            assert record.key is not None
            assert record.value is not None
            homes.setdefault(record.key, set()).add(partition)
            order.setdefault(record.key, []).append(int(record.value))
    assert len(homes) == 10
    assert all(len(partitions) == 1 for partitions in homes.values())
    assert all(numbers == sorted(numbers) for numbers in order.values())


def test_any_broker_address_leads_to_the_partition_leader(broker, topic):
    """A client needs one address: metadata tells it the rest."""
    metadata = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(topic, 10)
    leader = metadata.brokers[metadata.topics[topic].partitions[0].leader]
    assert f"{leader.host}:{leader.port}" == broker.bootstrap


@pytest.mark.parametrize("writers", [4])
def test_several_producers_on_one_partition_lose_nothing(broker, topic, writers):
    """Between two producers there is no order; each keeps its own."""
    threads = [
        threading.Thread(
            target=CONFLUENT.produce,
            args=(broker.bootstrap, topic, [Record(f"{writer}:{i}".encode()) for i in range(500)]),
            kwargs={"idempotent": True},
        )
        for writer in range(writers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen: dict[int, list[int]] = {writer: [] for writer in range(writers)}
    for record in CONFLUENT.consume(broker.bootstrap, topic, 500 * writers):
        assert record.value is not None
        writer, number = record.value.split(b":")
        seen[int(writer)].append(int(number))
    assert seen == {writer: list(range(500)) for writer in range(writers)}
