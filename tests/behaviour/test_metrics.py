"""/metrics, /healthz and /readyz of a running cluster."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.local.cluster import LocalCluster
from ottla.local.waiting import wait_for

SAMPLE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? (-?[0-9.e+-]+)$")
LABEL = re.compile(r'([a-z]+)="((?:[^"\\]|\\.)*)"')
GROUP = 'a "group"\\'


class Page:
    """Samples by name and labels."""

    def __init__(self, text: str) -> None:
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        reported: list[str] = []
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                reported.append(line.split()[2])
                assert reported.count(reported[-1]) == 1, "a family is told in one piece"
            elif not line.startswith("#"):
                found = SAMPLE.match(line)
                assert found is not None, line
                assert found[1].startswith(reported[-1])
                key = (found[1], frozenset(LABEL.findall(found[2] or "")))
                assert key not in self.samples, line
                self.samples[key] = float(found[3])

    def get(self, metric: str, **labels: object) -> float | None:
        return self.samples.get((metric, frozenset((name, str(value)) for name, value in labels.items())))

    def total(self, metric: str) -> float:
        return sum(value for (name, _), value in self.samples.items() if name == metric)


def asked(broker: Any, path: str) -> tuple[int, str]:
    found = re.search(rb"metrics on http://(127\.0\.0\.1:\d+)/metrics\n(?!.*metrics on)", broker.log.read_bytes(), re.S)
    assert found is not None, broker.last_words()
    try:
        with urllib.request.urlopen(f"http://{found[1].decode()}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    settings = {"ottla.metrics.port": "0", "broker.session.timeout.ms": "2000", "offsets.topic.num.partitions": "3"}
    with LocalCluster(tmp_path_factory.mktemp("metrics"), 3, settings=settings) as cluster:
        cluster.start()
        yield cluster


def pages(cluster):
    return {broker.id: Page(asked(broker, "/metrics")[1]) for broker in cluster.brokers.values() if broker.running}


def ready(cluster, path="/readyz"):
    return {broker.id for broker in cluster.brokers.values() if broker.running and asked(broker, path)[0] == 200}


def written(cluster, topic, *, replicas, records):
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 3, replicas)])[topic].result(30)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(records):
        producer.produce(topic, b"x" * 100, partition=number % 3)
    assert producer.flush(30) == 0


def test_partition_metrics_are_reported_by_leaders_and_add_up_over_brokers(cluster):
    written(cluster, "told", replicas=3, records=30)
    reported = pages(cluster)
    for page in reported.values():
        assert page.get("kafka_brokers") == 3
        assert page.get("kafka_topic_partitions", topic="told") == 3
    for index in range(3):
        of = {"topic": "told", "partition": index}
        tellers = [broker for broker, page in reported.items() if page.get("kafka_topic_partition_leader", **of)]
        assert len(tellers) == 1
        page = reported[tellers[0]]
        assert page.get("kafka_topic_partition_leader", **of) == tellers[0]
        assert page.get("kafka_topic_partition_replicas", **of) == 3
        assert page.get("kafka_topic_partition_in_sync_replica", **of) == 3
        assert page.get("kafka_topic_partition_under_replicated_partition", **of) == 0
        assert page.get("kafka_topic_partition_current_offset", **of) == 10
        assert page.get("kafka_topic_partition_oldest_offset", **of) == 0
        assert all(page.get("ottla_log_bytes", **of) for page in reported.values()), "every copy has a size"
    for page in reported.values():
        assert page.get("ottla_damaged_partitions") == page.get("ottla_scrub_found_total", kind="damaged") == 0
        assert 0 <= page.get("ottla_scrub_progress_ratio") <= 1
    assert sum(page.total("ottla_controller") for page in reported.values()) == 1


def test_requests_are_counted_by_api_with_their_latency(cluster):
    written(cluster, "counted", replicas=3, records=300)
    reported = pages(cluster)
    took = [page.get("ottla_request_seconds_count", api="Produce") or 0 for page in reported.values()]
    assert sum(took) >= 3
    for page in reported.values():
        assert (page.get("ottla_request_seconds_count", api="Fetch") or 0) > 0, "replicas fetch"
        assert page.get("ottla_request_seconds_bucket", api="Fetch", le="+Inf") == page.get(
            "ottla_request_seconds_count", api="Fetch"
        )
    assert sum(page.total("ottla_received_bytes_total") for page in reported.values()) > 300 * 100
    assert all(page.total("process_resident_memory_bytes") > 10_000_000 for page in reported.values())


def test_group_lag_is_reported_by_the_coordinator_also_for_partitions_led_elsewhere(cluster):
    written(cluster, "read", replicas=1, records=30)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest"})
    consumer.subscribe(["read"])
    wait_for(lambda: consumer.poll(0.5), "a record", 30)
    consumer.commit(offsets=[TopicPartition("read", index, index) for index in range(3)], asynchronous=False)

    def reported():
        tellers = [page for page in pages(cluster).values() if page.get("kafka_consumergroup_members", **whose)]
        assert len(tellers) <= 1, "a group has one coordinator"
        return tellers[0] if tellers else None

    whose = {"consumergroup": 'a \\"group\\"\\\\'}
    page = wait_for(reported, "the coordinator's page")
    assert page.get("kafka_consumergroup_members", **whose) == 1
    for index in range(3):
        of = {**whose, "topic": "read", "partition": index}
        assert page.get("kafka_consumergroup_current_offset", **of) == index
        assert page.get("kafka_consumergroup_lag", **of) == 10 - index
    assert page.get("kafka_consumergroup_lag_sum", **whose, topic="read") == 27
    consumer.close()


def test_a_broker_is_ready_when_it_serves_and_in_sync_when_nothing_is_missing(cluster):
    written(cluster, "ready", replicas=3, records=3)
    assert all(asked(broker, "/healthz") == (200, "ok\n") for broker in cluster.brokers.values())
    assert ready(cluster) == {1, 2, 3}
    wait_for(lambda: ready(cluster, "/readyz/in-sync") == {1, 2, 3}, "everybody in sync")
    assert asked(cluster[1], "/nothing")[0] == 404

    cluster[3].kill()
    short = {"topic": "ready", "partition": 0}

    def under_replicated():
        return any(
            page.get("kafka_topic_partition_under_replicated_partition", **short) for page in pages(cluster).values()
        )

    wait_for(under_replicated, "the gap to show")
    cluster[3].start()
    wait_for(lambda: ready(cluster, "/readyz/in-sync") == {1, 2, 3}, "the third to catch up", 30)
