"""Truncation of a log: removes everything from an offset on, or the whole log, which then starts at another offset.

The disk may refuse any step. Steps that only read come first. Then segments are removed one by one, the last one first,
and after each the log ends where the removed one began: so memory and disk agree whatever is refused. Snapshots,
transaction indexes, producer state and epochs are adjusted last. If the disk refuses that, the log accepts no append
before it is done (`PartitionLog.failure`).

Records that may have been acknowledged are kept in `.damaged` files: when a damaged log drops what another replica has
(`quarantine`), and when a follower truncates an end that its leader does not have (`quarantine_tail`).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from ottla.errors import Refused, StorageFault
from ottla.log import evidence, recovery, transaction_recovery
from ottla.log.damage import mark_missing, trim
from ottla.log.quarantine import quarantine_bytes, quarantine_file
from ottla.log.scan import headers
from ottla.log.segment import Segment

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog


def truncate(log: PartitionLog, offset: int, now_ms: int) -> list[Segment]:
    """Remove everything from `offset` on, which is not before the first segment. See `truncate_to`."""
    replaced = log.settle_swap()
    kept = bisect_right(log.segments, offset, key=lambda segment: segment.base_offset)
    cut, dropped = log.segments[kept - 1], log.segments[kept:]
    position = cut.find(offset)
    if position >= 0:
        offset = min(offset, recovery.header_at(cut, position).base_offset)
    if log.swap is not None and not log.swap.fits(log.segments[:kept]):
        log.swap.abandon()
    log.truncations += 1
    recorded = offset < max(log.recovery_point, log.checkpointed_end) or log.damage is not None or log.given_up
    if recorded:  # otherwise neither manifest nor checkpoint shows the removed range
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


def truncate_fully(log: PartitionLog, offset: int, now_ms: int) -> list[Segment]:
    """Remove everything. See `truncate_fully_and_start_at`."""
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
    """The file was truncated at the log end: flush it, then adjust everything that depends on it."""
    if log.disk.exists(log.active.log.path):
        log.active.log.sync()
    log.snapshots.truncate(log.log_end)
    log.transactions.truncate(log.log_end)
    transaction_recovery.reload_producers(log, now_ms)
    if log.active.size and evidence.last_end(log.active)[0] < log.log_end:
        # Offsets between were deleted or lost. The name of a segment has the next offset of the log: a batch after a
        # gap within one would count as damaged.
        log.begin_segment(log.log_end, now_ms)
    log.epochs_file.save(log.epochs)
    log.disk.sync_dir(log.path)
    log.failure = None


def _refused(log: PartitionLog, fault: StorageFault, now_ms: int) -> None:
    log.fail(fault)
    transaction_recovery.reload_producers(log, now_ms)  # a retry of a truncated batch is not a duplicate


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
    """Replace the only segment by an empty one at `offset`."""
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


def quarantine(log: PartitionLog, now_ms: int) -> int:
    """The leader has the records that are missing here: quarantine everything after the first missing offset, to be
    copied again; with the whole segment, if it is damaged in its middle. Durable on return. Returns the log end. After
    a StorageFault it must be tried again, unless the log is not damaged any more."""
    assert log.damage is not None
    first, end = log.damage.missing[0]
    start = max(_last_whole(log, first), log.log_start)
    mark_missing(log, [(start, end)])  # if the disk refuses half of it, all of that is missing
    log.truncations += 1
    log.manifest.cut_at(start)
    kept = [segment for segment in log.segments if segment.base_offset < start and segment.size]
    for segment in reversed(log.segments):
        if segment not in kept:
            _quarantine_segment(log, segment)
    if kept:
        log.adopt(kept)
        end_at(log, start)
        try:
            settle(log, now_ms)
        except StorageFault as fault:
            log.fail(fault)  # it is done before anything is appended
            raise
    else:
        log.adopt([Segment(log.disk, log.path, start, created_ms=now_ms)])
        log.truncate_fully_and_start_at(start, now_ms)
    assert log.damage is None
    return log.log_end


def quarantine_tail(log: PartitionLog, offset: int) -> list[str]:
    """The log is about to be truncated to `offset`: copy the rest. Durable on return. Returns the names of the copies.
    Blocks; for a thread."""
    kept = []
    for segment in list(log.segments):
        position = 0 if segment.base_offset >= offset else segment.find(offset)
        if 0 <= position < segment.size:
            file = log.disk.open(segment.log.path)
            kept.append(quarantine_bytes(log.disk, file, position, segment.size))
            file.close()
    return kept


def _quarantine_segment(log: PartitionLog, segment: Segment) -> None:
    """Quarantine a segment, unless that is done: the disk may have refused half of it before."""
    segment.close()
    if segment.size and log.disk.exists(segment.log.path):
        quarantine_file(log.disk, segment.log.path)
    else:
        log.disk.remove(segment.log.path)
    for path in (segment.offsets.path, segment.times.path):
        if log.disk.is_directory(path):
            quarantine_file(log.disk, path)
        else:
            log.disk.remove(path)


def _last_whole(log: PartitionLog, missing: int) -> int:
    """The end of the last segment before a missing offset, if it ends with a whole batch; otherwise its base offset."""
    before = [segment for segment in log.segments if segment.base_offset < missing and segment.size]
    if not before:
        return missing
    segment = before[-1]
    position, end = segment.offsets.peek_last_position(segment.size), segment.base_offset
    try:
        for at, header in headers(segment.log, position, segment.size):
            end, position = header.next_offset, at + header.size
    except Refused:
        return segment.base_offset
    return missing if position == segment.size and end <= missing else segment.base_offset
