"""Log cleaner, the plan: which part of a log to compact now, and its dirty ratio. `cleaning` does the work.

    log_start ......... cleaned ............. end ......... active segment ... log_end
               clean              dirty           not yet

The clean part has been compacted: it has one record for each key. The dirty part has not. A pass ends before
    the active segment, which still changes,
    the last stable offset: an open transaction may be aborted, and uncommitted records may be truncated,
    the recovery point: a record must not be removed because of a later one that a crash could take away,
    the first segment with a record younger than `min.compaction.lag.ms`.
A log is compacted if the dirty part is more than `min.cleanable.dirty.ratio` of both parts, or if its oldest dirty
record is older than `max.compaction.lag.ms`; then the active segment is rolled for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from ottla.log.cleaning import Job, LastBatch, Source
from ottla.wire.batch import HEADER_BYTES, read_header

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog
    from ottla.log.producers import Producers
    from ottla.log.segment import Segment

NEVER = 2**63 - 1


class Dirt(NamedTuple):
    """The dirty part of a log."""

    first_dirty: int
    end: int
    ratio: float
    overdue: bool
    """`max.compaction.lag.ms` has passed."""
    worthwhile: bool


def dirt(log: PartitionLog, last_stable: int, now_ms: int) -> Dirt | None:
    """The dirty part of a log; None: there is nothing to compact."""
    config = log.config
    first_dirty = log.cleaned if log.log_start <= log.cleaned <= log.log_end else log.log_start
    end = min(last_stable, log.active.base_offset)
    dirty = [
        segment for segment, next_base in _closed_segments(log) if next_base > first_dirty and segment.base_offset < end
    ]
    if config.min_compaction_lag_ms > 0:
        for at, segment in enumerate(dirty):
            if segment.max_timestamp > now_ms - config.min_compaction_lag_ms:
                end = segment.base_offset
                del dirty[at:]
                break
    dirty_bytes = sum(segment.size for segment in dirty)
    if not dirty_bytes or first_dirty >= end:
        return None
    clean_bytes = sum(segment.size for segment, next_base in _closed_segments(log) if next_base <= first_dirty)
    ratio = dirty_bytes / (clean_bytes + dirty_bytes)
    overdue = config.max_compaction_lag_ms < NEVER and any(
        0 < _first_timestamp(segment) < now_ms - config.max_compaction_lag_ms for segment in dirty
    )
    return Dirt(first_dirty, end, ratio, overdue, overdue or ratio > config.min_cleanable_dirty_ratio)


T = TypeVar("T")


class FairChoice(Generic[T]):
    """The log with the highest dirty ratio, but no log twice before every other dirty log was cleaned once.

    Otherwise a log that gets dirty faster than it is cleaned would be cleaned all the time.
    """

    def __init__(self) -> None:
        self._served: set[T] = set()

    def choose(self, dirty: Mapping[T, float]) -> T | None:
        if not dirty:
            self._served.clear()
            return None
        waiting = [each for each in dirty if each not in self._served]
        if not waiting:
            self._served.clear()
            waiting = list(dirty)
        chosen = max(waiting, key=lambda each: dirty[each])
        self._served.add(chosen)
        return chosen


def must_roll(log: PartitionLog, now_ms: int) -> bool:
    """Whether the active segment must be rolled because of `max.compaction.lag.ms`."""
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms == NEVER or not log.active.size:
        return False
    return 0 < _first_timestamp(log.active) < now_ms - lag_ms


def plan(log: PartitionLog, found: Dirt, *, token: str, now_ms: int, map_bytes: int, map_load: float) -> Job | None:
    """The job for a pass over the present log; None: no dirty segment is flushed yet."""
    end = min(found.end, log.recovery_point)
    if found.first_dirty >= end:
        return None
    config = log.config
    sources = [
        Source(segment.base_offset, segment.size, next_base)
        for segment, next_base in _closed_segments(log)
        if segment.base_offset < end
    ]
    return Job(
        path=log.path,
        token=token,
        sources=sources,
        first_dirty=found.first_dirty,
        end=end,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        map_bytes=map_bytes,
        map_load=map_load,
        producers=_last_batches(log.producers),
        # Also those after the end, in the same segment: its index is rewritten, and they have to be in it.
        aborted=log.transactions.aborted_before(sources[-1].next_base),
    )


def _closed_segments(log: PartitionLog) -> list[tuple[Segment, int]]:
    """All segments but the active one, each with the base offset of the next."""
    return [(segment, following.base_offset) for segment, following in pairwise(log.segments)]


def _first_timestamp(segment: Segment) -> int:
    return read_header(segment.log.pread(HEADER_BYTES, 0)).max_timestamp


def _last_batches(producers: Producers) -> list[LastBatch]:
    return [
        LastBatch(producer_id, producer.batches[-1].last_offset if producer.batches else -1, producer.epoch)
        for producer_id, producer in producers.items()
    ]
