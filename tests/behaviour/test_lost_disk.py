"""Copies that are lost or damaged, and recreated from those that are not."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.cli.main import cli
from ottla.local.cluster import LocalCluster
from ottla.local.waiting import wait_for
from tests.conftest import EXTERNAL

pytestmark = pytest.mark.skipif(bool(EXTERNAL), reason="needs broker processes of its own")

TOPIC = "kept"


class Kept:
    """A topic of three partitions on three brokers, with records in it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        everybody = cluster.bootstrap_all
        self.settings = {"bootstrap.servers": everybody, "log_level": 0, "reconnect.backoff.max.ms": 500}
        self.admin = AdminClient(self.settings)
        self.admin.create_topics([NewTopic(TOPIC, 3, 3)])[TOPIC].result(30)
        self.written: set[bytes] = set()
        self.producer = Producer({**self.settings, "enable.idempotence": True})
        self.write()

    def write(self) -> None:
        for _ in range(90):
            value = b"%d" % len(self.written)
            self.written.add(value)
            self.producer.produce(TOPIC, value * 100, partition=len(self.written) % 3)
        assert self.producer.flush(30) == 0

    def await_in_sync(self) -> None:
        def in_sync() -> bool:
            partitions = self.admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions.values()
            return all(len(partition.isrs) == 3 for partition in partitions)

        wait_for(in_sync, "all replicas in sync", 30)

    def read(self) -> set[bytes]:
        consumer = Consumer({**self.settings, "group.id": "unused"})
        consumer.assign([TopicPartition(TOPIC, index, OFFSET_BEGINNING) for index in range(3)])
        values: list[bytes] = []
        deadline = time.monotonic() + 30
        while len(values) < len(self.written) and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                values.append(message.value())
        consumer.close()
        assert len(values) == len(set(values)), "nothing is doubled"
        return {value[: len(value) // 100] for value in values}


@pytest.fixture
def kept(tmp_path):
    with LocalCluster(tmp_path, 3) as cluster:
        cluster.start()
        yield Kept(cluster)


def logs(data: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in sorted(data.glob(f"{TOPIC}-*/*.log"))}


def test_brokers_that_lose_their_disks_one_by_one_copy_all_records_from_the_others(kept):
    for broker in kept.cluster.brokers.values():
        kept.await_in_sync()
        broker.kill()
        shutil.rmtree(broker.data)
        kept.write()
        broker.start()
    kept.await_in_sync()
    assert kept.read() == kept.written
    copies = [logs(broker.data) for broker in kept.cluster.brokers.values()]
    assert copies[0] == copies[1] == copies[2], "byte for byte"


def test_a_damaged_copy_is_found_and_replaced_as_the_advice_says(kept):
    kept.await_in_sync()
    broker = kept.cluster[2]
    broker.stop()
    (log,) = (broker.data / f"{TOPIC}-1").glob("*.log")
    content = bytearray(log.read_bytes())
    content[100] ^= 1
    log.write_bytes(content)
    found = CliRunner().invoke(cli, ["log", "verify", str(broker.data)])
    assert found.exit_code == 1
    assert f"{log}, byte 0, offset 0: the checksum of a batch is wrong" in found.output
    kept.write()

    assert "leave the files as they are" in found.output
    assert "ottla.scrub.interval.ms" in found.output
    expedite = ["configs", "set", "broker", "all", "ottla.scrub.interval.ms=3000", "-b", kept.cluster[1].bootstrap]
    assert CliRunner().invoke(cli, expedite).exit_code == 0
    broker.start()
    wait_for(lambda: logs(broker.data) == logs(kept.cluster[1].data), "the damaged batch to be copied again", 60)
    kept.await_in_sync()
    assert CliRunner().invoke(cli, ["log", "verify", str(broker.data)]).exit_code == 0
    assert kept.read() == kept.written
