"""Compaction and transactions: aborted records are removed at once, markers after the delete horizon."""

from __future__ import annotations

import struct
from random import Random

import pytest

from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.log.transaction_index import ABORT, COMMIT, AbortedTransaction
from ottla.sim.disk import SimDisk
from ottla.wire.batch import DELETE_HORIZON, check
from ottla.wire.records import Record, build_batch
from tests.log.batches import NOW
from tests.log.compacting import compact as compacted
from tests.log.compacting import contents, headers_of, job_for, put, run

PATH = "data/topic-0"
RETENTION_MS = 1000
CONFIG = LogConfig(cleanup_compact=True, cleanup_delete=False, delete_retention_ms=RETENTION_MS)


@pytest.fixture
def log():
    return PartitionLog.open(SimDisk(Random(3)), PATH, CONFIG, now_ms=NOW)


def within(log, producer_id, sequence, pairs) -> int:
    return put(log, pairs, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True)


def end(log, producer_id, kind) -> int:
    record = Record(0, NOW, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))
    batch = build_batch([record], producer_id=producer_id, producer_epoch=0, transactional=True, control=True)
    view = memoryview(bytearray(batch))
    return log.append(view, check(view), leader_epoch=0, now_ms=NOW)


def compact(log, aborted=(), *, now_ms=NOW):
    """Every producer has moved on, so that only what transactions need is kept for them."""
    log.roll(NOW)
    log.sync()
    log.producers.clear()
    job = job_for(log, now_ms=now_ms)
    assert job is not None
    return run(log, job._replace(aborted=list(aborted)))


def offsets(log) -> list[int]:
    return [header.base_offset for header in headers_of(log)]


def test_aborted_records_are_removed_and_do_not_hide_committed_ones(log):
    put(log, [(b"a", b"committed")])
    first = within(log, 7, 0, [(b"a", b"aborted")])
    last = end(log, 7, ABORT)
    put(log, [(b"b", b"1")])
    compact(log, [AbortedTransaction(7, first, last, last + 1)])
    assert contents(log) == [(0, b"a", b"committed"), (3, b"b", b"1")]


def test_the_marker_of_an_aborted_transaction_stays_until_its_own_horizon(log):
    first = within(log, 7, 0, [(b"a", b"aborted")])
    last = end(log, 7, ABORT)
    aborted = [AbortedTransaction(7, first, last, last + 1)]
    put(log, [(b"b", b"1")])
    compact(log, aborted)
    assert offsets(log) == [1, 2]
    assert not headers_of(log)[0].attributes & DELETE_HORIZON  # there were records of it a moment ago
    put(log, [(b"c", b"1")])
    compact(log, aborted)
    marker = headers_of(log)[0]
    assert marker.is_control
    assert marker.attributes & DELETE_HORIZON
    assert marker.base_timestamp == NOW + RETENTION_MS
    put(log, [(b"d", b"1")])
    compact(log, aborted, now_ms=NOW + RETENTION_MS - 1)
    assert offsets(log)[0] == 1
    put(log, [(b"e", b"1")])
    compact(log, aborted, now_ms=NOW + RETENTION_MS)
    assert offsets(log) == [2, 3, 4, 5]


def test_the_marker_of_a_committed_transaction_stays_as_long_as_a_record_of_it(log):
    within(log, 7, 0, [(b"a", b"1"), (b"b", b"1")])
    end(log, 7, COMMIT)
    put(log, [(b"a", b"2")])
    compact(log)
    compacted = contents(log)
    assert compacted == [(1, b"b", b"1"), (3, b"a", b"2")]
    put(log, [(b"b", b"2")])
    compact(log, now_ms=NOW + RETENTION_MS * 10)
    assert offsets(log) == [2, 3, 4]
    assert not headers_of(log)[0].attributes & DELETE_HORIZON
    put(log, [(b"c", b"2")])
    compact(log, now_ms=NOW + RETENTION_MS * 10)
    assert headers_of(log)[0].attributes & DELETE_HORIZON
    put(log, [(b"d", b"2")])
    compact(log, now_ms=NOW + RETENTION_MS * 11)
    assert offsets(log) == [3, 4, 5, 6]


def test_the_last_marker_of_a_producer_that_wrote_nothing_since_stays(log):
    within(log, 7, 0, [(b"a", b"1")])
    end(log, 7, COMMIT)
    put(log, [(b"a", b"2")])
    put(log, [(b"b", b"2")])
    log.roll(NOW)
    for later in (0, 1, 2, 3):
        log.sync()
        producer = log.producers.get(7)
        assert producer is not None
        producer.batches.clear()  # as after a snapshot that knows only the epoch
        job = job_for(log, now_ms=NOW + later * RETENTION_MS)
        assert job is not None
        run(log, job)
        put(log, [(b"c", b"%d" % later)])
        log.roll(NOW)
    assert headers_of(log)[0].is_control
    assert headers_of(log)[0].record_count == 0


def test_two_transactions_of_one_producer_are_distinguished(log):
    first = within(log, 7, 0, [(b"a", b"aborted")])
    last = end(log, 7, ABORT)
    within(log, 7, 1, [(b"a", b"committed")])
    end(log, 7, COMMIT)
    compact(log, [AbortedTransaction(7, first, last, last + 1)])
    assert contents(log) == [(2, b"a", b"committed")]


def one_aborted_behind_one_that_is_open(log) -> int:
    """Where the last stable offset stays, in the middle of a segment that can be compacted up to there."""
    put(log, [(b"a", b"old"), (b"b", b"committed")])
    put(log, [(b"a", b"new")])
    opened = within(log, 1, 0, [(b"c", b"open")])
    within(log, 2, 0, [(b"b", b"aborted")])
    end(log, 2, ABORT)
    compacted(log, last_stable=log.transactions.last_stable(log.log_end))
    return opened


def test_a_pass_that_ends_inside_a_segment_keeps_what_was_aborted_behind_its_end(log):
    opened = one_aborted_behind_one_that_is_open(log)
    assert log.cleaned == opened
    assert log.transactions.aborted(0, log.log_end) == [(2, opened + 1)]
    assert (opened + 1, b"b", b"aborted") in contents(log)


def test_aborts_after_the_end_of_a_pass_are_known_in_the_next_pass(log):
    one_aborted_behind_one_that_is_open(log)
    end(log, 1, COMMIT)
    put(log, [(b"d", b"1")])
    compacted(log)
    assert [pair[1:] for pair in contents(log)] == [
        (b"b", b"committed"), (b"a", b"new"), (b"c", b"open"), (b"d", b"1"),
    ]  # fmt: skip
