"""The replicas of one broker: hosted and dropped as in the image, also if the disk refuses."""

from __future__ import annotations

import asyncio
import tracemalloc
from random import Random

import pytest

from ottla.cluster.image import Image, Tombstone, TopicImage
from ottla.cluster.layout import id_text
from ottla.cluster.model import PartitionState as State
from ottla.config.load import load_broker_config
from ottla.config.topic_config import resolve
from ottla.errors import ErrorCode, Refused, StorageFault
from ottla.log import manifest
from ottla.log.checkpoints import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    CleanShutdown,
    ClosedLog,
    read_offsets,
)
from ottla.log.manifest import FILE_NAME
from ottla.replication.partition import ACKS_ALL
from ottla.replication.replicas import CHECKPOINTS, Replicas
from ottla.runtime.disk import RealDisk
from ottla.runtime.real import RealRuntime
from ottla.sim.disk import UNLIMITED, SimDisk
from tests.replication.test_partition import NOW_MS, batch

EPOCH = 5
DATA = "data"


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(Random(7))


@pytest.fixture
def replicas(disk: SimDisk) -> Replicas:
    return start(disk)


def start(disk, *topics, data=DATA, clean=False, logs=None, tombstones=()):
    image = Image(
        topics={each.name: each for each in topics},
        names={each.id: each.name for each in topics},
        tombstones={each: Tombstone("gone", ()) for each in tombstones},
    )
    return asyncio.run(loaded(disk, image, CleanShutdown(1, 1, logs) if clean else None, data=data))


async def loaded(disk, image: Image, mark: CleanShutdown | None = None, *, data: str = DATA) -> Replicas:
    config = load_broker_config(flags={"log.dirs": data})
    made = Replicas(RealRuntime(disk=disk), data, 1, lambda topic: resolve(topic.configs, config), 1000)
    made.registered(EPOCH)
    await made.load(image, mark)
    return made


def recreated(of: TopicImage) -> TopicImage:
    return of._replace(id=b"another".ljust(16, b"\0"))


def write_and_delete_ten(replicas: Replicas) -> None:
    """And so the checkpoints tell of all that is ever told in them."""
    partition = replicas.get("orders", 0)
    assert partition is not None
    for _ in range(10):
        partition.append(batch(b"old"), ACKS_ALL, NOW_MS)
    partition.log.sync()
    partition.log.raise_log_start(10)
    replicas.write_checkpoints()


def topic(name: str = "orders", partitions: int = 2) -> TopicImage:
    state = State(
        replicas=(1,), leader=1, leader_epoch=0, in_sync=(1,), in_sync_epochs=(EPOCH,), partition_epoch=0,
        broker_epoch=EPOCH,
    )  # fmt: skip
    return TopicImage(name, name.encode()[:16].ljust(16, b"\0"), (state,) * partitions, {})


def test_a_topic_is_deleted_although_the_disk_is_full(replicas, disk):
    replicas.host(topic())
    for index in range(2):
        replicas.get("orders", index).append(batch(b"a"), ACKS_ALL, NOW_MS)
    disk.capacity_bytes = disk.used()
    directories = replicas.drop(topic())
    assert len(directories) == 2
    assert not any(name.startswith("orders-0") and not name.endswith("-delete") for name in disk.listdir(DATA))
    for directory in directories:
        disk.rmtree(directory)
    assert disk.used() == 0


def test_a_partition_on_a_broken_disk_can_be_removed(replicas, disk):
    replicas.host(topic())
    replicas.get("orders", 0).append(batch(b"a"), ACKS_ALL, NOW_MS)
    disk.broken = True
    assert replicas.drop(topic()) == []
    assert not list(replicas)


def test_a_checkpoint_that_could_not_be_written_is_written_the_next_time(replicas, disk):
    replicas.host(topic())
    replicas.get("orders", 0).append(batch(b"a"), ACKS_ALL, NOW_MS)
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
    partition = replicas.get("orders", 0)
    partition.append(batch(b"a"), ACKS_ALL, NOW_MS)
    older = replicas.checkpoint(HIGH_WATERMARKS)
    partition.append(batch(b"b"), ACKS_ALL, NOW_MS)
    newer = replicas.checkpoint(HIGH_WATERMARKS)
    newer()
    older()  # its thread was slower
    assert read_offsets(disk, DATA, HIGH_WATERMARKS) == {("orders", 0): 2}


def test_a_topic_that_takes_the_name_of_one_that_could_not_be_removed_has_nothing_of_it(replicas, disk):
    replicas.host(topic())
    replicas.get("orders", 0).append(batch(b"a"), ACKS_ALL, NOW_MS)
    disk.broken = True
    replicas.drop(topic())
    disk.broken = False
    replicas.host(recreated(topic()))
    assert replicas.get("orders", 0).log.log_end == 0
    assert any(name.endswith("-delete") for name in disk.listdir(DATA))


def test_a_topic_that_takes_the_name_of_a_deleted_one_keeps_its_records_when_the_process_is_killed(replicas, disk):
    replicas.host(topic())
    write_and_delete_ten(replicas)
    for directory in replicas.drop(topic()):
        disk.rmtree(directory)
    replicas.host(recreated(topic()))
    for _ in range(3):
        replicas.get("orders", 0).append(batch(b"new"), ACKS_ALL, NOW_MS)
    disk.process_died()
    log = start(disk, recreated(topic())).get("orders", 0).log
    assert (log.log_start, log.log_end) == (0, 3)


def test_a_checkpoint_written_during_the_deletion_of_a_topic_has_no_entry_for_the_recreated_topic(replicas, disk):
    replicas.host(topic())
    replicas.get("orders", 0).append(batch(b"old"), ACKS_ALL, NOW_MS)
    late = replicas.checkpoint(HIGH_WATERMARKS)
    replicas.drop(topic())
    replicas.host(recreated(topic()))
    replicas.get("orders", 0).append(batch(b"new"), 0, NOW_MS)
    late()  # its thread was slow
    assert read_offsets(disk, DATA, HIGH_WATERMARKS) == {}


def test_a_topic_that_takes_the_name_of_a_deleted_one_takes_no_record_before_checkpoints_are_written(replicas, disk):
    replicas.host(topic())
    write_and_delete_ten(replicas)
    replicas.drop(topic())
    replicas.host(recreated(topic()))
    disk.capacity_bytes = disk.used()
    with pytest.raises(Refused):
        replicas.get("orders", 0).append(batch(b"new"), ACKS_ALL, NOW_MS)
    disk.capacity_bytes = UNLIMITED
    replicas.get("orders", 0).append(batch(b"new"), ACKS_ALL, NOW_MS)
    assert all(read_offsets(disk, DATA, name) == {} for name in CHECKPOINTS)


@pytest.mark.parametrize("tombstones", [(), (topic().id,)], ids=["renamed", "removed"])
def test_a_topic_that_takes_the_name_of_one_deleted_while_the_broker_was_away_begins_at_0(replicas, disk, tombstones):
    replicas.host(topic())
    write_and_delete_ten(replicas)
    replicas.close()
    disk.process_died()
    away = start(disk, clean=True, tombstones=tombstones)
    away.host(recreated(topic()))
    away.get("orders", 0).append(batch(b"new"), ACKS_ALL, NOW_MS)
    disk.process_died()
    log = start(disk, recreated(topic())).get("orders", 0).log
    assert (log.log_start, log.log_end) == (0, 1)


def test_checkpoints_written_before_all_logs_are_open_keep_the_entries_of_the_others(replicas, disk):
    gone, stays = topic("gone"), topic()
    replicas.host(gone)
    replicas.get("gone", 0).append(batch(b"a"), ACKS_ALL, NOW_MS)
    replicas.host(stays)
    write_and_delete_ten(replicas)
    disk.process_died()
    start(disk, stays, tombstones=(gone.id,))
    assert all(read_offsets(disk, DATA, name).keys() <= {("orders", 0)} for name in CHECKPOINTS)
    assert read_offsets(disk, DATA, HIGH_WATERMARKS) == {("orders", 0): 10}


def test_a_checkpoint_is_written_again_if_its_content_changed_during_a_write(replicas, disk):
    replicas.host(topic())
    partition = replicas.get("orders", 0)
    for _ in range(2):
        partition.append(batch(b"a"), ACKS_ALL, NOW_MS)
        partition.log.sync()
        late = replicas.checkpoint(RECOVERY_POINTS)
        if partition.log.log_end == 1:
            late()
    partition.log.truncate_to(1, NOW_MS)
    replicas.checkpoint(RECOVERY_POINTS)()
    late()
    assert read_offsets(disk, DATA, RECOVERY_POINTS) == {("orders", 0): 1}


@pytest.mark.parametrize("clean", [False, True])
def test_many_logs_are_opened_with_few_descriptors(tmp_path, clean):
    many = topic(partitions=60)
    replicas = start(RealDisk(), many, data=str(tmp_path))
    for partition in replicas:
        for _ in range(3):
            partition.append(batch(b"a"), ACKS_ALL, NOW_MS)
            partition.log.roll(NOW_MS)
    assert replicas.close()
    disk = Counting()
    start(disk, many, data=str(tmp_path), clean=clean)
    assert disk.most < 10


class Counting(RealDisk):
    """Knows how many descriptors it has had open at once."""

    most = 0

    def opened(self, file):
        super().opened(file)
        self.most = max(self.most, len(self._open))


def test_temporary_checkpoint_files_of_a_killed_broker_are_removed_at_the_next_start(replicas, disk):
    replicas.host(topic())
    write_and_delete_ten(replicas)
    left = [f"{DATA}/{HIGH_WATERMARKS}.7.tmp", f"{DATA}/meta.properties.tmp"]
    for path in left:
        disk.open(path, create=True).append(b"half")
    disk.process_died()
    start(disk, topic())
    assert not any(disk.exists(path) for path in left)
    assert disk.exists(f"{DATA}/{HIGH_WATERMARKS}")


@pytest.mark.parametrize("make", [lambda: SimDisk(Random(7)), RealDisk], ids=["simulated", "real"])
def test_a_partition_dropped_repeatedly_is_renamed_each_time(tmp_path, make):
    disk, data = make(), str(tmp_path)
    here = topic(partitions=1)
    gone = here._replace(partitions=tuple(state._replace(replicas=(2,)) for state in here.partitions))
    for times in (1, 2, 3):
        replicas = start(disk, here, data=data)
        replicas.get("orders", 0).append(batch(b"a"), ACKS_ALL, NOW_MS)
        replicas.close()
        start(disk, gone, data=data)
        assert len([name for name in disk.listdir(data) if name.endswith("-stray")]) == times


def test_partitions_of_a_topic_with_a_long_name_are_all_renamed(tmp_path):
    long = topic("n" * 240)
    replicas = start(RealDisk(), long, data=str(tmp_path))
    for partition in replicas:
        partition.append(batch(b"a"), ACKS_ALL, NOW_MS)
    replicas.close()
    start(RealDisk(), data=str(tmp_path))
    assert len([path for path in tmp_path.iterdir() if path.name.endswith("-stray")]) == 2


def test_a_partition_can_move_away_again_while_its_old_files_are_removed(replicas, disk):
    for times in (1, 2):
        replicas.host(topic(partitions=1))
        replicas.get("orders", 0).append(batch(b"a"), ACKS_ALL, NOW_MS)
        assert len(replicas.drop_partition(topic(), 0)) == 1
        assert len([name for name in disk.listdir(DATA) if name.endswith("-delete")]) == times


def test_renaming_a_partition_directory_is_little_work(replicas):
    """All partitions of a topic are dropped in one turn of the loop."""
    replicas.host(topic())
    replicas.get("orders", 0).append(batch(b"a"), ACKS_ALL, NOW_MS)
    tracemalloc.start()
    try:
        assert len(replicas.drop(topic())) == 1
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("at", [9, 25, -2], ids=["version", "topic id", "end of the topic id"])
def test_a_topic_id_that_was_damaged_is_restored_from_the_manifest(replicas, disk, at):
    replicas.host(topic())
    replicas.get("orders", 0).append(batch(b"a"), ACKS_ALL, NOW_MS)
    assert replicas.close()
    path = f"{DATA}/orders-0/partition.metadata"
    whole = disk.read(path)
    disk.flip_bit(path, at % len(whole))
    again = start(disk, topic(), clean=True).get("orders", 0)
    assert again is not None
    assert (again.log.log_end, again.log.damage) == (1, None)
    assert disk.read(path) == whole


@pytest.mark.parametrize("clean", [True, False])
def test_a_topic_id_that_was_lost_with_the_manifest_is_that_of_the_topic_that_has_the_name(replicas, disk, clean):
    replicas.host(topic())
    replicas.get("orders", 0).append(batch(b"a"), ACKS_ALL, NOW_MS)
    assert replicas.close()
    path = f"{DATA}/orders-0/partition.metadata"
    whole = disk.read(path)
    disk.flip_bit(path, 9)
    disk.remove(f"{DATA}/orders-0/{manifest.FILE_NAME}")
    again = start(disk, topic(), clean=clean).get("orders", 0)
    assert again is not None
    assert again.log.log_end == 1
    assert disk.read(path) == whole


def test_a_topic_id_that_was_lost_may_be_that_of_a_deleted_topic_with_the_same_name(replicas, disk):
    replicas.host(topic())
    replicas.get("orders", 0).append(batch(b"a"), ACKS_ALL, NOW_MS)
    assert replicas.close()
    disk.flip_bit(f"{DATA}/orders-0/partition.metadata", 9)
    disk.remove(f"{DATA}/orders-0/{manifest.FILE_NAME}")
    now, gone = recreated(topic()), {topic().id: Tombstone("orders", (1,))}
    image = Image(topics={"orders": now}, names={now.id: "orders"}, tombstones=gone)
    again = asyncio.run(loaded(disk, image)).get("orders", 0)
    assert again is not None
    assert again.log.log_end == 0
    assert any(name.endswith("-stray") for name in disk.listdir(DATA)), "what was there is kept"


def lose(replicas: Replicas, disk: SimDisk) -> tuple[ClosedLog, ...]:
    """A record is written, and after a clean stop the partition is lost, and all that checkpoints tell of it."""
    replicas.host(topic())
    partition = replicas.get("orders", 0)
    assert partition is not None
    partition.append(batch(b"a"), ACKS_ALL, NOW_MS)
    assert replicas.close()
    disk.rmtree(f"{DATA}/orders-0")
    for name in CHECKPOINTS:
        disk.remove(f"{DATA}/{name}")
    return replicas.logs()


@pytest.mark.parametrize("beside", [None, "orders-0.older-stray", "orders-0"])
def test_a_partition_lost_with_all_checkpoints_is_damaged_and_continues_at_its_old_end(replicas, disk, beside):
    ends = lose(replicas, disk)
    if beside is not None:
        disk.mkdir(f"{DATA}/{beside}")
    again = start(disk, topic(), clean=True, logs=ends)
    assert again.damaged() == ((id_text(topic().id), 0),)
    log = again.get("orders", 0).log
    assert (log.log_end, log.damage.missing) == (1, ((0, 1),))
    assert again.close()
    assert start(disk, topic(), clean=True, logs=again.logs()).damaged() != ()


def test_a_file_with_the_name_of_a_partition_is_quarantined_without_evidence_of_its_log(replicas, disk):
    lose(replicas, disk)
    disk.write_atomic(f"{DATA}/orders-0", b"no directory")
    again = start(disk, topic())
    partition = again.get("orders", 0)
    assert partition is not None
    assert not again.unopened
    assert disk.read(f"{DATA}/orders-0.damaged") == b"no directory"
    partition.append(batch(b"a"), ACKS_ALL, NOW_MS)


def test_a_topic_that_takes_the_name_of_one_that_was_lost_is_not_damaged(replicas, disk):
    ends = lose(replicas, disk)
    again = start(disk, recreated(topic()), clean=True, logs=ends)
    assert again.damaged() == ()
    assert again.get("orders", 0).log.log_end == 0


def test_a_partition_that_was_never_written_to_is_not_damaged(replicas, disk):
    replicas.host(topic())
    assert replicas.close()
    assert replicas.logs() == ()
    assert start(disk, topic(), clean=True, logs=()).damaged() == ()


def written(replicas: Replicas, count: int):
    replicas.host(topic())
    partition = replicas.get("orders", 0)
    assert partition is not None
    for _ in range(count):
        partition.append(batch(b"a"), ACKS_ALL, NOW_MS)
    return partition


@pytest.mark.parametrize("checkpointed", [(), (RECOVERY_POINTS,), (HIGH_WATERMARKS,), CHECKPOINTS], ids=str)
def test_a_follower_that_is_cut_below_the_high_watermark_and_killed_is_not_damaged(replicas, disk, checkpointed):
    """Whichever checkpoints are written before the kill."""
    partition = written(replicas, 5)
    partition.log.sync()
    replicas.write_checkpoints()
    partition.follower.truncate(0, 2, NOW_MS)
    for name in checkpointed:
        if (write := replicas.checkpoint(name)) is not None:
            write()
    again = start(disk, topic())
    assert again.damaged() == ()
    assert again.get("orders", 0).log.log_end == 2


def test_lost_records_copied_after_a_truncation_are_detected(replicas, disk):
    partition = written(replicas, 5)
    replicas.write_checkpoints()
    partition.follower.truncate(0, 2, NOW_MS)
    replicas.write_checkpoints()
    for _ in range(2):
        partition.append(batch(b"b"), ACKS_ALL, NOW_MS)
    replicas.write_checkpoints()
    disk.remove(partition.log.active.log.path)
    again = start(disk, topic())
    assert again.get("orders", 0).log.damage.missing == ((0, 4),)


@pytest.mark.parametrize("lost", ["directory", "segment"])
def test_a_killed_broker_that_lost_what_was_committed_names_it(replicas, disk, lost):
    partition = written(replicas, 3)
    replicas.write_checkpoints()
    if lost == "directory":
        disk.rmtree(partition.log.path)
    else:
        disk.remove(partition.log.active.log.path)
    again = start(disk, topic())
    log = again.get("orders", 0).log
    assert (log.log_end, log.damage.missing) == (3, ((0, 3),))


def test_an_older_copy_of_a_partition_is_detected_after_a_clean_shutdown(replicas, disk):
    partition = written(replicas, 3)
    assert replicas.close()
    older = {name: disk.read(f"{partition.log.path}/{name}") for name in disk.listdir(partition.log.path)}
    replicas = start(disk, topic(), clean=True, logs=replicas.logs())
    written(replicas, 2)
    assert replicas.close()
    for name in disk.listdir(partition.log.path):
        disk.remove(f"{partition.log.path}/{name}")
    for name, data in older.items():
        disk.write_atomic(f"{partition.log.path}/{name}", data)
    for name in CHECKPOINTS:
        disk.remove(f"{DATA}/{name}")
    log = start(disk, topic(), clean=True, logs=replicas.logs()).get("orders", 0).log
    assert (log.log_end, log.damage.missing) == (5, ((3, 5),))


def test_log_starts_are_checkpointed_for_all_logs_with_records(replicas, disk):
    """So a first segment that is lost together with its manifest is missed after a kill as well."""
    partition = written(replicas, 3)
    partition.log.roll(NOW_MS)
    partition.append(batch(b"b"), ACKS_ALL, NOW_MS)
    partition.log.sync()
    replicas.write_checkpoints()
    assert read_offsets(disk, DATA, LOG_STARTS) == {("orders", 0): 0}
    disk.remove(partition.log.segments[0].log.path)
    disk.remove(f"{partition.log.path}/{FILE_NAME}")
    log = start(disk, topic()).get("orders", 0).log
    assert (log.log_start, log.log_end, log.damage.missing) == (0, 4, ((0, 3),))
    assert log.proven_start == 0


def test_a_partition_that_cannot_be_opened_does_not_prevent_others_from_opening(replicas, disk, monkeypatch, caplog):
    written(replicas, 2)
    replicas.get("orders", 1).append(batch(b"a"), ACKS_ALL, NOW_MS)
    assert replicas.close()
    open_file = disk.open

    def failing(path, **options):
        if "/orders-0/" in path:
            raise Refused(ErrorCode.corrupt_message)
        return open_file(path, **options)

    with monkeypatch.context() as broken:
        broken.setattr(disk, "open", failing)
        again = start(disk, topic(), clean=True, logs=replicas.logs())
    assert again.get("orders", 0) is None
    assert again.get("orders", 1).log.log_end == 1
    assert again.damaged() == ((id_text(topic().id), 0),), "it does not count as in sync"
    assert "orders-0 cannot be opened" in caplog.text
    assert again.host_partition(topic(), 0).log.log_end == 2
    assert again.damaged() == ()
