"""Flush of a log while it is written."""

from __future__ import annotations

from random import Random

import pytest

from ottla.errors import StorageFault
from ottla.log.checkpoints import PARTITION_METADATA, read_partition_metadata
from ottla.log.epochs import FILE_NAME as EPOCHS_FILE
from ottla.log.epochs import LeaderEpochs
from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.sim.disk import SimDisk
from tests.log.batches import NOW, PATH, append, fill
from tests.log.test_transactions import end, write


def test_syncing_raises_the_recovery_point_once_the_job_has_run(open_log):
    log = open_log()
    fill(log, 3)
    job = log.prepare_sync()
    fill(log, 2)
    job.run()
    assert log.finish_sync(job) == 3
    assert log.sync() == 5
    assert log.prepare_sync() is None


def test_only_closed_segments_are_flushed_when_that_is_asked_for(open_log):
    log = open_log(segment_bytes=250)
    assert log.prepare_sync(closed_only=True) is None
    fill(log, 5)
    job = log.prepare_sync(closed_only=True)
    job.run()
    assert log.finish_sync(job) == 3


def test_a_job_that_was_overtaken_by_truncation_does_not_raise_the_recovery_point(open_log):
    log = open_log()
    fill(log, 5)
    job = log.prepare_sync()
    log.truncate_to(2, NOW)
    job.run()
    assert log.finish_sync(job) == 0


def test_a_job_does_not_mind_that_its_segment_was_deleted(open_log):
    log = open_log(segment_bytes=250, retention_bytes=300)
    fill(log, 9)
    job = log.prepare_sync()
    for segment in log.retain(NOW, 9):
        segment.unlink()
    job.run()
    assert log.finish_sync(job) == 9


def test_a_sync_job_ignores_a_log_that_replaced_its_own(open_log):
    log = open_log()
    log.assign_epoch(7)
    fill(log, 3)
    job = log.prepare_sync()
    assert job.epochs is not None
    log.dropped = True
    job.run()
    assert not log.disk.exists(f"{log.path}/{EPOCHS_FILE}")


def aborting(disk):
    """A log with a closed segment of three offsets, the first of which was aborted."""
    log = PartitionLog.open(disk, PATH, LogConfig(), now_ms=NOW)
    log.sync()
    write(log, 7)
    end(log, 7, committed=False)
    append(log)
    log.roll(NOW)
    append(log)
    return log


@pytest.mark.parametrize("seed", range(40))
def test_a_file_that_one_sync_job_could_not_sync_is_synced_by_the_next(seed):
    disk = SimDisk(Random(seed))
    log = aborting(disk)
    job = log.prepare_sync(closed_only=True)
    disk.broken = True
    with pytest.raises(StorageFault):
        job.run()
    disk.broken = False
    job = log.prepare_sync(closed_only=True)
    job.run()
    assert log.finish_sync(job) == 3
    disk.crash()
    log = PartitionLog.open(disk, PATH, LogConfig(), recovery_point=3, now_ms=NOW)
    assert log.transactions.aborted(0, 3) == [(7, 0)]


@pytest.mark.parametrize("seed", range(40))
def test_files_of_a_sync_job_that_never_ran_are_synced_on_close(seed):
    disk = SimDisk(Random(seed))
    log = aborting(disk)
    log.prepare_sync(closed_only=True)
    log.close()
    disk.crash()
    log = PartitionLog.open(disk, PATH, LogConfig(), recovery_point=4, clean=True, now_ms=NOW)
    assert log.transactions.aborted(0, 3) == [(7, 0)]


def test_writes_during_a_sync_job_are_left_for_the_next_one(open_log):
    log = open_log()
    write(log, 7)
    end(log, 7, committed=False)
    job = log.prepare_sync()
    job.run()
    write(log, 7, sequence=1)
    end(log, 7, committed=False)
    log.finish_sync(job)
    assert log.transactions.unsynced(0) != []
    log.sync()
    assert log.transactions.unsynced(0) == []


def test_a_job_that_was_overtaken_by_truncation_does_not_bring_back_the_epochs_of_what_was_cut(open_log):
    log = open_log()
    fill(log, 5, epoch=2)
    log.sync()
    fill(log, 3, epoch=3)
    job = log.prepare_sync()
    log.truncate_to(5, NOW)
    fill(log, 3, epoch=2)
    job.run()
    log.finish_sync(job)
    log.close()
    log = open_log(recovery_point=log.recovery_point, clean=True)
    assert log.epochs.entries == [(2, 0)]


def test_of_two_jobs_the_one_that_was_prepared_first_does_not_undo_the_other(open_log):
    log = open_log()
    fill(log, 1, epoch=1)
    first = log.prepare_sync()
    fill(log, 1, epoch=2)
    second = log.prepare_sync()
    for job in (second, first):
        job.run()
        log.finish_sync(job)
    written = LeaderEpochs.read(log.disk, log.path)
    assert written is not None
    assert written.entries == [(1, 0), (2, 1)]


def test_a_job_does_not_mind_that_truncation_took_a_file_of_its(open_log):
    log = open_log()
    write(log, 7)
    end(log, 7, committed=False)
    job = log.prepare_sync()
    log.truncate_to(1, NOW)
    job.run()
    assert log.finish_sync(job) == 0
    assert log.sync() == 1


def test_a_sync_job_writes_the_epochs_again_after_a_truncation_during_its_write(open_log):
    log = open_log()
    fill(log, 5, epoch=2)
    log.sync()
    fill(log, 3, epoch=3)
    job = log.prepare_sync()
    write_atomic = log.disk.write_atomic

    def slowly(path, data):
        log.disk.write_atomic = write_atomic
        log.truncate_to(5, NOW)
        write_atomic(path, data)

    log.disk.write_atomic = slowly
    job.run()
    written = LeaderEpochs.read(log.disk, log.path)
    assert written is not None
    assert written.entries == [(2, 0)]


def test_partition_metadata_that_was_removed_is_written_again():
    disk = SimDisk(Random(1))
    topic_id = bytes(range(16))
    log = PartitionLog.open(disk, PATH, LogConfig(), topic_id=topic_id, now_ms=NOW)
    append(log)
    log.sync()
    path = f"{PATH}/{PARTITION_METADATA}"
    disk.remove(path)
    log = PartitionLog.open(disk, PATH, LogConfig(), topic_id=topic_id, now_ms=NOW)
    append(log)
    assert log.sync() == 2
    assert read_partition_metadata(disk, PATH) == topic_id
