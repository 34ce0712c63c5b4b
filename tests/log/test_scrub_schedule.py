"""What a pass of the scrub reads next, and how fast."""

from __future__ import annotations

import pytest

from ottla.log.scrub_schedule import SEGMENT_COST_BYTES, Progress, Schedule, status_of, status_text

WEEK_S = 7 * 86_400.0
SEGMENTS = {("a", 0): [0, 100, 250], ("a", 1): [], ("b", 0): [7], ("b", 10): [0]}


def next_of(schedule: Schedule, segments=SEGMENTS):
    """The next segment, as the scrubber asks for it; None at the end of a pass."""
    while (partition := schedule.next_partition(sorted(segments))) is not None:
        base = schedule.next_segment(partition, segments[partition])
        if base is not None:
            return (*partition, base)
        schedule.done_with(partition)
    return None


def whole_pass(schedule: Schedule, segments=SEGMENTS):
    seen = []
    while (cursor := next_of(schedule, segments)) is not None:
        seen.append(cursor)
        schedule.done(cursor)
    return seen


ALL = [("a", 0, 0), ("a", 0, 100), ("a", 0, 250), ("b", 0, 7), ("b", 10, 0)]


def test_a_pass_reads_every_segment_once():
    schedule = Schedule(Progress(), 0.0)
    assert whole_pass(schedule) == ALL
    assert next_of(schedule) is None
    schedule.finish(WEEK_S, 0.0, 5)
    assert whole_pass(schedule) == ALL
    assert schedule.passes == 1


@pytest.mark.parametrize("read", range(len(ALL) + 1))
def test_a_scrub_pass_continues_after_its_cursor_after_a_restart(read):
    schedule = Schedule(Progress(), 0.0)
    for _ in range(read):
        cursor = next_of(schedule)
        assert cursor is not None
        schedule.done(cursor)
    again = Schedule(Progress.decode(schedule.progress(9.0).encode()), 1000.0)
    assert whole_pass(again) == ALL[read:]
    assert again.progress(1001.0).elapsed_s == 10.0


def test_partitions_and_segments_may_come_and_go():
    schedule = Schedule(Progress(), 0.0)
    schedule.done(("a", 0, 100))
    assert whole_pass(schedule, {("a", 0): [300], ("aa", 0): [1], ("b", 0): []}) == [("a", 0, 300), ("aa", 0, 1)]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"passes":1}', b"\xff\xfe", b'{"cursor":[1]}'])
def test_an_unreadable_scrub_checkpoint_restarts_the_pass(data):
    assert Progress.decode(data) == Progress()


def test_a_pass_takes_the_interval():
    schedule = Schedule(Progress(), 0.0)
    schedule.counted([1_000_000] * 10)
    now = 0.0
    for _ in range(10):
        now += schedule.read(SEGMENT_COST_BYTES, WEEK_S, now)
        for _ in range(10):
            now += schedule.read(100_000, WEEK_S, now)
    assert now == pytest.approx(WEEK_S)
    assert schedule.ratio == pytest.approx(1.0)
    assert schedule.finish(WEEK_S, now, 5) == pytest.approx(0.0, abs=0.01)


def test_a_pass_that_was_quick_is_followed_by_a_pause():
    schedule = Schedule(Progress(), 100.0)
    assert schedule.finish(WEEK_S, 160.0, 5) == WEEK_S - 60
    assert schedule.progress(160.0) == Progress(1, 5)
    assert schedule.progress(100 + WEEK_S + 7).elapsed_s == pytest.approx(7)


def test_time_in_which_nothing_was_read_is_hardly_made_up_for():
    schedule = Schedule(Progress(), 0.0)
    schedule.counted([1_000_000])
    interval_s = 100.0
    rate = schedule.total_bytes / interval_s
    schedule.read(1000, interval_s, 0.0)
    assert schedule.read(100_000, interval_s, 60.0) == pytest.approx(100_000 / rate - 1)


def test_uncounted_bytes_delay_a_pass_by_at_most_one_interval():
    schedule = Schedule(Progress(), 0.0)
    schedule.counted([])
    assert schedule.read(10_000_000, 100.0, 0.0) <= 100.0


def test_the_status_is_read_as_it_was_written():
    assert status_of(status_text({"progress": "0.420", "passes": 3})) == {"progress": "0.420", "passes": "3"}
    assert status_of("") == {}


def test_a_scrub_that_read_nothing_does_not_count_as_a_pass():
    schedule = Schedule(Progress(3, 1234), 0.0)
    assert whole_pass(schedule, {("a", 0): []}) == []
    assert not schedule.has_read
    schedule.restart_pass(50.0)
    assert schedule.progress(60.0) == Progress(3, 1234, elapsed_s=10.0)
    schedule.read(SEGMENT_COST_BYTES, WEEK_S, 60.0)
    assert schedule.has_read
