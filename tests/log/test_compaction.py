"""Compaction: kept and removed records, by the rules of the topic's configuration."""

from __future__ import annotations

from random import Random

import cramjam
import pytest

from ottla.errors import Refused
from ottla.log import compaction
from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.log.scan import headers
from ottla.sim.disk import SimDisk
from ottla.wire.batch import CODECS, DELETE_HORIZON, check
from ottla.wire.records import Record, build_batch, iterate, open_batch, seal
from tests.log.batches import NOW, served, stored
from tests.log.compacting import compact, contents, headers_of, job_for, put, run

PATH = "data/topic-0"
DAY_MS = 86_400_000


@pytest.fixture
def disk():
    return SimDisk(Random(1))


@pytest.fixture
def open_log(disk):
    def open_log(**config):
        settings = {"cleanup_compact": True, "cleanup_delete": False, "index_interval_bytes": 0, **config}
        return PartitionLog.open(disk, PATH, LogConfig(**settings), now_ms=NOW)

    return open_log


@pytest.fixture
def log(open_log):
    return open_log()


def test_the_last_record_of_every_key_stays_at_its_offset(log):
    put(log, [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")])
    put(log, [(b"c", b"1"), (b"b", b"2")])
    put(log, [(b"d", b"1")])
    summary = compact(log)
    assert contents(log) == [(2, b"a", b"2"), (3, b"c", b"1"), (4, b"b", b"2"), (5, b"d", b"1")]
    assert (log.log_start, log.log_end, log.cleaned) == (0, 6, 6)
    assert summary is not None
    assert (summary.records_seen, summary.records_kept) == (6, 4)


def test_batches_keep_their_bounds_when_they_lose_records(log):
    put(
        log, [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", b"2")], producer_id=7, producer_epoch=3, base_sequence=40
    )
    put(log, [(b"b", b"3")], producer_id=7, producer_epoch=3, base_sequence=44)
    compact(log)
    first = headers_of(log)[0]
    assert (first.base_offset, first.last_offset, first.record_count) == (0, 3, 1)
    assert (first.producer_id, first.producer_epoch, first.base_sequence, first.last_sequence) == (7, 3, 40, 43)


@pytest.mark.parametrize("codec", CODECS)
def test_batches_of_every_codec_are_read_and_written_in_their_own(log, codec):
    put(log, [(b"k%d" % (at % 50), b"value %d" % at) for at in range(200)], codec=codec)
    put(log, [(b"other", b"x")])
    compact(log)
    assert [offset for offset, _, _ in contents(log)] == [*range(150, 200), 200]
    assert headers_of(log)[0].codec == CODECS.index(codec)


def test_snappy_without_a_frame_is_read(log):
    records = [Record(at, NOW, b"k%d" % (at % 3), b"v%d" % at) for at in range(9)]
    header, plain = open_batch(build_batch(records, codec="snappy"), 2**20)
    view = memoryview(bytearray(seal(header, bytes(cramjam.snappy.compress_raw(plain)))))
    log.append(view, check(view), leader_epoch=0, now_ms=NOW)
    compact(log)
    assert [offset for offset, _, _ in contents(log)] == [6, 7, 8]


def test_the_active_segment_is_never_compacted(log):
    put(log, [(b"a", b"1")])
    put(log, [(b"a", b"2")])
    assert compact(log, roll=False) is None
    log.roll(NOW)
    put(log, [(b"a", b"3")])
    compact(log, roll=False)
    assert contents(log) == [(1, b"a", b"2"), (2, b"a", b"3")]


def test_records_after_the_last_stable_offset_are_not_compacted(log):
    for value in (b"1", b"2", b"3", b"4"):
        put(log, [(b"a", value)])
    log.roll(NOW)
    compact(log, last_stable=2)
    assert contents(log) == [(1, b"a", b"2"), (2, b"a", b"3"), (3, b"a", b"4")]
    assert log.cleaned == 2


def test_no_record_is_removed_because_of_an_unflushed_newer_one(log):
    put(log, [(b"a", b"1")])
    log.roll(NOW)
    log.sync()
    put(log, [(b"a", b"2")])
    log.roll(NOW)
    job = job_for(log)
    assert job is not None
    assert job.end == 1
    run(log, job)
    assert contents(log) == [(0, b"a", b"1"), (1, b"a", b"2")]


def test_records_younger_than_the_minimal_lag_stay(open_log):
    log = open_log(min_compaction_lag_ms=1000)
    put(log, [(b"a", b"1"), (b"a", b"2")], now_ms=NOW - 5000)
    log.roll(NOW)
    put(log, [(b"a", b"3"), (b"a", b"4")], now_ms=NOW - 500)
    compact(log)
    assert contents(log) == [(1, b"a", b"2"), (2, b"a", b"3"), (3, b"a", b"4")]
    compact(log, now_ms=NOW + 5000)
    assert contents(log) == [(3, b"a", b"4")]


def test_a_log_is_worth_compacting_when_enough_of_it_is_dirty(open_log):
    log = open_log(min_cleanable_dirty_ratio=0.5)
    assert compaction.dirt(log, 0, NOW) is None
    put(log, [(b"%d" % at, b"x" * 100) for at in range(30)])
    log.roll(NOW)
    found = compaction.dirt(log, log.log_end, NOW)
    assert found is not None
    assert (found.ratio, found.worthwhile, found.end) == (1.0, True, 30)
    compact(log)
    assert compaction.dirt(log, log.log_end, NOW) is None
    put(log, [(b"1", b"x" * 100)])
    log.roll(NOW)
    found = compaction.dirt(log, log.log_end, NOW)
    assert found is not None
    assert found.ratio < 0.1
    assert not found.worthwhile


def test_the_maximal_lag_makes_a_log_worth_compacting_and_rolls_its_active_segment(open_log):
    log = open_log(min_cleanable_dirty_ratio=0.99, max_compaction_lag_ms=60_000)
    put(log, [(b"%d" % at, b"x" * 100) for at in range(30)])
    compact(log)
    put(log, [(b"1", b"2")], now_ms=NOW)
    assert not compaction.must_roll(log, NOW + 60_000)
    assert compaction.must_roll(log, NOW + 60_001)
    log.roll(NOW + 60_001)
    assert not compaction.must_roll(log, NOW + 60_001)
    found = compaction.dirt(log, log.log_end, NOW + 60_000)
    assert found is not None
    assert not found.worthwhile
    found = compaction.dirt(log, log.log_end, NOW + 60_001)
    assert found is not None
    assert found.overdue
    assert found.worthwhile


def test_the_dirtiest_log_is_compacted_first_and_no_log_starves():
    choice: compaction.FairChoice[str] = compaction.FairChoice()
    dirty = {"always dirty": 1.0, "half": 0.5, "little": 0.1}
    assert [choice.choose(dirty) for _ in range(4)] == ["always dirty", "half", "little", "always dirty"]
    assert choice.choose({"always dirty": 1.0}) == "always dirty"
    assert choice.choose({}) is None


# -- tombstones


def test_a_tombstone_stays_for_its_time_and_then_goes(open_log):
    log = open_log(delete_retention_ms=DAY_MS)
    put(log, [(b"a", b"1"), (b"b", b"1")], now_ms=NOW - 10 * DAY_MS)
    put(log, [(b"a", None)], now_ms=NOW - 9 * DAY_MS)
    put(log, [(b"c", b"1")])
    compact(log, now_ms=NOW)
    assert contents(log) == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
    tombstone = headers_of(log)[1]
    assert tombstone.attributes & DELETE_HORIZON
    assert tombstone.base_timestamp == NOW + DAY_MS
    put(log, [(b"d", b"1")])
    compact(log, now_ms=NOW + DAY_MS - 1)
    assert (2, b"a", None) in contents(log)
    put(log, [(b"e", b"1")])
    compact(log, now_ms=NOW + DAY_MS)
    assert [key for _, key, _ in contents(log)] == [b"b", b"c", b"d", b"e"]


def test_records_keep_their_times_beside_a_tombstone_that_waits(log):
    times = [NOW - 5000, NOW - 3000, NOW - 4000]
    batch = build_batch([Record(at, time, b"k%d" % at, None if at == 1 else b"v") for at, time in enumerate(times)])
    view = memoryview(bytearray(batch))
    log.append(view, check(view), leader_epoch=0, now_ms=NOW)
    put(log, [(b"other", b"x")])
    compact(log, now_ms=NOW)
    kept = stored(log)[0]
    assert [record.timestamp for record in iterate(kept, bytes_max=2**20)] == times
    assert check(kept).max_timestamp == NOW - 3000


def test_the_horizon_of_a_batch_is_set_once(open_log):
    log = open_log(delete_retention_ms=DAY_MS)
    put(log, [(b"a", None)])
    put(log, [(b"b", b"1")])
    compact(log, now_ms=NOW)
    before = stored(log)[0]
    put(log, [(b"b", b"2")])
    compact(log, now_ms=NOW + 1000)
    assert stored(log)[0] == before


# -- what stays of a batch without records


def test_the_last_batch_of_a_live_producer_stays_as_a_header_without_records(log):
    put(log, [(b"a", b"1"), (b"b", b"1")], producer_id=7, producer_epoch=0, base_sequence=0)
    put(log, [(b"a", b"2"), (b"b", b"2")], producer_id=8, producer_epoch=0, base_sequence=0)
    put(log, [(b"a", b"3"), (b"b", b"3")])
    put(log, [(b"a", b"4"), (b"b", b"4")])
    compact(log)
    assert [(header.producer_id, header.record_count, header.size) for header in headers_of(log)[:2]] == [
        (7, 0, 61),
        (8, 0, 61),
    ]
    assert [header.base_offset for header in headers_of(log)] == [0, 2, 6]
    log.producers.clear()
    put(log, [(b"c", b"1")])
    compact(log)
    assert [header.base_offset for header in headers_of(log)] == [6, 8]


def test_a_producer_continues_after_its_records_were_compacted_and_the_broker_restarted(open_log, log):
    for sequence in range(4):
        put(log, [(b"a", b"%d" % sequence)], producer_id=7, producer_epoch=0, base_sequence=sequence)
    put(log, [(b"a", b"last")])
    compact(log)
    log.snapshots.prune([])
    again = open_log()
    producer = again.producers.get(7)
    assert producer is not None
    assert producer.next_sequence == 4


def test_a_segment_reaches_up_to_the_next_one_whatever_it_loses(open_log):
    log = open_log(segment_bytes=400)
    for at in range(40):
        put(log, [(b"k%d" % (at % 2), b"x" * 100)])
    compact(log)
    ends = []
    for segment in log.segments[:-1]:
        *_, (_, last) = headers(segment.log, 0, segment.size)
        ends.append(last.next_offset)
    assert ends == [segment.base_offset for segment in log.segments[1:]]
    assert contents(log) == [(38, b"k0", b"x" * 100), (39, b"k1", b"x" * 100)]


# -- segments


def test_small_segments_become_one(open_log):
    log = open_log(segment_bytes=10_000)
    for at in range(20):
        put(log, [(b"k%d" % at, b"x" * 100)])
        log.roll(NOW)
    assert len(log.segments) == 21
    compact(log)
    assert len(log.segments) == 2
    assert len(contents(log)) == 20


def test_a_compacted_segment_is_not_larger_than_a_segment_may_be(open_log):
    log = open_log(segment_bytes=1000)
    for at in range(40):
        put(log, [(b"k%d" % at, b"x" * 100)])
        log.roll(NOW)
    compact(log)
    assert len(log.segments) > 5
    assert all(segment.size <= 1000 for segment in log.segments)
    assert len(contents(log)) == 40


def test_a_segment_that_would_not_change_is_left_alone(open_log):
    log = open_log(segment_bytes=1000)
    for at in range(20):
        put(log, [(b"k%d" % at, b"x" * 600)])
    compact(log)
    untouched = list(log.segments[:-1])
    put(log, [(b"k19", b"y")])
    summary = compact(log)
    assert log.segments[:18] == untouched[:18]
    assert summary is not None
    assert summary.written_bytes < 2000


def test_indexes_of_a_compacted_segment_are_those_of_its_batches(open_log):
    log = open_log(index_interval_bytes=4096)
    for at in range(600):
        put(log, [(b"k%d" % (at % 400), b"x" * 100)], timestamp=NOW + at)
    compact(log)
    segment = log.segments[0]
    segment.load_indexes()
    loaded = (list(segment.offsets.offsets), list(segment.offsets.positions), list(segment.times.timestamps))
    assert len(loaded[0]) > 10
    assert segment.max_timestamp == NOW + 599
    segment.rebuild_indexes()
    assert loaded == (
        list(segment.offsets.offsets),
        list(segment.offsets.positions),
        list(segment.times.timestamps),
    )


# -- bounds


def test_more_keys_than_the_map_has_room_for_take_several_passes(log):
    for value in range(3):
        for at in range(200):
            put(log, [(b"k%d" % at, b"%d" % value)])
    log.roll(NOW)
    log.sync()
    passes = 0
    while log.cleaned < 600:
        before = log.cleaned
        compact(log, map_bytes=24 * 50)
        assert before < log.cleaned
        passes += 1
    assert passes > 5
    assert contents(log) == [(400 + at, b"k%d" % at, b"2") for at in range(200)]


def test_a_batch_with_more_keys_than_the_map_has_room_for_is_compacted_too(log):
    put(log, [(b"k%d" % (at % 100), b"%d" % at) for at in range(300)])
    log.roll(NOW)
    while log.cleaned < 300:
        compact(log, map_bytes=1)
    assert [offset for offset, _, _ in contents(log)] == list(range(200, 300))


def test_records_without_a_key_go(log):
    put(log, [(b"a", b"1"), (None, b"2"), (b"b", b"3")])
    summary = compact(log)
    assert [offset for offset, _, _ in contents(log)] == [0, 2]
    assert summary is not None
    assert summary.records_without_key == 1


def test_a_damaged_batch_ends_the_pass_and_leaves_the_log_as_it_is(disk, log):
    put(log, [(b"a", b"1")])
    put(log, [(b"a", b"2")])
    log.roll(NOW)
    log.sync()
    job = job_for(log)
    assert job is not None
    disk.flip_bit(log.segments[0].log.path, 65)
    with pytest.raises(Refused):
        run(log, job)
    assert [name for name in disk.listdir(PATH) if "cleaned" in name or "swap" in name] == []
    assert len(log.segments) == 2


# -- replicas and recovery


def test_the_segments_of_a_follower_are_contiguous_where_the_leader_has_no_records(disk, open_log):
    leader = open_log()
    for at in range(60):
        put(leader, [(b"k%d" % (at % 2), b"x" * 100)])
    put(leader, [(b"other", b"x" * 100)])
    compact(leader)
    config = LogConfig(segment_bytes=180, cleanup_compact=True)
    follower = PartitionLog.open(disk, "data/topic-1", config, now_ms=NOW)
    for batch in stored(leader):
        follower.append_replicated(memoryview(batch), NOW)
    assert contents(follower) == contents(leader)
    assert [segment.base_offset for segment in follower.segments] == [0, 59, 60]
    follower.sync()
    again = PartitionLog.open(disk, "data/topic-1", config, now_ms=NOW)
    assert contents(again) == contents(leader)
    assert again.recovery.notes == ()


def test_a_hole_between_two_segments_is_named_in_a_compacted_log_as_in_any_other(disk, open_log):
    log = open_log()
    for at in range(6):
        put(log, [(b"k%d" % at, b"v")])
        log.roll(NOW)
    disk.open(log.segments[3].log.path).truncate(0)
    again = open_log()
    assert again.log_end == 6
    assert again.damage is not None
    assert again.damage.missing == ((3, 4),)
    assert sorted(served(again)) == [0, 1, 2, 4, 5]
