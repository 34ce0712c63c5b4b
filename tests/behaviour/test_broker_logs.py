"""The operator's story: a cluster is broken in five ways, and then the logs alone, in the order of time, tell what
happened and why, in fewer lines than a page has."""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.blocking import Admin, Producer
from ottla.client.admin import NewTopic
from ottla.client.errors import ClientError
from ottla.client.values import TopicPartition
from ottla.local.cluster import LocalCluster
from ottla.local.waiting import wait_for
from tests.harness.zookeeper import ensemble

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="a limit of another process is changed"),
]

LINES_MAX = 100
SEGMENT_FULL_BYTES = 300_000
"""Larger than any other file that a broker writes here, its log included."""
STAMP = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z ")


class Story:
    """A cluster and what its brokers have said, in the order of time."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    def lines(self) -> list[str]:
        said = [line for broker in self.cluster.brokers.values() for line in broker.log.read_text().splitlines()]
        return sorted((line for line in said if STAMP.match(line)), key=lambda line: line[:24])

    def reported(self, pattern: str, times: int = 1) -> None:
        """Wait until the logs have such a line."""
        wait_for(lambda: self.count(pattern) >= times, pattern, 60)

    def count(self, pattern: str) -> int:
        return sum(bool(re.search(pattern, line)) for line in self.lines())

    def leader(self, topic: str) -> int:
        with Admin(self.cluster.bootstrap) as admin:
            (partition,) = admin.describe_topics([topic])[topic].partitions
            return partition.leader

    def all_in_sync(self) -> None:
        with Admin(self.cluster.bootstrap) as admin:
            wait_for(
                lambda: all(
                    len(each.in_sync) == 3
                    for topic in admin.describe_topics(["orders", "bulk"]).values()
                    for each in topic.partitions
                ),
                "all replicas in sync",
                60,
            )


@contextmanager
def full_disk(pid: int) -> Iterator[None]:
    """No file of the process may be longer than the full segment is."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (SEGMENT_FULL_BYTES, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def live_it(story: Story) -> dict[str, int]:
    """What the operator sees nothing of: who was hit."""
    cluster = story.cluster
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("orders", 6, 3), NewTopic("bulk", 1, 3)])
    with Producer(cluster.bootstrap) as producer:
        for _ in range(SEGMENT_FULL_BYTES // 1000 + 10):
            producer.send("bulk", b"x" * 1000)
    story.reported("created")
    story.all_in_sync()
    killed = story.leader("bulk")
    cluster[killed].kill()
    story.reported(f"broker {killed} left the cluster")
    cluster[killed].start()
    story.all_in_sync()
    story.reported(f"replica {killed} of .* is in sync")
    paused = story.leader("bulk")
    cluster[paused].pause()
    story.reported(f"broker {paused} left the cluster")
    cluster[paused].resume()
    story.reported(f"broker {paused} joined the cluster", times=2)
    story.all_in_sync()
    story.reported(f"replica {paused} of .* is in sync")
    filled = story.leader("bulk")
    with (
        full_disk(cluster[filled].pid),
        Producer(cluster.bootstrap, delivery_timeout_ms=2000) as producer,
        pytest.raises(ClientError, match="kafka storage error"),
    ):
        producer.send("bulk", b"refused").result(60)
    with Producer(cluster.bootstrap) as producer:
        producer.send("bulk", b"taken").result(60)
    story.reported("the disk accepts writes again")
    assert cluster.ensemble is not None
    out, back = story.count("disconnected from ZooKeeper"), story.count(" connected to ZooKeeper")
    cluster.ensemble.servers[0].kill()
    story.reported("disconnected from ZooKeeper", times=out + 3)
    cluster.ensemble.start()
    story.reported(" connected to ZooKeeper", times=back + 3)
    with Admin(cluster.bootstrap) as admin:
        others = [broker for broker in (1, 2, 3) if broker != filled]
        wait_for(lambda: moved(admin, others), "the controller to be back", 60)
    story.reported("bulk-0: reassignment done")
    cluster.stop()
    return {"killed": killed, "paused": paused, "filled": filled}


def moved(admin: Admin, brokers: list[int]) -> bool:
    try:
        admin.reassign({TopicPartition("bulk", 0): brokers})
    except ClientError:
        return False
    return True


def test_the_log_of_each_broker_has_the_events_in_order_and_in_few_lines(tmp_path: Path) -> None:
    settings = {"zookeeper.session.timeout.ms": "4000", "num.partitions": "1"}
    zookeeper = ensemble(tmp_path / "zookeeper")
    with LocalCluster(tmp_path / "brokers", 3, settings=settings, ensemble=zookeeper) as cluster:
        for broker in cluster.brokers.values():
            broker.start()
        story = Story(cluster)
        hit = live_it(story)
    for broker in cluster.brokers.values():
        own = [line for line in broker.log.read_text().splitlines() if STAMP.match(line)]
        assert [line[:24] for line in own] == sorted(line[:24] for line in own), f"not in order: {own}"
        assert all(f"Z [broker {broker.id}] " in line for line in own)
        assert "has stopped, its logs are closed cleanly" in own[-1]
    lines = story.lines()
    text = "\n".join(lines)
    killed, paused, filled = hit["killed"], hit["paused"], hit["filled"]
    expected = [
        r"INFO ottla.broker Ottla \S+, broker 1 is starting: data directory .*, store zookeeper:",
        r"INFO ottla.broker cluster id \S+: 0 topics",
        r"topic bulk created: 1 partition, 3 replicas each",
        rf"broker {killed} left the cluster: its session ended \(killed, hung, or cut off from the store\)",
        rf"bulk-0 has leader \d, broker {killed} led: broker {killed} left|leader \d, broker {killed} led: broker",
        rf"broker {killed} is starting",
        r"the last stop was not clean: \d+ logs? opened in .*, \d+ checked",
        rf"broker {killed} joined the cluster",
        rf"replica {killed} of .* is in sync",
        rf"broker {paused} left the cluster: its session ended",
        rf"broker {paused} led: broker {paused} left",
        rf"broker {paused} joined the cluster",
        rf"replica {paused} of .* is in sync",
        r"ERROR ottla.disk bulk-0: the disk refuses writes \(KAFKA_STORAGE_ERROR\): cannot write .*bulk-0/.*: File too",
        r"INFO ottla.disk bulk-0: the disk accepts writes again",
        r"WARNING ottla\.\S+ disconnected from ZooKeeper",
        r"INFO ottla\.\S+ connected to ZooKeeper",
        r"bulk-0: reassignment done, the replicas are \d, \d \(they were \d, \d, \d\)",
        r"broker \d is stopping \(SIGTERM\)",
        r"broker \d has stopped, its logs are closed cleanly",
    ]
    rest = iter(lines)
    for pattern in expected:
        assert any(re.search(pattern, line) for line in rest), f"{pattern} is missing, or not in its place:\n{text}"
    assert len(lines) < LINES_MAX, f"{len(lines)} lines:\n{text}"
    assert sum("the disk refuses writes" in line for line in lines) == 1
    assert filled in (1, 2, 3)
