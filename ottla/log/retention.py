"""Retention: deletes segments by age, by size, or because they are before the log start offset (DeleteRecords)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog
    from ottla.log.segment import Segment


def retain(log: PartitionLog, now_ms: int, high_watermark: int) -> list[Segment]:
    """Drop the expired segments. Returns those that may be unlinked."""
    expired = expired_segments(log, now_ms, high_watermark)
    if not expired:
        return []
    replaced = log.settle_swap()
    if replaced:
        expired = expired_segments(log, now_ms, high_watermark)
    if expired and expired[-1] is log.active:
        log.roll(now_ms)  # the log needs an active segment, whatever happens to the old files
        log.disk.sync_dir(log.path)
    log.manifest.start_at(_base_behind(log, expired[-1]), log.topic_id)
    for segment in expired:  # oldest first: a crash or a failure in between leaves no hole
        segment.delete()
        log.adopt(log.segments[1:])
        log.raise_log_start(log.segments[0].base_offset)
    log.snapshots.drop_before(log.segments[0].base_offset)
    log.recovery_point = max(log.recovery_point, log.log_start)
    return replaced + expired


def start_after(log: PartitionLog, now_ms: int, high_watermark: int) -> int | None:
    """The log start after `retain` has removed expired segments; None if none is expired. Writing it needs a sync,
    which need not block the loop (`PartitionLog.prove_start`)."""
    expired = [] if log.dropped else expired_segments(log, now_ms, high_watermark)
    if not expired:
        return None
    return log.log_end if expired[-1] is log.active else _base_behind(log, expired[-1])


def _base_behind(log: PartitionLog, segment: Segment) -> int:
    following = log.segment_after(segment)
    assert following is not None
    return following.base_offset


def expired_segments(log: PartitionLog, now_ms: int, high_watermark: int) -> list[Segment]:
    """The oldest segments that may go, all of them below the high watermark.

    The active one is among them only when everything in it is expired_segments: then the log is rolled first.
    """
    config = log.config
    excess = log.size_bytes - config.retention_bytes if config.retention_bytes >= 0 else -1
    expired: list[Segment] = []
    ends = [segment.base_offset for segment in log.segments[1:]] + [log.log_end]
    for segment, end in zip(log.segments, ends, strict=True):
        if not segment.size or end > high_watermark:
            break
        too_large = config.cleanup_delete and excess - segment.size >= 0
        if not (end <= log.log_start or too_large or (config.cleanup_delete and _too_old(log, segment, now_ms))):
            break
        excess -= segment.size
        expired.append(segment)
    return expired


def _too_old(log: PartitionLog, segment: Segment, now_ms: int) -> bool:
    retention_ms = log.config.retention_ms
    if retention_ms < 0:
        return False
    newest = segment.max_timestamp
    if newest < 0:
        newest = segment.created_ms  # records without a time count from when we first saw them
    return now_ms - newest > retention_ms
