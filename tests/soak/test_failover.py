"""A leader is killed under 20 MB/s, three replicas, two in sync, acks=all: how long that is felt, and that nothing is
lost."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.cluster.ensemble import Ensemble
from ottla.local.cluster import LocalCluster
from ottla.local.waiting import wait_for
from tests.harness.zookeeper import zookeeper_jars

PARTITIONS = 6
RECORD_BYTES = 10_000
RECORDS_S = 2_000
SESSION_S = 4.0
SLACK_S = 4.0
"""The limits are 1 s and the session timeout plus 2 s on a machine that does nothing else. A test has to pass on one
that is busy, too; what it really took is printed."""


class Load(threading.Thread):
    """Twenty megabytes a second, and when each partition acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[dict[int, float]] = [{} for _ in range(PARTITIONS)]
        self.failures: list[str] = []
        self.ended = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "batch.size": 200_000,
                "queue.buffering.max.kbytes": 20_000,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        sent, began, value = 0, time.monotonic(), b"x" * RECORD_BYTES
        while not self.ended.is_set():
            while sent < (time.monotonic() - began) * RECORDS_S:
                try:
                    self._producer.produce("load", value, partition=sent % PARTITIONS, on_delivery=self._delivered)
                except BufferError:
                    break
                sent += 1
            self._producer.poll(0.002)
        assert self._producer.flush(60) == 0

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None:
            self.failures.append(str(error))
        else:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.acknowledged[partition][offset] = time.monotonic()

    def goes_on_everywhere(self, since: float) -> bool:
        return all(any(at > since for at in list(acks.values())[-50:]) for acks in self.acknowledged)


@pytest.mark.parametrize("store", ["embedded", "zookeeper"])
def test_every_partition_is_writable_soon_after_its_leader_is_killed(store, tmp_path):
    ensemble = Ensemble(tmp_path / "zookeeper", 3, jars=zookeeper_jars()) if store == "zookeeper" else None
    settings = {"zookeeper.session.timeout.ms": str(int(SESSION_S * 1000))}
    with LocalCluster(tmp_path, 3, settings=settings, ensemble=ensemble) as cluster:
        cluster.start()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        topic = NewTopic("load", PARTITIONS, 3, config={"min.insync.replicas": "2"})
        admin.create_topics([topic])["load"].result(20)
        load = Load(cluster.bootstrap)
        load.start()
        wait_for(lambda: all(len(acks) > 200 for acks in load.acknowledged), "load", 60)
        leader = admin.list_topics("load", timeout=10).topics["load"].partitions[0].leader
        cluster[leader].kill()
        killed = time.monotonic()
        wait_for(lambda: load.goes_on_everywhere(killed + 0.2), "every partition", 60)
        silence = max(longest(acks, killed) for acks in load.acknowledged)
        print(f"\n{store}: the longest silence of a partition was {silence:.2f} s")
        load.ended.set()
        load.join(90)
        assert not load.failures
        limit = 1.0 if store == "embedded" else SESSION_S + 2.0
        assert silence < limit + SLACK_S
        assert lost(cluster.bootstrap, load) == 0


def longest(acks: dict[int, float], killed: float) -> float:
    """The longest time without an acknowledgement that reaches beyond the kill."""
    times = sorted(acks.values())
    return max(after - before for before, after in pairwise(times) if after > killed)


def lost(bootstrap: str, load: Load) -> int:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "enable.auto.commit": False,  # with two brokers left there is nobody to commit to
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    missing = 0
    try:
        for partition, acks in enumerate(load.acknowledged):
            consumer.assign([TopicPartition("load", partition, 0)])
            seen: set[int] = set()
            deadline = time.monotonic() + 60
            while not seen.issuperset(acks) and time.monotonic() < deadline:
                for message in consumer.consume(1000, 0.5):
                    assert message.error() is None, message.error()
                    offset = message.offset()
                    assert offset is not None
                    assert offset not in seen, "read twice"
                    seen.add(offset)
            gone = sorted(set(acks) - seen)
            if gone:
                print(f"partition {partition}: {len(gone)} of {len(acks)} not read: {gone[:5]} .. {gone[-5:]}")
            missing += len(gone)
    finally:
        consumer.close()
    return missing


def test_the_longest_failover_is_computed_per_leader(tmp_path: Path):
    assert longest({0: 1.0, 1: 1.1, 2: 3.0, 3: 3.1}, killed=1.2) == pytest.approx(1.9)
