"""Which offset a time had reached, exact to the record."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.log.log_config import LogConfig
from ottla.log.lookup import RECORDS_BYTES_MAX, offset_for_timestamp, offset_of_max_timestamp
from ottla.log.partition_log import PartitionLog
from ottla.sim.disk import SimDisk
from ottla.wire.batch import check, stamp_log_append_time
from ottla.wire.records import Record, build_batch
from tests.log.batches import NOW, PATH, append, make
from tests.log.compacting import compact

SMALL = LogConfig(segment_bytes=300, index_interval_bytes=0)


def by_time(log, timestamp, limit=None):
    found = offset_for_timestamp(log, timestamp, log.log_end if limit is None else limit)
    return None if found is None else tuple(found)


def test_the_first_record_at_or_after_the_time_is_found_inside_its_batch(open_log):
    log = open_log()
    append(log, 3, timestamps=[NOW, NOW + 5, NOW + 10], epoch=4)
    append(log, 2, timestamps=[NOW + 20, NOW + 30], epoch=5)
    assert by_time(log, 0) == (NOW, 0, 4)
    assert by_time(log, NOW + 1) == (NOW + 5, 1, 4)
    assert by_time(log, NOW + 5) == (NOW + 5, 1, 4)
    assert by_time(log, NOW + 11) == (NOW + 20, 3, 5)
    assert by_time(log, NOW + 31) is None


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_opened(open_log, codec):
    log = open_log()
    append(log, 3, timestamps=[NOW, NOW + 5, NOW + 10], codec=codec)
    assert by_time(log, NOW + 7) == (NOW + 10, 2, 0)


def test_log_append_time_is_the_timestamp_of_every_record(open_log):
    log = open_log()
    view, _ = make(3, timestamp=1)
    header = stamp_log_append_time(view, NOW)
    log.append(view, header, leader_epoch=0, now_ms=NOW)
    assert by_time(log, NOW) == (NOW, 0, 0)
    assert offset_of_max_timestamp(log, 3) == (NOW, 0, 0)


def test_nothing_after_the_limit_is_found(open_log):
    log = open_log()
    append(log, 2, timestamps=[NOW, NOW + 5])
    append(log, 1, timestamp=NOW + 9)
    assert by_time(log, NOW + 7, limit=2) is None
    assert offset_of_max_timestamp(log, 2) is None


def test_deleted_records_are_not_found(open_log):
    log = open_log()
    append(log, 4, timestamps=[NOW + 50, NOW + 1, NOW + 2, NOW + 3])
    append(log, 1, timestamp=NOW)
    log.raise_log_start(2)
    assert by_time(log, 0) == (NOW + 2, 2, 0)
    log.raise_log_start(4)
    assert offset_of_max_timestamp(log, 5) == (NOW, 4, 0)


def test_records_that_cannot_be_decompressed_are_found_by_batch(open_log):
    log = open_log()
    append(log, [b"", b"", bytes(RECORDS_BYTES_MAX)], timestamps=[NOW, NOW + 5, NOW + 10], codec="zstd")
    assert by_time(log, NOW + 7) == (NOW + 10, 0, 0)


def test_an_empty_log_knows_no_time(open_log):
    log = open_log()
    assert by_time(log, 0) is None
    assert offset_of_max_timestamp(log, 0) is None


def test_the_largest_time_is_known_after_the_log_was_cut_and_closed(open_log):
    log = open_log(index_interval_bytes=300)
    for at in range(4):
        append(log, [b"x" * 60], timestamp=NOW + at)
    append(log, timestamp=NOW + 1000)
    append(log, timestamp=NOW + 1001)
    log.truncate_to(5, NOW)
    log.close()
    log = open_log(index_interval_bytes=300, clean=True, retention_ms=5000)
    assert by_time(log, NOW + 1000) == (NOW + 1000, 4, 0)
    assert log.retain(NOW + 5500, log.log_end) == []


@pytest.mark.parametrize("append_time", [False, True])
@pytest.mark.parametrize("log_start", [0, 1])
def test_a_batch_that_compaction_has_emptied_has_no_record_of_its_time(open_log, append_time, log_start):
    log = open_log(cleanup_compact=True, cleanup_delete=False)

    def write(key, time, **producer):
        view = memoryview(bytearray(build_batch([Record(0, time, key, b"value")], **producer)))
        header = stamp_log_append_time(view, time) if append_time else check(view)
        log.append(view, header, leader_epoch=0, now_ms=NOW)

    for key, time in ((b"a", NOW), (b"b", NOW + 10), (b"c", NOW + 10)):
        write(key, time)
    write(b"d", NOW + 50, producer_id=7, producer_epoch=0, base_sequence=0)
    write(b"d", NOW + 5)
    compact(log)
    log.raise_log_start(log_start)
    assert log.segments[0].max_timestamp == NOW + 50  # its header stays, for the producer
    assert offset_of_max_timestamp(log, log.log_end) == (NOW + 10, 1, 0)
    assert by_time(log, NOW + 11) is None


@pytest.mark.parametrize("position", range(36))
def test_a_damaged_time_index_does_not_skip_a_record(open_log, disk, position):
    log = open_log(index_interval_bytes=100)
    for at in range(12):
        append(log, [b"x" * 60], timestamp=NOW + 100 * at)
    log.roll(NOW)
    append(log, timestamp=NOW + 5000)
    log.close()
    disk.flip_bit(f"{PATH}/{0:020d}.timeindex", position)
    log = open_log(index_interval_bytes=100, clean=True)
    for at in range(12):
        for time in (NOW + 100 * at, NOW + 100 * at - 50):
            assert by_time(log, time) == (NOW + 100 * at, at, 0)


@settings(deadline=None, max_examples=60)
@given(
    times=st.lists(st.lists(st.integers(NOW, NOW + 30), min_size=1, max_size=4), min_size=1, max_size=25),
    random=st.randoms(use_true_random=False),
    log_start=st.floats(0, 1),
    reopen=st.booleans(),
)
def test_lookup_by_time_equals_a_walk_over_all_records(times, random, log_start, reopen):
    disk = SimDisk(random)
    log = PartitionLog.open(disk, PATH, SMALL, now_ms=NOW)
    for batch in times:
        append(log, len(batch), timestamps=batch)
    start = int(log.log_end * log_start)
    if reopen:
        log.close()
        log = PartitionLog.open(disk, PATH, SMALL, clean=True, log_start=start, now_ms=NOW)
    log.raise_log_start(start)
    records = [(time, offset) for offset, time in enumerate(chain.from_iterable(times))][start:]
    for wanted in range(NOW - 1, NOW + 32):
        expected = next(((time, offset, 0) for time, offset in records if time >= wanted), None)
        assert by_time(log, wanted) == expected
    newest = offset_of_max_timestamp(log, log.log_end)
    expected_newest = max(records, key=lambda record: (record[0], -record[1]), default=None)
    assert (newest and (newest.timestamp, newest.offset)) == expected_newest
