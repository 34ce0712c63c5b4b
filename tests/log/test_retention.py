"""Segments go when they are old, too many, or before the log start; never above the high watermark."""

from __future__ import annotations

import pytest

from ottla.errors import ErrorCode, Refused
from ottla.log.log_config import LogConfig
from ottla.log.manifest import FILE_NAME as MANIFEST
from ottla.log.partition_log import PartitionLog
from ottla.runtime.disk import RealDisk
from tests.log.batches import NOW, PATH, append, fill, stored

SMALL = {"segment_bytes": 250, "retention_ms": -1}


def bases(segments):
    return [segment.base_offset for segment in segments]


def aged(log, count=9, step_ms=1000):
    return [append(log, [b"value %d" % at], timestamp=NOW + at * step_ms) for at in range(count)]


def test_segments_whose_newest_record_is_too_old_are_dropped(open_log):
    log = open_log(segment_bytes=250, retention_ms=10_000)
    sent = aged(log)
    assert log.retain(NOW + 12_000, 9) == []
    assert bases(log.retain(NOW + 12_001, 9)) == [0]
    assert log.log_start == 3
    assert stored(log) == sent[3:]


def test_the_oldest_segments_go_while_the_rest_is_still_large_enough(open_log):
    log = open_log(retention_bytes=400, **SMALL)
    fill(log, 12)
    log.retain(NOW, 12)
    assert 400 <= log.size_bytes < 400 + 250


def test_nothing_at_or_above_the_high_watermark_is_dropped(open_log):
    log = open_log(retention_bytes=0, **SMALL)
    fill(log, 9)
    assert bases(log.retain(NOW, 5)) == [0]
    assert log.log_start == 3


def test_a_fully_expired_log_is_empty_and_keeps_its_end_offset(disk, open_log):
    log = open_log(segment_bytes=250, retention_ms=1000)
    fill(log, 5, producer_id=7, sequence=0)
    for segment in log.retain(NOW + 2000, 5):
        segment.unlink()
    assert (log.log_start, log.log_end, log.size_bytes) == (5, 5, 0)
    assert log.producers.get(7) is not None, "its producers are remembered"
    disk.crash()
    log = open_log(segment_bytes=250)
    assert log.log_end == 5, "and offsets are not used twice, whatever happens"
    append(log)
    assert log.log_end == 6


def test_an_empty_log_is_left_alone(open_log):
    log = open_log(retention_ms=0, retention_bytes=0)
    assert log.retain(NOW * 2, 0) == []


def test_records_without_time_count_from_when_the_log_first_saw_them(open_log):
    log = open_log(segment_bytes=250, retention_ms=1000)
    fill(log, 4, timestamp=-1)
    assert log.retain(NOW + 900, 4) == []
    assert log.retain(NOW + 1001, 4)


def test_a_log_that_is_not_to_be_deleted_from_keeps_its_age_and_size(open_log):
    log = open_log(segment_bytes=250, retention_ms=0, retention_bytes=0, cleanup_delete=False, cleanup_compact=True)
    fill(log, 9)
    assert log.retain(NOW * 2, 9) == []


def test_deleted_records_are_out_of_reach_at_once_and_off_the_disk_with_their_segment(disk, open_log):
    log = open_log(**SMALL)
    sent = fill(log, 9)
    log.config = LogConfig(cleanup_delete=False, segment_bytes=250)
    assert log.raise_log_start(4)
    assert not log.raise_log_start(2)
    assert stored(log) == sent[4:]
    dropped = log.retain(NOW, 9)
    assert bases(dropped) == [0]
    assert log.log_start == 4
    assert not [name for name in disk.listdir(PATH) if name.startswith(f"{0:020d}") and not name.endswith(".deleted")]
    for segment in dropped:
        segment.unlink()
    assert not [name for name in disk.listdir(PATH) if name.startswith(f"{0:020d}")]
    assert stored(open_log(log_start=4, **SMALL)) == sent[4:]


def test_records_behind_the_log_end_cannot_be_deleted(open_log):
    log = open_log()
    fill(log, 3)
    with pytest.raises(Refused) as refused:
        log.raise_log_start(4)
    assert refused.value.code == ErrorCode.offset_out_of_range


def test_the_log_start_carries_the_epoch_that_owns_it(open_log):
    log = open_log()
    for epoch in (1, 1, 2, 2):
        append(log, epoch=epoch)
    log.raise_log_start(3)
    assert log.epochs.entries == [(2, 3)]
    assert log.end_offset_for_epoch(1) == (1, 3)


def test_snapshots_go_with_their_segments(disk, open_log):
    log = open_log(retention_bytes=400, **SMALL)
    for sequence in range(12):
        append(log, producer_id=7, sequence=sequence)
    log.retain(NOW, 12)
    names = [name for name in disk.listdir(PATH) if name.endswith(".snapshot")]
    assert names == [f"{base:020d}.snapshot" for base in bases(log.segments)]


def test_leftovers_of_an_interrupted_retention_are_removed_at_the_next_start(disk, open_log):
    log = open_log(retention_bytes=400, **SMALL)
    fill(log, 12)
    assert log.retain(NOW, 12)
    log = open_log(**SMALL)
    assert [name for name in disk.listdir(PATH) if name.endswith(".deleted")] == [MANIFEST]
    assert log.log_end == 12


@pytest.mark.parametrize("act", ["retention", "roll"])
def test_a_dropped_log_does_not_change_a_new_log_of_the_same_name(tmp_path, act):
    disk, path = RealDisk(), str(tmp_path / "t-0")
    old = PartitionLog.open(disk, path, LogConfig(segment_bytes=250, retention_bytes=300), now_ms=NOW)
    fill(old, 9)
    old.dropped = True
    for segment in old.segments:
        segment.close()
    disk.rename(path, f"{path}-delete")
    log = PartitionLog.open(disk, path, LogConfig(), now_ms=NOW)
    sent = fill(log, 5)
    before = disk.listdir(path)
    if act == "retention":
        old.retain(NOW, 9)
    else:
        old.roll(NOW)
    assert disk.listdir(path) == before
    log.close()
    assert stored(PartitionLog.open(disk, path, LogConfig(), clean=True, now_ms=NOW)) == sent
