"""From one version to the next while clients go on: each broker is stopped as an operator would stop it, and started as
the new version on its data. The old version is the release tagged last, or else the state before the last change.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.local.waiting import wait_for
from tests.conftest import EXTERNAL
from tests.harness.brokers import WatchedBroker
from tests.harness.zookeeper import ensemble

pytestmark = [
    pytest.mark.skipif(bool(EXTERNAL), reason="needs broker processes of its own"),
    pytest.mark.timeout(240),
]

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "rolled"
PARTITIONS = 6
RATE = 300
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "5",
    "group.initial.rebalance.delay.ms": "0",
}


def git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("the previous version is in the repository, and this is none")
    return done.stdout.strip()


def previous_version(directory: Path) -> tuple[str, ...]:
    """The command of the previous version, laid out in this directory."""
    tags = git("tag", "--list", "v*", "--sort=-version:refname", "--merged", "HEAD").split()
    changes = git("rev-list", "--max-count=2", "HEAD", "--", "ottla").split()
    if not tags and len(changes) < 2:
        pytest.skip("there is no previous version")
    revision = tags[0] if tags else changes[1]
    directory.mkdir()
    git("archive", "--format=tar", f"--output={directory}/old.tar", revision, "ottla")
    subprocess.run(["tar", "-xf", "old.tar"], cwd=directory, check=True, timeout=60)
    command = ("env", f"PYTHONPATH={directory}", sys.executable, "-P")
    where = subprocess.run(
        [*command, "-c", "import ottla; print(ottla.__file__)"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert where.startswith(str(directory)), where
    return (*command, "-m", "ottla")


class Load(threading.Thread):
    """A producer as it comes, at a steady rate, and a group member that reads along."""

    def __init__(self, bootstrap: str, **settings: object) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self.acknowledged: list[tuple[int, int]] = []  # partition, number
        self.refused: list[KafkaError] = []
        self.read: Counter[tuple[int, int]] = Counter()
        self.read_errors: list[KafkaError] = []
        self.ended = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **settings})
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "along", "auto.offset.reset": "earliest", "log_level": 0}
        )
        self._consumer.subscribe([TOPIC])

    def run(self) -> None:
        began = time.monotonic()
        while not self.ended.is_set():
            while self.sent < (time.monotonic() - began) * RATE:
                self._producer.produce(
                    TOPIC, b"%d" % self.sent, partition=self.sent % PARTITIONS, on_delivery=self._delivered
                )
                self.sent += 1
            self._producer.poll(0)
            self._poll(0.005)

    def _delivered(self, error, message) -> None:
        if error is None:
            self.acknowledged.append((message.partition(), int(message.value())))
        else:
            self.refused.append(error)

    def _poll(self, seconds: float) -> None:
        message = self._consumer.poll(seconds)
        if message is None:
            return
        if message.error() is None:
            self.read[message.partition(), int(message.value())] += 1
        else:
            self.read_errors.append(message.error())

    def finish(self) -> None:
        self.ended.set()
        self.join(30)
        assert self._producer.flush(60) == 0, "a record is still unanswered"
        deadline = time.monotonic() + 60
        while len(self.read) < self.sent and time.monotonic() < deadline:
            self._poll(0.1)
        self._consumer.close()


def in_sync(admin: AdminClient) -> bool:
    partitions = admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions.values()
    return len(partitions) == PARTITIONS and all(len(partition.isrs) == 3 for partition in partitions)


@pytest.fixture(params=["embedded", "zookeeper"])
def store(request, tmp_path):
    if request.param == "embedded":
        yield f"embedded:{tmp_path}/store.db"
        return
    started = ensemble(tmp_path / "zookeeper")
    yield f"zookeeper:{started.connect}/ottla"
    started.stop()


def test_a_rolling_upgrade_causes_no_client_error(tmp_path, store):
    old = previous_version(tmp_path / "old")
    chosen = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    brokers = [
        WatchedBroker(tmp_path / f"broker-{number}", "--id", str(number), "--store", store, *chosen, program=old)
        for number in (1, 2, 3)
    ]
    loads: list[Load] = []
    try:
        for broker in brokers:
            broker.start()
        bootstrap = ",".join(broker.bootstrap for broker in brokers)
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)
        wait_for(lambda: in_sync(admin), "all replicas in sync")
        load = Load(bootstrap)
        loads.append(load)
        load.start()
        wait_for(lambda: len(load.read) > RATE, "the load to run", 30)
        for broker in brokers:
            assert broker.stop() == 0
            broker.program = (sys.executable, "-m", "ottla")
            broker.start()
            wait_for(lambda: in_sync(admin), "all replicas in sync again", 60)
            enough = len(load.acknowledged) + RATE
            wait_for(lambda: len(load.acknowledged) > enough, "the load to go on", 30)  # noqa: B023 (at once)
        load.finish()
    finally:
        for load in loads:
            load.ended.set()
        for broker in brokers:
            broker.close()
    assert load.refused == [], "no error reaches the producer"
    assert load.read_errors == [], "no error reaches the consumer"
    assert len(load.acknowledged) == load.sent
    lost = set(load.acknowledged) - set(load.read)
    assert not lost, f"{len(lost)} of {load.sent} acknowledged records were not read"
