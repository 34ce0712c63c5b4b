"""What was committed and a last leader does not know any more: older copies, cut logs, empty disks."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition

from ottla.cli.main import cli
from ottla.local.cluster import LocalCluster
from ottla.local.processes import BrokerProcess
from ottla.local.waiting import wait_for
from ottla.log.manifest import FILE_NAME
from ottla.wire.batch import batches
from tests.behaviour import test_damaged_files
from tests.behaviour.test_damaged_files import COUNT, TOPIC, Kept, logs, remove, starts
from tests.conftest import EXTERNAL

pytestmark = pytest.mark.skipif(bool(EXTERNAL), reason="needs broker processes of its own")

store = test_damaged_files.store


def cut_batches(path: Path, count: int) -> None:
    """Take the last batches from a segment."""
    data = path.read_bytes()
    position, _ = list(batches(data))[-count]
    path.write_bytes(data[:position])


def test_committed_records_lost_by_a_killed_last_leader_are_copied_from_the_others(tmp_path):
    """As after a power cut: the high-watermark checkpoint is all that tells of it."""
    settings = {"replica.high.watermark.checkpoint.interval.ms": "200"}
    with LocalCluster(tmp_path / "brokers", 3, settings=settings) as cluster:
        cluster.start()
        kept = Kept(cluster, 3)
        kept.write(5)
        kept.await_in_sync()
        checkpoint = cluster[3].data / "replication-offset-checkpoint"
        written = lambda: checkpoint.exists() and f"{TOPIC} 0 5\n" in checkpoint.read_text()  # noqa: E731
        wait_for(written, "the checkpoint of high watermarks", 30)
        for number in (1, 2):
            cluster[number].stop()
        cluster[3].kill()
        cut_batches(logs(cluster[3].data)[-1], 2)
        for number in (3, 1, 2):
            cluster[number].start()
        kept.await_in_sync()
        assert kept.read(0, 5)[0] == kept.written
        assert "offsets 3..4 are missing" in cluster[3].log.read_text()


def older_copy(broker: BrokerProcess, copy: Path) -> None:
    shutil.copytree(broker.data, copy)


def put_back_the_partition(data: Path, copy: Path) -> None:
    shutil.rmtree(data / f"{TOPIC}-0")
    shutil.copytree(copy / f"{TOPIC}-0", data / f"{TOPIC}-0")


def put_back_everything(data: Path, copy: Path) -> None:
    shutil.rmtree(data)
    shutil.copytree(copy, data)


@pytest.mark.long
@pytest.mark.parametrize("put_back", [put_back_the_partition, put_back_everything])
def test_restored_older_files_of_the_last_leader_replace_no_newer_records(tmp_path, store, put_back):
    with LocalCluster(tmp_path / "brokers", 3, ensemble=store) as cluster:
        cluster.start()
        kept = Kept(cluster, 3)
        kept.write(20)
        kept.await_in_sync()
        cluster[3].stop()
        older_copy(cluster[3], tmp_path / "older")
        cluster[3].start()
        kept.write(20)
        kept.await_in_sync()
        for number in (1, 2, 3):
            cluster[number].stop()
        put_back(cluster[3].data, tmp_path / "older")
        for number in (3, 1, 2):
            cluster[number].start()
        kept.await_in_sync()
        assert kept.read(0, 40)[0] == kept.written
        assert kept.write(1) == 40


@pytest.mark.long
def test_restored_older_files_of_a_single_replica_are_reported(tmp_path):
    with LocalCluster(tmp_path / "brokers", 1) as cluster:
        cluster.start()
        kept = Kept(cluster, 1)
        kept.write(5)
        cluster[1].stop()
        older_copy(cluster[1], tmp_path / "older")
        cluster[1].start()
        kept.write(5)
        cluster[1].stop()
        put_back_the_partition(cluster[1].data, tmp_path / "older")
        cluster[1].start()
        assert kept.rewrite() == 10
        assert kept.read(0, 5)[0] == kept.written[:5]
        assert kept.read(5, 0) == ([], True)
        assert "offsets 5..9 are missing" in cluster[1].log.read_text()


@pytest.mark.long
@pytest.mark.parametrize("order", [(3, 1, 2), (1, 2, 3)], ids=["first", "last"])
def test_a_last_leader_with_an_empty_disk_does_not_delete_records_of_its_followers(tmp_path, store, order):
    with LocalCluster(tmp_path / "brokers", 3, ensemble=store) as cluster:
        cluster.start()
        kept = Kept(cluster, 3)
        kept.write()
        kept.await_in_sync()
        kept.admin.delete_records([TopicPartition(TOPIC, 0, 20)])[TopicPartition(TOPIC, 0)].result(30)
        for number in (1, 2, 3):
            cluster[number].stop()
        shutil.rmtree(cluster[3].data)
        for number in order:
            wait_for(partial(starts, cluster[number]), f"the session of broker {number} before to end", 60)
        kept.await_in_sync()
        assert kept.read(20, COUNT - 20)[0] == kept.written[20:]
        assert kept.write(1) == COUNT


@pytest.mark.long
def test_a_lost_log_is_restored_from_the_others_and_only_the_rest_is_missing(tmp_path):
    """Also after the loss is accepted; then it is not reported any more."""
    with LocalCluster(tmp_path / "brokers", 3) as cluster:
        cluster.start()
        kept = Kept(cluster, 3)
        kept.write(20)
        kept.await_in_sync()
        for number in (1, 2):
            cluster[number].stop()
        kept.write(5)  # which only the last one has
        cluster[3].stop()
        shutil.rmtree(cluster[3].data / f"{TOPIC}-0")
        for number in (3, 1, 2):
            cluster[number].start()
        kept.await_in_sync()
        assert kept.read(0, 20)[0] == kept.written[:20]
        assert kept.read(20, 0) == ([], True)
        assert kept.rewrite() == 25
        leader = kept.admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions[0].leader
        assert leader != 3
        for number in (1, 2, 3):
            cluster[number].stop()
        for number in (1, 2, 3):
            accepted = CliRunner().invoke(cli, ["log", "accept-loss", str(cluster[number].data), f"{TOPIC}-0"])
            assert "offsets 20..24 are given up" in accepted.output
        for number in (1, 2, 3):
            cluster[number].start()
        kept.await_in_sync()
        assert kept.read(0, 21)[0] == [*kept.written[:20], kept.written[25]]


@pytest.mark.long
def test_a_lost_first_segment_and_manifest_do_not_raise_the_log_start_of_the_others(tmp_path):
    with LocalCluster(tmp_path / "brokers", 3) as cluster:
        cluster.start()
        kept = Kept(cluster, 3)
        kept.write()
        kept.await_in_sync()
        for number in (1, 2, 3):
            cluster[number].stop()
        data = cluster[3].data
        remove(logs(data)[0], data / f"{TOPIC}-0" / FILE_NAME, data / ".kafka_cleanshutdown")
        for number in (3, 1, 2):
            cluster[number].start()
        kept.await_in_sync()
        assert kept.read(0, COUNT)[0] == kept.written
