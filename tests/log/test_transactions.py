"""Transactions in a log: last stable offset, aborted transactions, and verification."""

from __future__ import annotations

from random import Random

import pytest

from ottla.errors import ErrorCode, Refused, StorageFault
from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.log.transaction_index import AbortedTransaction as Aborted
from ottla.log.transaction_index import TransactionIndexDamaged, decode, encode
from ottla.sim.disk import SimDisk
from ottla.wire import marker as markers
from ottla.wire.batch import DELETE_HORIZON, read_header
from ottla.wire.marker import Marker
from ottla.wire.record_filter import RecordSpan, keep, keep_header, record_spans
from ottla.wire.records import iterate, open_batch
from tests.log.batches import NOW, PATH, append, make, stored
from tests.log.compacting import compact, put


def write(log: PartitionLog, producer_id: int, sequence: int = 0, count: int = 1, **options) -> int:
    offset = log.log_end
    append(log, count, producer_id=producer_id, sequence=sequence, transactional=True, **options)
    return offset


def end(log: PartitionLog, producer_id: int, *, committed: bool, producer_epoch: int = 0, coordinator_epoch=3) -> int:
    data, header = markers.build(producer_id, producer_epoch, Marker(committed, coordinator_epoch), NOW)
    return log.append(memoryview(data), header, leader_epoch=0, now_ms=NOW)


def index_files(disk: SimDisk) -> list[str]:
    return sorted(name for name in disk.listdir(PATH) if name.endswith(".txnindex"))


def test_a_marker_is_a_valid_control_record():
    data, header = markers.build(7, 2, Marker(committed=True, coordinator_epoch=9), NOW)
    assert header.is_control
    assert header.is_transactional
    (record,) = iterate(data, bytes_max=1000)
    assert (record.key, record.value) == (b"\0\0\0\1", b"\0\0\0\0\0\x09")
    assert markers.read(data) == Marker(True, 9)


def test_a_marker_with_a_delete_horizon_is_read_the_same():
    for committed in (True, False):
        data, _ = markers.build(7, 2, Marker(committed, coordinator_epoch=9), NOW)
        header, opened = open_batch(bytes(data), 1000)
        kept = [RecordSpan(*span) for span in record_spans(header, opened)]
        assert markers.read(keep(header, opened, kept, horizon_ms=NOW + 86_400_000)) == Marker(committed, 9)
    assert markers.read(keep_header(header)) is None


def test_a_log_copied_from_a_compacted_one_has_its_aborted_transactions(open_log):
    """As a follower that was away while its leader compacted: it still has the records, and learns their end now."""
    leader, follower = open_log(), PartitionLog.open(SimDisk(Random(2)), PATH, LogConfig(), now_ms=NOW)
    write(leader, 7)
    for batch in stored(leader):
        follower.append_replicated(memoryview(bytearray(batch)), NOW)
    end(leader, 7, committed=False)
    write(leader, 7, sequence=1)
    end(leader, 7, committed=True)
    leader.config = LogConfig(cleanup_compact=True, cleanup_delete=False, delete_retention_ms=86_400_000)
    for number in range(2):  # the second pass finds a marker of which no record is left, and notes when it may go
        put(leader, [(b"k", b"%d" % number)])
        compact(leader)
    assert any(read_header(batch).attributes & DELETE_HORIZON for batch in stored(leader))
    for batch in stored(leader):
        if read_header(batch).base_offset >= follower.log_end:
            follower.append_replicated(memoryview(bytearray(batch)), NOW)
    assert follower.transactions.aborted(0, follower.log_end) == [(7, 0)]


def test_an_open_transaction_holds_the_last_stable_offset_until_its_marker_is_committed(open_log):
    log = open_log()
    append(log, 2)
    write(log, 7, count=3)
    assert log.transactions.first_unstable == 2
    assert log.transactions.last_stable(5) == 2
    assert log.transactions.last_stable(1) == 1
    marker = end(log, 7, committed=True)
    assert log.transactions.first_unstable is None
    assert log.transactions.last_stable(marker) == 2  # the marker may yet be lost
    assert log.transactions.last_stable(marker + 1) == marker + 1


def test_the_oldest_of_several_counts(open_log):
    log = open_log()
    write(log, 1)
    write(log, 2)
    write(log, 3)
    assert log.transactions.last_stable(3) == 0
    end(log, 1, committed=False)
    assert log.transactions.last_stable(4) == 1
    end(log, 3, committed=True)
    assert log.transactions.last_stable(5) == 1
    end(log, 2, committed=True)
    assert log.transactions.last_stable(6) == 6


def test_readers_get_the_aborted_transactions_of_what_they_read(open_log, disk):
    log = open_log()
    write(log, 1)  # 0, aborted at 2
    write(log, 2)  # 1, committed at 3
    end(log, 1, committed=False)
    end(log, 2, committed=True)
    write(log, 1, 1)  # 4, aborted at 5
    end(log, 1, committed=False)
    assert log.transactions.aborted(0, 6) == [(1, 0), (1, 4)]
    assert log.transactions.aborted(0, 4) == [(1, 0)]
    assert log.transactions.aborted(3, 6) == [(1, 4)]
    assert log.transactions.aborted(2, 4) == [(1, 0)]
    assert log.transactions.aborted(3, 4) == []
    assert index_files(disk) == ["00000000000000000000.txnindex"]


def test_the_index_is_kafkas(open_log, disk):
    log = open_log()
    write(log, 5, count=2)
    end(log, 5, committed=False)
    data = disk.read(f"{PATH}/00000000000000000000.txnindex")
    assert data == bytes.fromhex("0000 0000000000000005 0000000000000000 0000000000000002 0000000000000003")


def test_an_abort_that_spans_segments_is_in_the_index_of_the_last_one(open_log, disk):
    log = open_log()
    write(log, 5)
    log.roll(NOW)
    write(log, 5, 1)
    log.roll(NOW)
    end(log, 5, committed=False)
    log.roll(NOW)
    append(log)
    assert index_files(disk) == ["00000000000000000002.txnindex"]
    assert log.transactions.aborted(0, 4) == [(5, 0)]
    assert log.transactions.aborted(1, 2) == [(5, 0)]
    assert log.transactions.aborted(3, 4) == []


@pytest.mark.parametrize("clean", [True, False])
def test_everything_comes_back_after_a_restart(open_log, disk, clean):
    log = open_log(segment_bytes=400)
    for number in range(6):
        write(log, number, count=2)
        if number % 3:
            end(log, number, committed=number % 3 == 1)
    known = [log.transactions.aborted(0, log.log_end), log.transactions.first_unstable, log.log_end]
    assert known[0] == [(2, 5), (5, 13)]
    if clean:
        log.close()
    log = open_log(segment_bytes=400, clean=clean, recovery_point=log.recovery_point)
    assert [log.transactions.aborted(0, log.log_end), log.transactions.first_unstable, log.log_end] == known
    producer = log.producers.get(1)
    assert producer.coordinator_epoch == 3


def test_truncation_reopens_transactions_that_ended_after_it(open_log, disk):
    log = open_log()
    write(log, 7)
    append(log)
    marker = end(log, 7, committed=False)
    append(log)
    log.truncate_to(marker, NOW)
    assert log.transactions.first_unstable == 0
    assert log.transactions.aborted(0, 9) == []
    assert index_files(disk) == []
    end(log, 7, committed=True)
    assert log.transactions.aborted(0, 9) == []
    assert log.transactions.last_stable(log.log_end) == log.log_end


def test_truncation_keeps_waiting_for_markers_before_it_and_for_no_others(open_log):
    log = open_log()
    write(log, 1)  # 0
    first = end(log, 1, committed=True)
    write(log, 2)  # 2
    second = end(log, 2, committed=True)
    append(log)
    log.truncate_to(second + 1, NOW)
    assert log.transactions.last_stable(first) == 0
    assert log.transactions.last_stable(second) == 2
    log.truncate_to(second, NOW)
    assert log.transactions.last_stable(second) == 2  # it is open again
    end(log, 2, committed=True)
    assert log.transactions.last_stable(log.log_end) == log.log_end


def test_indexes_go_with_their_segments(open_log, disk):
    log = open_log()
    for number in range(3):
        write(log, number)
        end(log, number, committed=False)
        log.roll(NOW)
    assert len(index_files(disk)) == 3
    log.raise_log_start(4)
    log.retain(NOW, log.log_end)
    assert index_files(disk) == ["00000000000000000004.txnindex"]
    assert log.transactions.aborted(4, 6) == [(2, 4)]
    log.truncate_fully_and_start_at(4, NOW)
    assert index_files(disk) == []
    assert log.transactions.aborted(0, 9) == []


def test_a_follower_knows_what_its_leader_knows(open_log, disk):
    leader = PartitionLog.open(SimDisk(Random(1)), PATH, LogConfig(), now_ms=NOW)
    write(leader, 1)
    write(leader, 2)
    end(leader, 1, committed=False)
    follower = open_log()
    piece = leader.read(0, 10_000, limit=leader.log_end)
    assert piece is not None
    follower.append_replicated(memoryview(bytearray(piece.load())), NOW)
    assert follower.transactions.aborted(0, 9) == leader.transactions.aborted(0, 9) == [(1, 0)]
    assert follower.transactions.first_unstable == 1


def test_a_damaged_transaction_index_is_rebuilt_from_the_log(open_log, disk):
    log = open_log()
    write(log, 1)
    log.roll(NOW)
    write(log, 1, 1)
    end(log, 1, committed=False)
    log.roll(NOW)
    append(log)
    log.close()
    path = f"{PATH}/00000000000000000001.txnindex"
    disk.write_atomic(path, disk.read(path)[:-1])
    log = open_log(clean=True)
    assert log.transactions.aborted(0, 4) == [(1, 0)]
    assert decode(disk.read(path))[0].first_offset == 0


def test_a_full_disk_delays_the_index_and_loses_nothing(open_log, disk):
    log = open_log()
    write(log, 1)
    end(log, 1, committed=False)
    write(log, 1, 1)
    index = log.transactions._indexes[0]
    index._torn = True  # as a refused append leaves it
    log.roll(NOW)
    log.sync()
    assert decode(disk.read(f"{PATH}/00000000000000000000.txnindex")) == index.entries
    assert not index._torn


def test_a_temporarily_unreadable_index_loses_no_record(open_log, disk, monkeypatch):
    """The marker stands in the log already: if that failed now, a follower would append it once more."""
    leader = PartitionLog.open(SimDisk(Random(1)), PATH, LogConfig(), now_ms=NOW)
    for producer_id in (1, 2):
        write(leader, producer_id)
        end(leader, producer_id, committed=False)
    data = stored(leader)
    log = open_log()
    log.append_replicated(memoryview(bytearray(b"".join(data[:2]))), NOW)
    log.close()
    log = open_log(clean=True)
    log.append_replicated(memoryview(bytearray(data[2])), NOW)

    def refuse(path: str) -> bytes:
        raise StorageFault(f"cannot read {path}: too many open files")

    with monkeypatch.context() as broken:
        broken.setattr(disk, "read", refuse)
        assert log.append_replicated(memoryview(bytearray(data[3])), NOW) == 4
    assert log.transactions.aborted(0, 4) == [(1, 0), (2, 2)]
    log.close()
    assert open_log(clean=True).transactions.aborted(0, 4) == [(1, 0), (2, 2)]


@pytest.mark.parametrize(
    "data", [b"\0", b"\0\1" + bytes(32), encode([Aborted(1, 5, 4, 9)]), encode([Aborted(1, 0, 4, 5)] * 2)]
)
def test_an_invalid_transaction_index_is_refused(data):
    with pytest.raises(TransactionIndexDamaged):
        decode(data)


# Compaction.


def test_compaction_leaves_only_what_was_committed_and_keeps_the_index_true(disk):
    log = PartitionLog.open(disk, PATH, LogConfig(cleanup_compact=True, cleanup_delete=False), now_ms=NOW)
    put(log, [(b"k", b"committed")])
    put(log, [(b"k", b"aborted")], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    end(log, 1, committed=False)
    put(log, [(b"k", b"open")], producer_id=2, producer_epoch=0, base_sequence=0, transactional=True)
    log.roll(NOW)
    put(log, [(b"l", b"1")])
    compact(log, last_stable=3)
    assert log.transactions.aborted(0, 3) == [(1, 1)]  # for whoever is inside it
    assert log.transactions.first_unstable == 3
    end(log, 2, committed=True)
    log.producers.expire(NOW + 1, 1)  # nobody's last batch is kept for its sequence
    for _ in range(2):
        put(log, [(b"m", b"1")])
        compact(log)
    assert log.transactions.aborted(0, 9) == []
    assert index_files(disk) == []
    reopened = PartitionLog.open(disk, PATH, log.config, now_ms=NOW, recovery_point=log.recovery_point)
    assert reopened.transactions.aborted(0, 9) == []


# Guards.


def header_of(producer_id: int = 7, epoch: int = 0, **options):
    return make(1, producer_id=producer_id, producer_epoch=epoch, sequence=0, **options)[1]


def test_a_transaction_cannot_begin_without_verification(open_log):
    log = open_log()
    header = header_of(transactional=True)
    with pytest.raises(Refused) as refused:
        log.transactions.check_append(header, None)
    assert refused.value.code == ErrorCode.invalid_txn_state
    guard = log.transactions.guard(header.producer_id, header.producer_epoch)
    log.transactions.check_append(header, guard)
    assert (
        log.transactions.guard(header.producer_id, header.producer_epoch) is guard
    )  # two batches that wait for the same answer
    write(log, 7)
    assert log.transactions.guard(header.producer_id, header.producer_epoch) is None
    log.transactions.check_append(header, None)


def test_a_marker_between_the_question_and_the_append_voids_the_guard(open_log):
    log = open_log()
    header = header_of(transactional=True)
    guard = log.transactions.guard(header.producer_id, header.producer_epoch)
    end(log, 7, committed=False)
    with pytest.raises(Refused):
        log.transactions.check_append(header, guard)
    write(log, 7)
    end(log, 7, committed=True)
    guard = log.transactions.guard(header.producer_id, header.producer_epoch)
    assert log.transactions.check_marker(7, 0, 3) is False  # written already, by the coordinator's first attempt
    with pytest.raises(Refused):
        log.transactions.check_append(header, guard)


def test_verification_of_a_newer_epoch_replaces_an_older_one(open_log):
    log = open_log()
    old, new = header_of(epoch=1, transactional=True), header_of(epoch=2, transactional=True)
    first = log.transactions.guard(7, 1)
    second = log.transactions.guard(7, 2)
    assert first is not second
    with pytest.raises(Refused):
        log.transactions.check_append(old, first)
    with pytest.raises(Refused):
        log.transactions.guard(7, 1)
    log.transactions.check_append(new, second)


def test_inside_a_transaction_a_producer_writes_nothing_else(open_log):
    log = open_log()
    write(log, 7)
    with pytest.raises(Refused) as refused:
        log.transactions.check_append(header_of(), None)
    assert refused.value.code == ErrorCode.invalid_txn_state
    log.transactions.check_append(header_of(8), None)


def test_markers_of_an_old_coordinator_epoch_are_refused(open_log):
    log = open_log()
    assert log.transactions.check_marker(7, 0, 3)  # nobody known: the marker itself fences
    write(log, 7, producer_epoch=4)
    for epoch, coordinator_epoch, code in ((3, 9, ErrorCode.invalid_producer_epoch),):
        with pytest.raises(Refused) as refused:
            log.transactions.check_marker(7, epoch, coordinator_epoch)
        assert refused.value.code == code
    assert log.transactions.check_marker(7, 4, 9)
    assert log.transactions.check_marker(7, 5, 9)
    end(log, 7, committed=True, producer_epoch=5, coordinator_epoch=9)
    assert not log.transactions.check_marker(7, 5, 9)
    with pytest.raises(Refused) as refused:
        log.transactions.check_marker(7, 5, 8)
    assert refused.value.code == ErrorCode.transaction_coordinator_fenced


def test_a_coordinator_is_fenced_by_its_successor_also_if_the_marker_was_written(open_log):
    log = open_log()
    write(log, 7)
    end(log, 7, committed=True, coordinator_epoch=5)
    assert not log.transactions.check_marker(7, 0, 5)  # the same coordinator asks again
    assert log.transactions.check_marker(7, 0, 6)
    end(log, 7, committed=True, coordinator_epoch=6)
    write(log, 7, sequence=1)  # the next transaction, in which the first coordinator's repetition arrives
    with pytest.raises(Refused) as refused:
        log.transactions.check_marker(7, 0, 5)
    assert refused.value.code == ErrorCode.transaction_coordinator_fenced


def test_a_marker_that_raised_the_epoch_does_not_end_the_next_transaction(open_log):
    log = open_log()
    write(log, 7, producer_epoch=0)
    assert log.transactions.check_marker(7, 1, 3, bumped=True)
    end(log, 7, committed=True, producer_epoch=1)
    assert not log.transactions.check_marker(7, 1, 3, bumped=True)
    assert not log.transactions.check_marker(7, 1, 4, bumped=True)  # a successor, too, has nothing to fence
    write(log, 7, producer_epoch=1)
    with pytest.raises(Refused) as refused:
        log.transactions.check_marker(7, 1, 3, bumped=True)
    assert refused.value.code == ErrorCode.invalid_producer_epoch
    assert log.transactions.check_marker(7, 1, 3)  # an administrator's, who ends what hangs
    assert log.transactions.check_marker(7, 2, 3, bumped=True)


def test_completed_transactions_are_forgotten_without_reads(open_log):
    log = open_log()
    for number in range(100):
        write(log, 7, sequence=number)
        end(log, 7, committed=True)
    log.release_memory(log.log_end - 1)
    assert len(log.transactions._ended) == 1
    assert log.transactions.last_stable(log.log_end - 1) == log.log_end - 2


def test_a_marker_is_appended_despite_a_damaged_transaction_index_and_the_index_is_rebuilt(open_log, disk):
    log = open_log()
    write(log, 1)
    end(log, 1, committed=False)
    log.close()
    path = f"{PATH}/00000000000000000000.txnindex"
    disk.write_atomic(path, disk.read(path)[:-1])
    log = open_log(clean=True)
    write(log, 1, 1)
    end(log, 1, committed=False)
    assert log.transactions.aborted(0, 4) == [(1, 0), (1, 2)]


def test_a_log_with_a_damaged_index_can_be_cut(open_log, disk):
    log = open_log()
    write(log, 1)
    end(log, 1, committed=False)
    write(log, 1, 1)
    end(log, 1, committed=False)
    log.close()
    path = f"{PATH}/00000000000000000000.txnindex"
    disk.write_atomic(path, disk.read(path)[:-1])
    log = open_log(clean=True)
    log.truncate_to(3, NOW)
    assert log.log_end == 3
    assert log.transactions.aborted(0, 3) == [(1, 0)]
    assert log.transactions.last_stable(3) == 2


def test_cutting_the_log_does_not_bring_the_last_stable_offset_back(open_log):
    log = open_log()
    for producer_id in (1, 2, 3):
        write(log, producer_id)
        end(log, producer_id, committed=True)
    append(log)
    assert log.transactions.last_stable(2) == 2
    log.truncate_to(6, NOW)
    assert log.transactions.last_stable(2) == 2
    assert log.transactions.last_stable(3) == 2
    assert log.transactions.last_stable(6) == 6
