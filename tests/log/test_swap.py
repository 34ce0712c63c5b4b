"""Swap: a compacted segment replaces others completely or not at all, also if the log changes."""

from __future__ import annotations

from random import Random

import pytest

from ottla.errors import StorageFault
from ottla.log.cleaning import CleanedSegment, clean, decode_report
from ottla.log.log_config import LogConfig
from ottla.log.manifest import FILE_NAME as MANIFEST
from ottla.log.partition_log import PartitionLog
from ottla.log.swap import Swap
from ottla.sim.disk import SimDisk
from tests.log.batches import NOW
from tests.log.compacting import InlineChild, contents, headers_of, job_for, put
from tests.log.test_transactions import end

PATH = "data/topic-0"
CONFIG = LogConfig(cleanup_compact=True, cleanup_delete=False, file_delete_delay_ms=0)
WRITTEN = [(at, b"k%d" % (at % 3), b"%d" % at) for at in range(8)]
COMPACTED = WRITTEN[5:]


@pytest.fixture
def disk():
    return SimDisk(Random(3))


@pytest.fixture
def log(disk):
    """Four closed segments of two records each, and an active one that is empty."""
    log = PartitionLog.open(disk, PATH, CONFIG, now_ms=NOW)
    for _, key, value in WRITTEN:
        put(log, [(key, value)])
        if log.log_end % 2 == 0:
            log.roll(NOW)
    log.sync()
    return log


def cleaned(log, **options) -> tuple[CleanedSegment, str]:
    job = job_for(log, **options)
    assert job is not None
    report = decode_report(next(clean(InlineChild(log.disk), job.encode())))
    assert isinstance(report, CleanedSegment)
    return report, job.token


def reopened(log) -> PartitionLog:
    """As after kill -9: all that was written is there, and nothing was closed."""
    return PartitionLog.open(log.disk, PATH, CONFIG, recovery_point=log.recovery_point, now_ms=NOW)


def leftovers(disk) -> list[str]:
    names = [name for name in disk.listdir(PATH) if name != MANIFEST]
    return [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]


def refusing(act, ending):
    """The disk refuses to do that to files whose name ends so."""

    def refuse(path, *args):
        if path.endswith(ending):
            raise StorageFault(f"cannot change {path}: Input/output error")
        act(path, *args)

    return refuse


def test_before_the_rename_to_swap_a_crash_undoes_the_swap(disk, log):
    cleaned(log)
    again = reopened(log)
    assert contents(again) == WRITTEN
    assert leftovers(disk) == []


def test_after_the_rename_to_swap_a_crash_completes_the_swap(disk, log):
    assert Swap(log, *cleaned(log)).begin()
    assert contents(log) == WRITTEN
    again = reopened(log)
    assert contents(again) == COMPACTED
    assert [segment.base_offset for segment in again.segments] == [0, 8]
    assert leftovers(disk) == []


def test_readers_of_the_old_segment_continue(log):
    piece = log.read(2, 10_000, limit=8)
    assert piece is not None
    piece.hold()
    swap = Swap(log, *cleaned(log))
    swap.begin()
    old = swap.finish()
    assert old is not None
    data = piece.load()
    assert b"k2" in bytes(data)
    assert contents(log) == COMPACTED
    for segment in old:
        segment.unlink()
    assert contents(log) == COMPACTED
    assert piece.read(0, len(piece)) == data, "though it has no name any more"


@pytest.mark.parametrize("announced", [False, True])
def test_a_truncation_cancels_the_swap(disk, log, announced):
    swap = Swap(log, *cleaned(log, last_stable=7))
    if announced:
        assert swap.begin()
    log.truncate_to(7, NOW)
    if not announced:
        assert not swap.begin()
    assert swap.finish() is None
    assert contents(log) == WRITTEN[:7]
    assert contents(reopened(log)) == WRITTEN[:7]
    assert [name for name in leftovers(disk) if not name.endswith(".deleted")] == []


@pytest.mark.parametrize("announced", [False, True])
def test_retention_of_a_segment_cancels_the_swap(disk, log, announced):
    swap = Swap(log, *cleaned(log))
    if announced:
        assert swap.begin()
    log.raise_log_start(3)
    assert [segment.base_offset for segment in log.retain(NOW, 8)] == [0]
    if not announced:
        assert not swap.begin()
    assert swap.finish() is None
    assert contents(log) == WRITTEN[3:]


def test_a_swap_succeeds_while_the_log_grows(log):
    swap = Swap(log, *cleaned(log))
    swap.begin()
    put(log, [(b"k0", b"new")])
    log.roll(NOW)
    put(log, [(b"k0", b"newer")])
    assert swap.finish() is not None
    assert contents(log) == [*COMPACTED, (8, b"k0", b"new"), (9, b"k0", b"newer")]


def test_a_swap_can_be_tried_again_after_a_disk_error(disk, log):
    swap = Swap(log, *cleaned(log))
    swap.begin()
    disk.broken = True
    with pytest.raises(StorageFault):
        swap.finish()
    assert contents(log) == WRITTEN
    disk.broken = False
    assert swap.finish() is not None
    assert contents(log) == COMPACTED


def aborting(disk) -> PartitionLog:
    """A log whose record at 1 was aborted, sealed. Compaction takes it away."""
    log = PartitionLog.open(disk, PATH, CONFIG, now_ms=NOW)
    put(log, [(b"k", b"1")])
    put(log, [(b"k", b"2")], producer_id=7, base_sequence=0, producer_epoch=0, transactional=True)
    end(log, 7, committed=False)
    put(log, [(b"k", b"3")])
    log.roll(NOW)
    log.sync()
    return log


def test_aborted_records_stay_aborted_while_the_disk_is_full(disk):
    log = aborting(disk)
    swap = Swap(log, *cleaned(log))
    swap.begin()
    disk.capacity_bytes = 0  # also when something is removed
    with pytest.raises(StorageFault):
        swap.finish()
    assert log.transactions.aborted(0, 4) == [(7, 1)]


def test_aborted_records_stay_aborted_until_the_old_segments_are_replaced(disk):
    log = aborting(disk)
    report, token = cleaned(log)
    swap = Swap(log, report._replace(aborted=[]), token)  # as in the pass after the one that took the record away
    swap.begin()
    rename, disk.rename = disk.rename, refusing(disk.rename, ".swap")
    with pytest.raises(StorageFault):
        swap.finish()
    log.release_memory(log.log_end)
    assert (1, b"k", b"2") in contents(log)
    assert log.transactions.aborted(0, 4) == [(7, 1)]
    disk.rename = rename
    assert swap.finish() is not None
    assert (1, b"k", b"2") not in contents(log)
    assert log.transactions.aborted(0, 4) == []


def test_an_aborted_transaction_is_removed_with_its_marker_if_each_swap_ends_in_a_crash(disk):
    """Or all that its producer committed later would pass for part of it."""
    log = aborting(disk)
    horizon_ms = NOW + CONFIG.delete_retention_ms
    for now_ms in (NOW, NOW, horizon_ms):  # the record goes, the marker gets its time, the marker goes
        put(log, [(b"other", b"%d" % log.log_end)])
        log.roll(NOW)
        log.sync()
        log.producers.clear()  # whoever it was has moved on
        assert Swap(log, *cleaned(log, now_ms=now_ms)).begin()
        log = reopened(log)
    later = log.log_end
    put(log, [(b"k", b"later")], producer_id=7, producer_epoch=0, base_sequence=1, transactional=True)
    end(log, 7, committed=True)
    assert not any(header.is_control for header in headers_of(log)[:-1])
    assert (later, b"k", b"later") in contents(log)
    assert log.transactions.aborted(0, log.log_end) == []


def test_aborted_records_stay_aborted_after_a_crash_while_old_segments_are_removed(disk, monkeypatch):
    log = PartitionLog.open(disk, PATH, CONFIG, now_ms=NOW)
    put(log, [(b"k", b"1")])
    log.roll(NOW)
    put(log, [(b"k", b"2")])
    put(log, [(b"a", b"aborted")], producer_id=7, base_sequence=0, producer_epoch=0, transactional=True)
    end(log, 7, committed=False)
    log.roll(NOW)
    log.sync()
    swap = Swap(log, *cleaned(log, last_stable=2))  # another transaction was open, so the pass ended before this one
    swap.begin()
    with monkeypatch.context() as killed:
        killed.setattr(disk, "rename", refusing(disk.rename, ".cleaned"))
        with pytest.raises(StorageFault):
            swap.finish()
    log = reopened(log)
    assert (2, b"a", b"aborted") in contents(log)
    assert log.transactions.aborted(0, log.log_end) == [(7, 2)]


def test_a_swap_cannot_be_cancelled_after_an_old_segment_was_renamed(disk, log):
    swap = Swap(log, *cleaned(log))
    swap.begin()
    rename = disk.rename
    renamed: list[str] = []

    def failing(old, new):
        if len(renamed) == 2:
            raise StorageFault("cannot rename: Input/output error")
        renamed.append(new)
        rename(old, new)

    disk.rename = failing
    with pytest.raises(StorageFault):
        swap.finish()
    disk.rename = rename
    swap.abandon()
    assert contents(reopened(log)) == COMPACTED


def test_a_swap_is_cancelled_with_its_caller(disk, log):
    swap = Swap(log, *cleaned(log))
    swap.begin()
    swap.abandon()
    assert swap.finish() is None
    assert leftovers(disk) == []
    assert contents(log) == WRITTEN


def half_done(disk, log) -> None:
    """The old segments have gone, and the new one could not get its name."""
    swap = Swap(log, *cleaned(log))
    swap.begin()
    rename, disk.rename = disk.rename, refusing(disk.rename, ".swap")
    with pytest.raises(StorageFault):
        swap.finish()
    disk.rename = rename


def test_a_half_done_swap_is_completed_before_retention_removes_its_segment(disk, log):
    half_done(disk, log)
    log.raise_log_start(8)
    dropped = log.retain(NOW, 8)
    assert log.swap is None
    assert [segment.base_offset for segment in log.segments] == [8]
    for segment in dropped:
        segment.unlink()
    assert leftovers(disk) == []
    assert contents(reopened(log)) == []


@pytest.mark.parametrize("offset", [0, 3, 6])
def test_a_half_done_swap_is_completed_before_the_log_is_truncated(disk, log, offset):
    half_done(disk, log)
    dropped = log.truncate_to(offset, NOW)
    end = log.log_end
    assert end <= offset
    put(log, [(b"k9", b"another history")], epoch=9)
    for segment in dropped:
        segment.unlink()
    assert leftovers(disk) == []
    expected = [record for record in COMPACTED if record[0] < end] + [(end, b"k9", b"another history")]
    assert contents(log) == expected
    assert contents(reopened(log)) == expected


def test_a_half_done_swap_is_completed_before_the_log_restarts_at_another_offset(disk, log):
    half_done(disk, log)
    for segment in log.truncate_fully_and_start_at(20, NOW):
        segment.unlink()
    assert leftovers(disk) == []
    again = reopened(log)
    assert (again.segments[0].base_offset, again.log_end) == (20, 20)


def test_the_log_loses_nothing_while_a_half_done_swap_cannot_be_completed(disk, log):
    half_done(disk, log)
    rename, disk.rename = disk.rename, refusing(disk.rename, ".swap")
    log.raise_log_start(4)
    for lose in (lambda: log.truncate_to(3, NOW), lambda: log.retain(NOW, 8)):
        with pytest.raises(StorageFault):
            lose()
        assert (len(log.segments), log.log_end) == (5, 8)
    disk.rename = rename
    assert log.truncate_to(6, NOW)
