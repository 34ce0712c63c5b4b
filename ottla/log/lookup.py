"""ListOffsets by timestamp: the first record with this timestamp or a later one, exact to the record.

The largest timestamps of the segments and the time index lead to the first batch that can contain the answer; only this
batch is decompressed. Since this may read from the disk, the functions may run in a thread: they take their bounds
once, at the start, and read only closed segments and bytes that the active segment had then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ottla.errors import Refused
from ottla.log.scan import headers
from ottla.log.segment import Segment
from ottla.wire.batch import LOG_APPEND_TIME, NO_TIMESTAMP, BatchHeader
from ottla.wire.records import Record, iterate

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog

RECORDS_BYTES_MAX = 64 * 1024 * 1024
"""How far one batch is decompressed in search of a record."""


class TimestampedOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


def offset_for_timestamp(log: PartitionLog, timestamp: int, limit: int) -> TimestampedOffset | None:
    """The first record at or after `timestamp`, if it lies before `limit`."""
    log_start = log.log_start
    for segment, size in [(segment, segment.size) for segment in log.segments]:
        if not size or segment.max_timestamp < timestamp:
            continue
        found = _first_in_segment(segment, size, timestamp, log_start)
        if found is not None:
            return found if found.offset < limit else None
    return None


def offset_of_max_timestamp(log: PartitionLog, limit: int) -> TimestampedOffset | None:
    """The first record that has the largest timestamp in the log, if it lies before `limit`."""
    log_start = log.log_start
    bounds = [
        (_max_timestamp(segment, size, log_start), segment, size)
        for segment, size in [(segment, segment.size) for segment in log.segments]
    ]
    newest: TimestampedOffset | None = None
    for bound, segment, size in sorted(bounds, key=lambda each: -each[0]):
        if newest is not None and _rank(bound, segment.base_offset) < _rank(newest.timestamp, newest.offset):
            continue
        found = _newest_in_segment(segment, size, bound, log_start)
        if newest is None or (found and _rank(found.timestamp, found.offset) > _rank(newest.timestamp, newest.offset)):
            newest = found
    return newest if newest is not None and newest.offset < limit else None


def _rank(timestamp: int, offset: int) -> tuple[int, int]:
    """The latest is the largest; of those that are as late, the first."""
    return timestamp, -offset


def _newest_in_segment(segment: Segment, size: int, bound: int, log_start: int) -> TimestampedOffset | None:
    """The first record that has the largest timestamp in the segment, which is `bound` unless compaction has emptied
    the batch that had it: such a header keeps its time."""
    if bound == NO_TIMESTAMP:
        return None
    found = _first_in_segment(segment, size, bound, log_start)
    if found is None:
        left = _max_left(segment, size, log_start)
        found = None if left == NO_TIMESTAMP else _first_in_segment(segment, size, left, log_start)
    return found


def _max_timestamp(segment: Segment, size: int, log_start: int) -> int:
    """The largest timestamp of the segment's remaining records, or of those before it was compacted."""
    return segment.max_timestamp if log_start <= segment.base_offset else _max_left(segment, size, log_start)


def _max_left(segment: Segment, size: int, log_start: int) -> int:
    """The largest timestamp of the records that the log still has of the segment."""
    position = segment.find(max(log_start, segment.base_offset))
    newest = NO_TIMESTAMP
    for at, header in headers(segment.log, position, size) if position >= 0 else ():
        if header.max_timestamp <= newest or not header.record_count:
            continue
        if header.base_offset >= log_start or header.attributes & LOG_APPEND_TIME:
            newest = header.max_timestamp
        else:
            kept = [record.timestamp for record in _records(segment, at, header) if record.offset >= log_start]
            newest = max(kept, default=NO_TIMESTAMP)
    return newest


def _first_in_segment(segment: Segment, size: int, timestamp: int, log_start: int) -> TimestampedOffset | None:
    segment.load_indexes()
    start = max(segment.known_before(timestamp), log_start)
    position = segment.find(start)
    if position < 0:
        return None
    for at, header in headers(segment.log, position, size):
        if header.max_timestamp >= timestamp and header.last_offset >= log_start:
            found = _first_in_batch(segment, at, header, timestamp, log_start)
            if found is not None:
                return found
    return None


def _first_in_batch(
    segment: Segment, position: int, header: BatchHeader, timestamp: int, log_start: int
) -> TimestampedOffset | None:
    if not header.record_count:
        return None  # compaction has emptied it
    whole_batch = TimestampedOffset(header.max_timestamp, max(header.base_offset, log_start), header.leader_epoch)
    if header.attributes & LOG_APPEND_TIME:
        return whole_batch  # all its records have one time
    try:
        for record in _records(segment, position, header):
            if record.timestamp >= timestamp and record.offset >= log_start:
                return TimestampedOffset(record.timestamp, record.offset, header.leader_epoch)
    except Refused:
        return whole_batch  # the records cannot be decompressed: the batch is the nearest answer
    return None


def _records(segment: Segment, position: int, header: BatchHeader) -> Iterator[Record]:
    return iterate(segment.log.pread(header.size, position), bytes_max=RECORDS_BYTES_MAX)
