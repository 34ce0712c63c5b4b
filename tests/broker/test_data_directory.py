"""Damaged `meta.properties`: rebuilt where the partitions prove whose directory it is, refused where a wrong disk may
be mounted."""

from __future__ import annotations

from random import Random

import pytest

from ottla.broker.data_directory import check_owner
from ottla.cluster.image import Image
from ottla.cluster.model import PartitionState, TopicImage
from ottla.config.broker_config import BrokerConfig
from ottla.config.load import load_broker_config
from ottla.errors import Fault
from ottla.log import checkpoints
from ottla.sim.disk import SimDisk

DATA = "data"
PATH = f"{DATA}/{checkpoints.META_PROPERTIES}"
GARBAGE = [
    b"\xff\xfe\x00", b"no setting at all", b"=", b"a=b\n", b"version=0\nbroker.id=1\n", b"version=0\ncluster.id=c\n",
]  # fmt: skip
OWNER = {"version": "0", "broker.id": "1", "cluster.id": "cluster"}


def topic_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def image(*replicas: tuple[int, ...]) -> Image:
    """Topics `t0`, `t1` and so on, of one partition each."""
    topics = {
        f"t{at}": TopicImage(
            f"t{at}", topic_id(at), (PartitionState(on, in_sync=on, in_sync_epochs=tuple(10 + b for b in on)),), {}
        )
        for at, on in enumerate(replicas)
    }
    return Image(cluster_id="cluster", topics=topics)


@pytest.fixture
def disk():
    made = SimDisk(Random(5))
    made.mkdir(DATA)
    return made


@pytest.fixture
def config():
    return load_broker_config(environment={}, flags={"log.dirs": DATA, "broker.id": "1"})


def hold(disk: SimDisk, *topics: int) -> None:
    for number in topics:
        disk.mkdir(f"{DATA}/t{number}-0")
        checkpoints.write_partition_metadata(disk, f"{DATA}/t{number}-0", topic_id(number))


def start(disk: SimDisk, config: BrokerConfig, known: Image) -> None:
    check_owner(disk, config, None)
    check_owner(disk, config, known)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_meta_properties_are_rebuilt_where_no_other_broker_has_these_partitions(disk, config, garbage, caplog):
    hold(disk, 0, 1)
    disk.write_atomic(PATH, garbage)
    start(disk, config, image((1, 2), (3, 1)))
    assert checkpoints.read_meta_properties(disk, DATA) == OWNER
    assert disk.read(f"{PATH}.damaged") == garbage
    (line,) = caplog.messages
    assert "is damaged" in line
    assert "rebuilt" in line


def test_meta_properties_are_rebuilt_where_the_clean_shutdown_file_names_the_registration(disk, config):
    hold(disk, 0)
    disk.write_atomic(PATH, GARBAGE[0])
    checkpoints.write_clean_shutdown(disk, DATA, checkpoints.CleanShutdown(11, 11))
    start(disk, config, image((1, 2)))
    assert checkpoints.read_meta_properties(disk, DATA) == OWNER


def test_meta_properties_are_rebuilt_in_an_otherwise_empty_directory(disk, config):
    disk.write_atomic(PATH, GARBAGE[0])
    start(disk, config, image((1, 2)))
    assert checkpoints.read_meta_properties(disk, DATA) == OWNER


@pytest.mark.parametrize(
    ("held", "replicas", "why"),
    [
        ([0], [(1, 2)], "broker 2 has replicas of the same partitions"),
        ([0, 1], [(1,), (2, 3)], "t1-0 has no replica on broker 1"),
        ([0, 1], [(1,)], "t1-0 is no partition of this cluster"),
    ],
    ids=["the disk of a broker with the same partitions", "another broker's", "another cluster's"],
)
def test_a_data_directory_of_perhaps_another_broker_is_refused_and_not_changed(disk, config, held, replicas, why):
    hold(disk, *held)
    disk.write_atomic(PATH, GARBAGE[0])
    checkpoints.write_clean_shutdown(disk, DATA, checkpoints.CleanShutdown(12, 12))
    with pytest.raises(Fault, match="right disk is mounted") as refused:
        start(disk, config, image(*replicas))
    assert why in str(refused.value)
    assert "version=0, broker.id=1, cluster.id=cluster" in str(refused.value)
    assert disk.read(PATH) == GARBAGE[0]


def test_meta_properties_of_another_broker_are_refused(disk, config):
    checkpoints.write_meta_properties(disk, DATA, {**OWNER, "broker.id": "2"})
    with pytest.raises(Fault, match="belongs to broker 2"):
        check_owner(disk, config, None)
    checkpoints.write_meta_properties(disk, DATA, {**OWNER, "cluster.id": "other"})
    with pytest.raises(Fault, match="belongs to cluster other"):
        start(disk, config, image())
