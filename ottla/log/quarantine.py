"""Quarantine: a damaged log lets go of what another replica has whole, and keeps the files aside (`.damaged`). And one
whose end its leader has not, though it may have been acknowledged, keeps that aside before it is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.errors import Refused, StorageFault
from ottla.log import truncation
from ottla.log.aside import keep, keep_whole
from ottla.log.damage import note
from ottla.log.scan import headers
from ottla.log.segment import Segment

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog


def quarantine(log: PartitionLog, now_ms: int) -> int:
    """Another replica leads, and has what is missing here: what is behind the first missing offset is set aside, never
    deleted, and copied anew; with the whole segment that it is in, if that is damaged in its middle. Durable on return.
    Returns where the log ends. After a StorageFault it is to be tried again, unless the log is not damaged any more."""
    assert log.damage is not None
    first, end = log.damage.missing[0]
    start = max(_last_whole(log, first), log.log_start)
    note(log, [(start, end)])  # if the disk refuses half of it, all of that is missing
    log.truncations += 1
    log.manifest.cut_at(start)
    kept = [segment for segment in log.segments if segment.base_offset < start and segment.size]
    for segment in reversed(log.segments):
        if segment not in kept:
            _set_aside(log, segment)
    if kept:
        log.adopt(kept)
        truncation.end_at(log, start)
        try:
            truncation.settle(log, now_ms)
        except StorageFault as fault:
            log.fail(fault)  # it is done before anything is appended
            raise
    else:
        log.adopt([Segment(log.disk, log.path, start, created_ms=now_ms)])
        log.truncate_fully_and_start_at(start, now_ms)
    assert log.damage is None
    return log.log_end


def keep_tail(log: PartitionLog, offset: int) -> list[str]:
    """The log is about to be cut at `offset`: copy what is behind it. Durable on return. Returns the names of the
    copies. Blocks; for a thread."""
    kept = []
    for segment in list(log.segments):
        position = 0 if segment.base_offset >= offset else segment.find(offset)
        if 0 <= position < segment.size:
            file = log.disk.open(segment.log.path)
            kept.append(keep(log.disk, file, position, segment.size))
            file.close()
    return kept


def _set_aside(log: PartitionLog, segment: Segment) -> None:
    """Unless that is done: the disk may have refused half of it before."""
    segment.close()
    if segment.size and log.disk.exists(segment.log.path):
        keep_whole(log.disk, segment.log.path)
    else:
        log.disk.remove(segment.log.path)
    for path in (segment.offsets.path, segment.times.path):
        if log.disk.is_directory(path):
            keep_whole(log.disk, path)
        else:
            log.disk.remove(path)


def _last_whole(log: PartitionLog, missing: int) -> int:
    """Where the last segment before a missing offset ends, if it ends with a whole batch; else where it begins."""
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
