"""Replication of three real brokers on one store, as real clients see it."""

from __future__ import annotations

from functools import partial
from typing import Any

import confluent_kafka

from ottla.local.waiting import wait_for
from tests.harness.cluster import Brokers, produce, read


def test_a_record_acknowledged_by_all_is_in_every_log(brokers):
    topic = brokers.topic()
    assert produce(brokers.bootstrap, topic, "a", "b", "c") == [0, 1, 2]
    logs = [broker.data / f"{topic}-0" / "00000000000000000000.log" for broker in brokers.brokers.values()]
    wait_for(lambda: len({log.read_bytes() for log in logs}) == 1, "the same bytes everywhere")
    assert logs[0].stat().st_size > 0


def test_the_leader_dies_and_another_takes_over_with_everything(brokers):
    topic = brokers.topic(min_insync_replicas="2")
    values = [str(n) for n in range(500)]
    produce(brokers.bootstrap, topic, *values[:250])
    dead = brokers.leader(topic)
    brokers[dead].kill()
    assert [type(each) for each in produce(brokers.bootstrap, topic, *values[250:])] == [int] * 250
    assert brokers.leader(topic) != dead
    assert read(brokers.bootstrap, topic, 500) == values
    brokers[dead].start()
    brokers.in_sync(topic, 3)


def test_below_the_minimum_in_sync_acks_all_is_refused_and_acks_one_is_not(brokers):
    topic = brokers.topic(min_insync_replicas="2")
    for follower in brokers.followers(topic):
        brokers[follower].kill()
    brokers.in_sync(topic, 1)
    (refused,) = produce(brokers.bootstrap, topic, "a", retries=0)
    assert refused.code() == confluent_kafka.KafkaError.NOT_ENOUGH_REPLICAS
    assert produce(brokers.bootstrap, topic, "b", acks=1) == [0]


def test_a_paused_follower_leaves_the_isr_and_rejoins_it(brokers):
    topic = brokers.topic(min_insync_replicas="2")
    slow = brokers.followers(topic)[0]
    brokers[slow].pause()
    assert produce(brokers.bootstrap, topic, "a", "b") == [0, 1]  # when it has been left out
    brokers.in_sync(topic, 2)
    brokers[slow].resume()
    brokers.in_sync(topic, 3)


def test_a_clean_stop_hands_over_first_and_no_error_reaches_a_producer(brokers):
    topic = brokers.topic(min_insync_replicas="2")
    for number in (1, 2, 3):
        producer = confluent_kafka.Producer({"bootstrap.servers": brokers.bootstrap, "acks": "all", "linger.ms": 1})
        outcome: list[Any] = []
        on_delivery = partial(note, outcome)
        for n in range(200):
            producer.produce(topic, str(n), partition=0, on_delivery=on_delivery)
            producer.poll(0.001)
        assert brokers[number].stop() == 0
        for n in range(200):
            producer.produce(topic, str(n), partition=0, on_delivery=on_delivery)
        assert producer.flush(30) == 0
        assert outcome == [None] * 400
        assert brokers.leader(topic) != number
        brokers[number].start()
        brokers.in_sync(topic, 3)


def note(outcome: list[Any], error: Any, message: Any) -> None:
    outcome.append(error)


def test_records_that_must_be_flushed_are_acknowledged_after_the_flush(brokers):
    topic = brokers.topic(min_insync_replicas="2", flush_messages="1")
    values = [str(n) for n in range(100)]
    assert produce(brokers.bootstrap, topic, *values) == list(range(100))
    assert read(brokers.bootstrap, topic, 100) == values


def test_a_consumer_reads_from_the_replica_in_its_rack(tmp_path):
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    brokers = Brokers(tmp_path, racks="abc", **{"replica.selector.class": selector})
    try:
        topic = brokers.topic()
        values = [str(n) for n in range(100)]
        produce(brokers.bootstrap, topic, *values)
        near = brokers.followers(topic)[0]
        seen: list[str] = []
        got = read(
            brokers.bootstrap, topic, 100, **{"client.rack": "abc"[near - 1], "debug": "fetch", "log_level": 7,
            "logger": Logger(seen)},
        )  # fmt: skip
        assert got == values
        assert any("preferred" in line.lower() and str(near) in line for line in seen)
    finally:
        brokers.close()


class Logger:
    """What librdkafka says."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def log(self, level: int, message: str, *args: object) -> None:
        self._lines.append(message % args if args else message)
