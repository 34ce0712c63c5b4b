"""Producer state of a log: sequences and epochs; a retry is neither lost nor duplicated."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import ErrorCode, Refused
from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.log.producers import Producers, SnapshotDamaged
from ottla.log.verify import verify_partition
from ottla.sim.disk import SimDisk
from ottla.wire.batch import CONTROL, SEQUENCE_MAX, TRANSACTIONAL, BatchHeader
from tests.log.batches import NOW, PATH, append


def header(sequence, records=1, *, producer_id=7, epoch=0, timestamp=NOW, attributes=0):
    return BatchHeader(
        0, 100, 0, 2, 0, attributes, records - 1, timestamp, timestamp, producer_id, epoch, sequence, records
    )


class Log:
    """Just enough of a log: offsets."""

    def __init__(self, ids_max=100):
        self.producers = Producers(ids_max)
        self.log_end = 0

    def append(self, batch, now_ms=NOW):
        known = self.producers.check(batch)
        if known is not None:
            return known.base_offset
        base = self.log_end
        self.producers.record(batch, base, now_ms)
        self.log_end += batch.last_offset_delta + 1
        return base

    def refuses(self, batch):
        with pytest.raises(Refused) as refused:
            self.append(batch)
        return refused.value.code


def test_batches_in_sequence_are_appended():
    log = Log()
    assert [log.append(header(0, 3)), log.append(header(3, 2)), log.append(header(5))] == [0, 3, 5]


def test_each_of_the_last_five_batches_is_answered_with_its_old_offset_when_retried():
    log = Log()
    offsets = [log.append(header(sequence, 2)) for sequence in range(0, 14, 2)]
    assert [log.append(header(sequence, 2)) for sequence in range(4, 14, 2)] == offsets[2:]
    assert log.log_end == 14


def test_a_retry_older_than_the_last_five_batches_is_called_a_duplicate():
    log = Log()
    for sequence in range(7):
        log.append(header(sequence))
    assert log.refuses(header(0)) == ErrorCode.duplicate_sequence_number


def test_a_gap_is_refused():
    log = Log()
    log.append(header(0))
    assert log.refuses(header(2)) == ErrorCode.out_of_order_sequence_number


def test_a_batch_that_overlaps_a_remembered_one_without_being_it_is_refused():
    log = Log()
    log.append(header(0, 3))
    assert log.refuses(header(0, 2)) == ErrorCode.out_of_order_sequence_number
    assert log.refuses(header(1, 3)) == ErrorCode.out_of_order_sequence_number


def test_an_unknown_producer_may_start_anywhere():
    assert Log().append(header(41)) == 0


def test_a_new_epoch_starts_at_zero():
    log = Log()
    log.append(header(0, 3))
    assert log.refuses(header(3, epoch=1)) == ErrorCode.out_of_order_sequence_number
    assert log.append(header(0, epoch=1)) == 3
    assert log.append(header(1, epoch=1)) == 4


def test_an_old_epoch_is_fenced():
    log = Log()
    log.append(header(0, epoch=3))
    assert log.refuses(header(1, epoch=2)) == ErrorCode.invalid_producer_epoch


def test_the_same_sequence_in_a_new_epoch_is_no_duplicate():
    log = Log()
    assert log.append(header(0)) == 0
    assert log.append(header(0, epoch=1)) == 1


def test_producers_do_not_know_of_each_other():
    log = Log()
    assert [log.append(header(0, producer_id=1)), log.append(header(0, producer_id=2))] == [0, 1]


def test_sequences_wrap_between_two_batches():
    log = Log()
    log.append(header(SEQUENCE_MAX))
    assert log.append(header(0)) == 1
    assert log.append(header(SEQUENCE_MAX)) == 0
    assert log.append(header(0)) == 1


def test_sequences_wrap_inside_a_batch():
    log = Log()
    log.append(header(SEQUENCE_MAX - 1, 4))
    assert log.append(header(2)) == 4
    assert log.append(header(SEQUENCE_MAX - 1, 4)) == 0


def test_a_retry_from_before_the_wrap_is_called_a_duplicate():
    log = Log()
    for _ in range(6):
        log.append(header(SEQUENCE_MAX - 1) if not log.log_end else header((SEQUENCE_MAX - 1 + log.log_end) % 2**31))
    assert log.refuses(header(SEQUENCE_MAX - 1)) == ErrorCode.duplicate_sequence_number


def test_silent_producers_expire_by_our_clock_whatever_they_stamp():
    log = Log()
    log.append(header(0, producer_id=1, timestamp=0), now_ms=NOW)
    log.append(header(0, producer_id=2, timestamp=NOW * 2), now_ms=NOW - 2000)
    assert log.producers.expire(NOW, 1000) == 1
    assert log.producers.get(1) is not None
    assert log.producers.get(2) is None


def test_a_producer_inside_a_transaction_does_not_expire():
    log = Log()
    log.append(header(0, attributes=TRANSACTIONAL))
    assert log.producers.expire(NOW * 2, 1) == 0
    log.producers.record(header(-1, attributes=TRANSACTIONAL | CONTROL), 1, NOW)
    assert log.producers.expire(NOW * 2, 1) == 1


def test_an_open_transaction_remembers_where_it_began():
    log = Log()
    log.append(header(0, 2))
    log.append(header(2, attributes=TRANSACTIONAL))
    log.append(header(3, attributes=TRANSACTIONAL))
    producer = log.producers.get(7)
    assert producer is not None
    assert producer.transaction_start == 2


def test_the_longest_silent_producers_make_room_for_new_ones():
    log = Log(ids_max=10)
    for producer_id in range(25):
        log.append(header(0, producer_id=producer_id), now_ms=NOW + producer_id)
    assert len(log.producers) <= 10
    assert log.producers.get(24) is not None
    assert log.producers.get(0) is None


def test_the_snapshot_is_kafka_s():
    producers = Producers(10)
    producers.record(header(4, 3, producer_id=0x0102, epoch=5, timestamp=0x0A0B), 20, NOW)
    assert producers.encode().hex() == (
        "0001" + "4edc88a2"
        "00000001" + "0000000000000102" + "0005" + "00000006" + "0000000000000016" + "00000002" + "0000000000000a0b"
        "ffffffff" + "ffffffffffffffff"
    )


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(0, SEQUENCE_MAX), st.booleans())))
def test_producer_state_loaded_from_a_snapshot_continues_unchanged(appended):
    log = Log()
    for producer_id, records, sequence, transactional in appended:
        known = log.producers.get(producer_id)
        batch = header(
            known.next_sequence if known else sequence,
            records,
            producer_id=producer_id,
            attributes=TRANSACTIONAL if transactional else 0,
        )
        log.append(batch)
    restored = Producers(100)
    restored.load(log.producers.encode(), NOW)
    assert restored.encode() == log.producers.encode()
    for producer_id in range(4):
        before, after = log.producers.get(producer_id), restored.get(producer_id)
        assert (before is None) == (after is None)
        if before and after:
            assert after.next_sequence == before.next_sequence
            assert after.transaction_start == before.transaction_start
            assert after.batches == before.batches[-1:]


@given(st.data())
def test_a_damaged_snapshot_is_refused(data):
    producers = Producers(10)
    producers.record(header(4, 3), 20, NOW)
    snapshot = bytearray(producers.encode())
    damage = data.draw(st.sampled_from(["flip", "cut", "grow"]))
    if damage == "flip":
        snapshot[data.draw(st.integers(0, len(snapshot) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    elif damage == "cut":
        del snapshot[data.draw(st.integers(0, len(snapshot) - 1)) :]
    else:
        snapshot += b"x"
    with pytest.raises(SnapshotDamaged):
        Producers(10).load(bytes(snapshot), NOW)


def filled(disk):
    log = PartitionLog.open(disk, PATH, LogConfig(segment_bytes=400), now_ms=NOW)
    for sequence in range(20):
        append(log, producer_id=7, sequence=sequence)
    return log


def snapshots_of(disk):
    return sorted(f"{PATH}/{name}" for name in disk.listdir(PATH) if name.endswith(".snapshot"))


def test_an_older_snapshot_instead_of_the_newest_is_found(caplog):
    disk = SimDisk(Random(1))
    log = filled(disk)
    log.close()
    *_, older, newest = snapshots_of(disk)
    disk.write_atomic(newest, disk.read(older))
    findings = verify_partition(disk, PATH, finished=True).findings
    assert [finding.path for finding in findings] == [newest]
    for clean in (True, False):
        again = PartitionLog.open(disk, PATH, log.config, clean=clean, now_ms=NOW)
        known = dict(again.producers.items())[7]
        assert known.next_sequence == 20
    assert f"{newest} was removed" in caplog.text


def test_a_damaged_snapshot_that_nobody_loads_is_found_too():
    disk = SimDisk(Random(1))
    log = filled(disk)
    log.close()
    first, second, *_ = snapshots_of(disk)
    disk.write_atomic(second, disk.read(first))
    log = PartitionLog.open(disk, PATH, log.config, clean=True, now_ms=NOW)
    damaged = [offset for offset in log.snapshots.offsets if log.snapshots.is_damaged(offset)]
    assert [f"{PATH}/{offset:020d}.snapshot" for offset in damaged] == [second]
    log.snapshots.discard(damaged[0])
    assert not disk.exists(second)
