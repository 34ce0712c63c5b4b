"""Which offset a time had reached (ListOffsets by timestamp), exact to the record.

The segments' largest timestamps and the sparse time index lead to the first batch that can hold the answer;
only that one batch is opened. All of it may read cold data: these functions take their bounds once, at the
start, and look only at sealed segments and at bytes of the active one that were there by then, so they may
run in a thread.
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
    newest: tuple[int, Segment, int] | None = None
    for segment, size in [(segment, segment.size) for segment in log.segments]:
        timestamp = _max_timestamp(segment, size, log_start)
        if timestamp != NO_TIMESTAMP and (newest is None or timestamp > newest[0]):
            newest = (timestamp, segment, size)
    if newest is None:
        return None
    found = _first_in_segment(newest[1], newest[2], newest[0], log_start)
    return found if found is not None and found.offset < limit else None


def _max_timestamp(segment: Segment, size: int, log_start: int) -> int:
    """The largest timestamp of what the log still has of the segment."""
    if log_start <= segment.base_offset:
        return segment.max_timestamp
    position = segment.find(log_start)
    newest = NO_TIMESTAMP
    for at, header in headers(segment.log, position, size) if position >= 0 else ():
        if header.max_timestamp <= newest:
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
    whole_batch = TimestampedOffset(header.max_timestamp, max(header.base_offset, log_start), header.leader_epoch)
    if header.attributes & LOG_APPEND_TIME:
        return whole_batch  # all its records have one time
    try:
        for record in _records(segment, position, header):
            if record.timestamp >= timestamp and record.offset >= log_start:
                return TimestampedOffset(record.timestamp, record.offset, header.leader_epoch)
    except Refused:
        return whole_batch  # records nobody can open: the batch is as near as one gets
    return None


def _records(segment: Segment, position: int, header: BatchHeader) -> Iterator[Record]:
    return iterate(segment.log.pread(header.size, position), bytes_max=RECORDS_BYTES_MAX)
