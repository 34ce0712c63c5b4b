"""Cutting a log back: what lies behind an offset goes, or all of it, and then it goes on elsewhere.

The disk may refuse any step. What only reads comes first. Then segments go one by one, the last first, and with each
the log ends where that one began: whatever is refused, memory and disk agree on what there is. What follows from the
new end (snapshots, aborted transactions, producers, epochs) is settled last; if that is refused nothing can be appended
before it is done (`PartitionLog.failure`).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from ottla.errors import StorageFault
from ottla.log import rebuilding, recovery
from ottla.log.damage import trim
from ottla.log.segment import Segment

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog


def truncate(log: PartitionLog, offset: int, now_ms: int) -> list[Segment]:
    """Drop what lies at `offset` or behind, which is not before the first segment. See `truncate_to`."""
    replaced = log.settle_swap()
    kept = bisect_right(log.segments, offset, key=lambda segment: segment.base_offset)
    cut, dropped = log.segments[kept - 1], log.segments[kept:]
    position = cut.find(offset)
    if position >= 0:
        offset = min(offset, recovery.header_at(cut, position).base_offset)
    if log.swap is not None and not log.swap.fits(log.segments[:kept]):
        log.swap.abandon()
    log.truncations += 1
    told = offset < max(log.recovery_point, log.told_end) or log.damage is not None or log.given_up
    if told:  # else neither manifest nor checkpoint tells of what goes
        log.manifest.cut_at(offset)
    try:
        for _ in dropped:
            _drop_last(log)
        if position >= 0:
            _cut_last(log, position, offset)
        end_at(log, offset)
        settle(log, now_ms)
    except StorageFault as fault:
        _refused(log, fault, now_ms)
        raise
    return replaced + dropped


def begin_anew(log: PartitionLog, offset: int, now_ms: int) -> list[Segment]:
    """Drop everything. See `truncate_fully_and_start_at`."""
    log.make_directory()
    replaced = log.settle_swap()
    if log.swap is not None:
        log.swap.abandon()
    dropped = log.segments
    log.truncations += 1
    log.manifest.prove_nothing()
    try:
        for _ in dropped[1:]:
            _drop_last(log)
        log.snapshots.truncate(-1)
        _replace_only(log, offset, now_ms)
        log.active.create()
        settle(log, now_ms)
        log.manifest.begin_at(offset, log.topic_id)
    except StorageFault as fault:
        _refused(log, fault, now_ms)
        raise
    return replaced + dropped


def settle(log: PartitionLog, now_ms: int) -> None:
    """The file was cut at the log end: make that durable, and then all that follows from it."""
    if log.disk.exists(log.active.log.path):
        log.active.log.sync()
    log.snapshots.truncate(log.log_end)
    log.transactions.truncate(log.log_end)
    rebuilding.reload_producers(log, now_ms)
    log.epochs_file.save(log.epochs)
    log.disk.sync_dir(log.path)
    log.failure = None


def _refused(log: PartitionLog, fault: StorageFault, now_ms: int) -> None:
    log.fail(fault)
    rebuilding.reload_producers(log, now_ms)  # whoever repeats what was cut must not hear that it is there


def _drop_last(log: PartitionLog) -> None:
    segment = log.active
    try:
        segment.delete()
    finally:
        if segment.deleted:
            end_at(log, segment.base_offset)
            log.adopt(log.segments[:-1])


def _cut_last(log: PartitionLog, position: int, offset: int) -> None:
    log.adopt(log.segments)  # which forgets where readers stopped
    try:
        log.active.truncate(position)
    finally:
        if log.active.size == position:
            end_at(log, offset)


def _replace_only(log: PartitionLog, offset: int, now_ms: int) -> None:
    """The log's only segment goes, and an empty one at `offset` takes its place."""
    segment = log.active
    try:
        segment.delete()
    finally:
        if segment.deleted:
            log.log_start = log.log_end = log.recovery_point = log.cleaned = offset
            trim(log)
            log.epochs.clear()
            log.latest_epoch = log.epochs.latest
            log.adopt([Segment(log.disk, log.path, offset, created_ms=now_ms)])


def end_at(log: PartitionLog, offset: int) -> None:
    log.log_end = offset
    log.log_start = min(log.log_start, offset)
    log.recovery_point = min(log.recovery_point, offset)
    log.cleaned = min(log.cleaned, offset)
    log.drop_empty_epochs()
    trim(log)
