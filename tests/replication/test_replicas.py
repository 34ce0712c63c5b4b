"""The replicas of one broker: made and dropped as the image says, whatever the disk says."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest

from ottla.cluster.image import Topic
from ottla.cluster.model import Partition as State
from ottla.config.load import load_broker_config
from ottla.config.topic import resolve
from ottla.errors import StorageFault
from ottla.log.checkpoints import HIGH_WATERMARKS, read_offsets
from ottla.replication.partition import ACKS_ALL
from ottla.replication.replicas import Replicas
from ottla.sim.disk import SimDisk
from tests.replication.test_partition import NOW_MS, batch

EPOCH = 5
DATA = "data"


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(Random(7))


@pytest.fixture
def replicas(disk: SimDisk) -> Replicas:
    config = load_broker_config(flags={"log.dirs": DATA})
    runtime = SimpleNamespace(disk=disk, wall_ms=lambda: NOW_MS)
    made = Replicas(runtime, DATA, 1, lambda topic: resolve(topic.configs, config), 1000)
    made.registered(EPOCH)
    return made


def topic(name: str = "orders", partitions: int = 2) -> Topic:
    state = State(
        replicas=(1,), leader=1, leader_epoch=0, in_sync=(1,), in_sync_epochs=(EPOCH,), partition_epoch=0,
        broker_epoch=EPOCH,
    )  # fmt: skip
    return Topic(name, name.encode().ljust(16, b"\0"), (state,) * partitions, {})


def test_a_topic_is_deleted_although_the_disk_is_full(replicas, disk):
    replicas.host(topic())
    for index in range(2):
        replicas.find("orders", index).append(batch(b"a"), ACKS_ALL, NOW_MS)
    disk.capacity_bytes = disk.used()
    directories = replicas.drop(topic())
    assert len(directories) == 2
    assert not any(name.startswith("orders-0") and not name.endswith("-delete") for name in disk.listdir(DATA))
    for directory in directories:
        disk.rmtree(directory)
    assert disk.used() == 0


def test_a_broken_disk_keeps_no_partition_from_being_forgotten(replicas, disk):
    replicas.host(topic())
    replicas.find("orders", 0).append(batch(b"a"), ACKS_ALL, NOW_MS)
    disk.broken = True
    assert replicas.drop(topic()) == []
    assert not list(replicas)


def test_a_checkpoint_that_could_not_be_written_is_written_the_next_time(replicas, disk):
    replicas.host(topic())
    replicas.find("orders", 0).append(batch(b"a"), ACKS_ALL, NOW_MS)
    write = replicas.checkpoint(HIGH_WATERMARKS)
    disk.broken = True
    with pytest.raises(StorageFault):
        write()
    disk.broken = False
    replicas.checkpoint(HIGH_WATERMARKS)()
    assert read_offsets(disk, DATA, HIGH_WATERMARKS) == {("orders", 0): 1}
    assert replicas.checkpoint(HIGH_WATERMARKS) is None


def test_of_two_checkpoints_that_are_written_at_once_the_newer_one_stays(replicas, disk):
    replicas.host(topic())
    partition = replicas.find("orders", 0)
    partition.append(batch(b"a"), ACKS_ALL, NOW_MS)
    older = replicas.checkpoint(HIGH_WATERMARKS)
    partition.append(batch(b"b"), ACKS_ALL, NOW_MS)
    newer = replicas.checkpoint(HIGH_WATERMARKS)
    newer()
    older()  # its thread was slower
    assert read_offsets(disk, DATA, HIGH_WATERMARKS) == {("orders", 0): 2}


def test_a_topic_that_takes_the_name_of_one_that_could_not_be_removed_has_nothing_of_it(replicas, disk):
    replicas.host(topic())
    replicas.find("orders", 0).append(batch(b"a"), ACKS_ALL, NOW_MS)
    disk.broken = True
    replicas.drop(topic())
    disk.broken = False
    replicas.host(topic()._replace(id=b"another".ljust(16, b"\0")))
    assert replicas.find("orders", 0).log.log_end == 0
    assert any(name.endswith("-delete") for name in disk.listdir(DATA))
