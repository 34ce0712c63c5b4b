"""A broker that hangs, as a real process among others: it loses its session, another broker leads, and when it wakes up
it joins again without having harmed anything."""

from __future__ import annotations

import re
import time

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.local.cluster import LocalCluster
from ottla.local.waiting import wait_for
from tests.conftest import EXTERNAL

pytestmark = pytest.mark.skipif(bool(EXTERNAL), reason="needs broker processes of its own")

LEASE_SECONDS = 2.0
TOPIC = "led"


@pytest.fixture
def cluster(tmp_path):
    settings = {"broker.session.timeout.ms": str(round(LEASE_SECONDS * 1000))}
    with LocalCluster(tmp_path, 3, settings=settings) as cluster:
        cluster.start()
        yield cluster


class Topic:
    """One partition on three brokers, written and watched."""

    def __init__(self, cluster: LocalCluster) -> None:
        everybody = cluster.bootstrap_all
        self.settings = {"bootstrap.servers": everybody, "log_level": 0, "reconnect.backoff.max.ms": 500}
        self.admin = AdminClient({**self.settings, "socket.timeout.ms": 2000})
        self.admin.create_topics([NewTopic(TOPIC, 1, 3)])[TOPIC].result(30)
        self.producer = Producer({**self.settings, "enable.idempotence": True, "socket.timeout.ms": 3000})
        self.written: list[bytes] = []

    @property
    def partition(self):
        """As a broker sees it that answers: the client may ask the one that hangs, too."""
        return wait_for(self._seen, "a broker that answers", 30)

    def _seen(self):
        try:
            return self.admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions[0]
        except KafkaException:
            return None

    def write(self, count: int) -> float:
        """How long it took."""
        began = time.monotonic()
        for _ in range(count):
            self.written.append(b"%d" % len(self.written))
            self.producer.produce(TOPIC, self.written[-1])
        assert self.producer.flush(60) == 0
        return time.monotonic() - began

    def read(self) -> list[bytes]:
        consumer = Consumer({**self.settings, "group.id": "unused"})
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        values: list[bytes] = []
        deadline = time.monotonic() + 30
        while len(values) < len(self.written) and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                values.append(message.value())
        consumer.close()
        return values


def test_a_leader_that_hangs_for_longer_than_its_session_is_replaced_and_becomes_a_follower(cluster):
    topic = Topic(cluster)
    wait_for(lambda: len(topic.partition.isrs) == 3, "all in sync")
    topic.write(10)
    hung = cluster[topic.partition.leader]
    hung.pause()
    assert topic.write(10) < LEASE_SECONDS + 10, "others lead soon after its session ended"
    assert topic.partition.leader != hung.id
    hung.resume()
    wait_for(lambda: len(topic.partition.isrs) == 3, "the one that hung to be in sync again", 30)
    topic.write(10)
    assert topic.read() == topic.written, "nothing is lost, doubled or out of order"
    others = b"".join(broker.log.read_bytes() for broker in cluster.brokers.values() if broker is not hung)
    assert re.search(rb"hung for more than 2 s", others), "somebody has said why"


def test_a_leader_that_hangs_for_less_than_its_session_stays_leader(cluster):
    topic = Topic(cluster)
    wait_for(lambda: len(topic.partition.isrs) == 3, "all in sync")
    topic.write(10)
    leader = topic.partition.leader
    cluster[leader].pause()
    time.sleep(LEASE_SECONDS / 2)
    cluster[leader].resume()
    topic.write(10)
    assert topic.partition.leader == leader
    assert len(topic.partition.isrs) == 3
    assert topic.read() == topic.written
