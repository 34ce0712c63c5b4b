"""Where a log begins: what is guessed is never taken for proven, and what tells of an earlier beginning is believed."""

from __future__ import annotations

from random import Random

import pytest

from ottla.log.epochs import FILE_NAME as EPOCHS
from ottla.log.log_config import LogConfig
from ottla.log.manifest import FILE_NAME, read
from ottla.log.partition_log import PartitionLog
from ottla.log.retention import retain
from ottla.log.verify import verify_partition
from ottla.sim.disk import SimDisk
from tests.log.batches import NOW, PATH, append, fill

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=0)
INDEXES = (".index", ".timeindex")


def opened(disk: SimDisk, **options) -> PartitionLog:
    return PartitionLog.open(disk, PATH, CONFIG, topic_id=bytes(range(16)), now_ms=NOW, **options)


def young(*, synced: bool) -> tuple[SimDisk, int]:
    """A log that was killed in its first seconds. Its second segment begins at the offset."""
    disk = SimDisk(Random(5))
    log = opened(disk)
    fill(log, 12)
    if synced:
        log.sync()
    return disk, log.segments[1].base_offset


def lose_first(disk: SimDisk, *endings: str) -> None:
    for ending in (".log", *endings):
        disk.remove(f"{PATH}/{0:020d}{ending}")
    disk.remove(f"{PATH}/{FILE_NAME}")


@pytest.mark.parametrize("told_by", ["epochs", "indexes"])
def test_a_first_segment_that_is_lost_with_the_manifest_is_damage_if_anything_tells_of_it(told_by):
    disk, second = young(synced=told_by == "epochs")
    lose_first(disk, *(INDEXES if told_by == "epochs" else ()))
    assert disk.exists(f"{PATH}/{EPOCHS}") == (told_by == "epochs")
    found = verify_partition(disk, PATH, finished=False).findings
    assert any(finding.records and finding.offset == 0 for finding in found)
    log = opened(disk)
    assert log.damage is not None
    assert log.damage.missing == ((0, second),)
    assert log.log_start == 0
    again = opened(disk)
    assert again.damage is not None
    assert again.damage.missing == ((0, second),)


def test_a_guessed_log_start_is_proven_to_nobody():
    """Nothing tells of the first segment: the log starts behind it, and no follower deletes what it has."""
    disk, second = young(synced=False)
    lose_first(disk, *INDEXES)
    log = opened(disk)
    for _ in range(2):
        assert log.damage is None
        assert log.log_start == second
        assert log.proven_start == 0
        append(log)
        log.close()
        log = opened(disk, clean=True)
    append(log)
    log.sync()
    assert log.proven_start == 0
    third = log.segments[1].base_offset
    log.raise_log_start(third)
    retain(log, NOW, log.log_end)
    assert log.proven_start == third


@pytest.mark.parametrize("lost", [(), (EPOCHS,)])
def test_a_log_start_that_is_proven_elsewhere_is_proven_without_a_manifest(lost):
    disk = SimDisk(Random(5))
    log = opened(disk)
    fill(log, 12)
    log.raise_log_start(log.segments[2].base_offset)
    for segment in retain(log, NOW, log.log_end):
        segment.unlink()
    log.sync()
    for name in (FILE_NAME, *lost):
        disk.remove(f"{PATH}/{name}")
    told = {"started": log.log_start, "log_start": log.log_start} if lost else {}
    again = opened(disk, **told)
    assert again.damage is None
    assert again.proven_start == again.log_start == log.log_start
    written = read(disk, PATH)
    assert written is not None
    assert written.proven_start == log.log_start


def test_segments_that_were_about_to_be_deleted_are_not_missed():
    """By a release that writes no manifest; its epochs are written later."""
    disk = SimDisk(Random(5))
    log = opened(disk)
    fill(log, 12)
    log.sync()
    log.raise_log_start(log.segments[2].base_offset)
    retain(log, NOW, log.log_end)
    disk.remove(f"{PATH}/{FILE_NAME}")
    again = opened(disk)
    assert again.damage is None
    assert again.log_start == log.log_start
