"""Truncation on a disk that may refuse any step: memory and disk agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from random import Random

import pytest

from ottla.errors import StorageFault
from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.log.transaction_index import AbortedTransaction, decode
from ottla.sim.disk import SimDisk
from ottla.wire import marker as markers
from ottla.wire.marker import Marker
from tests.log.batches import NOW, PATH, append, stored

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=0)
START = 10


def transaction(log: PartitionLog, number: int, *, committed: bool, epoch: int) -> None:
    append(log, producer_id=1, sequence=number, transactional=True, epoch=epoch)
    data, header = markers.build(1, 0, Marker(committed, coordinator_epoch=3), NOW)
    log.append(memoryview(data), header, leader_epoch=epoch, now_ms=NOW)


class RefusingDisk(SimDisk):
    """Refuses one step: that one that comes after so many others."""

    left: int | None = None

    def room(self, path: str) -> int:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise StorageFault(f"cannot write to {path}: Input/output error")
        return super().room(path)


def filled() -> tuple[RefusingDisk, PartitionLog]:
    """Several segments, in each an aborted transaction, and in most a new epoch."""
    disk = RefusingDisk(Random(5))
    log = PartitionLog.open(disk, PATH, CONFIG, now_ms=NOW)
    for at in range(8):
        append(log, [b"value %d" % at], epoch=at // 2, producer_id=9, sequence=at)
        transaction(log, at, committed=False, epoch=at // 2)
    log.sync()
    assert (len(log.segments) > 4, log.segments[2].base_offset, log.log_end) == (True, START, 24)
    return disk, log


def known(log: PartitionLog) -> tuple[object, ...]:
    """What the log tells of itself."""
    return (
        log.log_end,
        stored(log),
        log.epochs.entries,
        log.transactions.aborted(0, log.log_end),
        log.transactions.last_stable(log.log_end),
        {producer_id: producer.batches[-1:] for producer_id, producer in log.producers.items()},
    )


def killed(disk: RefusingDisk, log: PartitionLog) -> PartitionLog:
    disk.process_died()
    return PartitionLog.open(disk, PATH, CONFIG, recovery_point=log.recovery_point, log_start=log.log_start, now_ms=NOW)


def aborted_on_disk(disk: RefusingDisk) -> list[AbortedTransaction]:
    names = [name for name in disk.listdir(PATH) if name.endswith(".txnindex")]
    return [entry for name in names for entry in decode(disk.read(f"{PATH}/{name}"))]


def another_history(log: PartitionLog) -> None:
    for at in range(6):
        append(log, [b"another %d" % at], epoch=9)
        transaction(log, at + 8, committed=at % 2 == 0, epoch=9)


def refused_somewhere(lose: Callable[[PartitionLog], object]) -> Iterator[tuple[RefusingDisk, PartitionLog]]:
    """Logs that lost all but what the disk refused; each time it refused another step."""
    for step in count():
        disk, log = filled()
        disk.left = step
        try:
            lose(log)
        except StorageFault:
            yield disk, log
        else:
            if disk.left is None:
                continue  # it was refused to write the manifest, and could remove it
            assert step > 3
            return


LOSSES = {
    "to the middle of a segment": lambda log: log.truncate_to(7, NOW),
    "to the start of a segment": lambda log: log.truncate_to(START, NOW),
    "within the last one": lambda log: log.truncate_to(23, NOW),
    "to nothing": lambda log: log.truncate_to(0, NOW),
    "and restarted further on": lambda log: log.truncate_fully_and_start_at(100, NOW),
    "and restarted at the start": lambda log: log.truncate_fully_and_start_at(0, NOW),
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_a_refused_truncation_can_be_tried_again(lose):
    _, expected = filled()
    lose(expected)
    another_history(expected)
    for disk, log in refused_somewhere(lose):
        lose(log)
        another_history(log)
        assert known(log) == known(expected)
        assert known(killed(disk, log)) == known(expected)


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_a_partly_truncated_log_continues_at_its_end(lose):
    _, whole = filled()
    for disk, log in refused_somewhere(lose):
        left = stored(log)
        assert left == stored(whole)[: len(left)]
        another_history(log)
        assert stored(log)[: len(left)] == left
        assert len(stored(log)) == len(left) + 18
        expected = known(log)
        again = killed(disk, log)
        assert known(again) == expected
        again.close()
        again = PartitionLog.open(disk, PATH, CONFIG, clean=True, log_start=log.log_start, now_ms=NOW)
        assert known(again) == expected


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_a_log_of_which_not_all_was_cut_is_on_disk_as_it_is_in_memory(lose):
    for disk, log in refused_somewhere(lose):
        left = stored(log)
        assert stored(killed(disk, log)) == left


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_truncated_batches_are_not_in_the_producer_state(lose):
    for _, log in refused_somewhere(lose):
        reported = [batch.last_offset for _, producer in log.producers.items() for batch in producer.batches]
        assert max(reported, default=-1) < log.log_end


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_a_log_is_closed_cleanly_only_after_its_truncation_is_complete(lose):
    for disk, log in refused_somewhere(lose):
        disk.broken = True
        with pytest.raises(StorageFault):
            log.close()
        disk.broken = False
        log.close()
        reported = (log.log_end, stored(log), log.epochs.entries)
        disk.process_died()
        again = PartitionLog.open(disk, PATH, CONFIG, clean=True, log_start=log.log_start, now_ms=NOW)
        assert (again.log_end, stored(again), again.epochs.entries) == reported
        assert all(last_offset < again.log_end for _, _, last_offset, _ in aborted_on_disk(disk))


def test_a_log_that_continues_after_lost_deleted_offsets_is_recovered_unchanged():
    """A power cut takes the end of a segment that was deleted already (DeleteRecords) and was not synced, and what
    follows: the log is cut there, and goes on at its log start."""
    disk = SimDisk(Random(1))
    log = PartitionLog.open(disk, PATH, CONFIG, now_ms=NOW)
    append(log)
    log.sync()
    first = log.active.size
    for _ in range(8):
        append(log, 2)
    log.raise_log_start(3)
    disk.open(f"{PATH}/{0:020d}.log").truncate(first)
    log = PartitionLog.open(disk, PATH, CONFIG, recovery_point=1, log_start=3, now_ms=NOW)
    assert log.damage is not None
    assert log.damage.missing[0][0] == 3
    log.truncate_to(3, NOW)
    assert (log.log_start, log.log_end) == (3, 3)
    batch = append(log)
    for clean in (False, True):
        again = PartitionLog.open(disk, PATH, CONFIG, recovery_point=1, log_start=3, clean=clean, now_ms=NOW)
        assert (again.log_end, again.damage, again.recovery.notes) == (log.log_end, None, ())
        assert stored(again)[-1:] == [batch]
        again.close()
