"""Making a log durable, while it goes on."""

from __future__ import annotations

from ottla.log.epochs import FILE_NAME as EPOCHS_FILE
from tests.log.batches import NOW, fill


def test_syncing_raises_the_recovery_point_once_the_job_has_run(open_log):
    log = open_log()
    fill(log, 3)
    job = log.prepare_sync()
    fill(log, 2)
    job.run()
    assert log.finish_sync(job) == 3
    assert log.sync() == 5
    assert log.prepare_sync() is None


def test_only_sealed_segments_are_synced_when_that_is_asked_for(open_log):
    log = open_log(segment_bytes=250)
    assert log.prepare_sync(sealed_only=True) is None
    fill(log, 5)
    job = log.prepare_sync(sealed_only=True)
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


def test_a_job_leaves_alone_what_has_taken_the_place_of_its_log(open_log):
    log = open_log()
    log.assign_epoch(7)
    fill(log, 3)
    job = log.prepare_sync()
    assert job.epochs is not None
    log.dropped = True
    job.run()
    assert not log.disk.exists(f"{log.path}/{EPOCHS_FILE}")
