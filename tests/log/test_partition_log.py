"""Appending, rolling, reading, truncating one log."""

from __future__ import annotations

import sys
from array import array

import pytest

from ottla.errors import ErrorCode, Refused, StorageFault
from ottla.log.checkpoints import read_partition_metadata
from ottla.log.log_config import LogConfig
from ottla.log.manifest import FILE_NAME as MANIFEST
from ottla.log.partition_log import PartitionLog
from ottla.runtime.disk import RealDisk
from ottla.wire.batch import read_header
from tests.log.batches import NOW, PATH, append, fill, make, stored


def refused(act, *args, **options):
    with pytest.raises(Refused) as caught:
        act(*args, **options)
    return caught.value.code


def bases(log):
    return [segment.base_offset for segment in log.segments]


# -- appending and rolling


def test_batches_get_the_next_offsets_and_the_leader_s_epoch(open_log):
    log = open_log()
    view, header = make(3)
    assert log.append(view, header, leader_epoch=5, now_ms=NOW) == 0
    view, header = make(2)
    assert log.append(view, header, leader_epoch=5, now_ms=NOW) == 3
    stamped = read_header(view)
    assert (stamped.base_offset, stamped.leader_epoch, log.log_end) == (3, 5, 5)
    assert (log.latest_epoch, log.epochs.entries) == (5, [(5, 0)])


def test_a_log_without_appends_has_no_file(disk, open_log):
    log = open_log()
    assert log.read(0, 100, limit=0) is None
    log.assign_epoch(3)
    assert log.prepare_sync() is None
    log.close()
    assert disk.listdir(PATH) == []


def test_the_first_append_writes_partition_metadata(disk):
    log = PartitionLog.open(disk, PATH, LogConfig(), topic_id=bytes(range(16)), now_ms=NOW)
    append(log)
    assert read_partition_metadata(disk, PATH) == bytes(range(16))
    log.sync()
    disk.crash()
    assert read_partition_metadata(disk, PATH) == bytes(range(16))


def test_a_segment_rolls_before_it_exceeds_its_size(disk, open_log):
    log = open_log(segment_bytes=250)
    fill(log, 7)
    assert len(log.segments) > 2
    assert all(segment.size <= 250 for segment in log.segments)
    names = disk.listdir(PATH)
    for base in bases(log)[:-1]:
        assert {f"{base:020d}.log", f"{base:020d}.index", f"{base:020d}.timeindex"} <= set(names)


def test_a_batch_larger_than_a_segment_is_refused(open_log):
    log = open_log(segment_bytes=100)
    assert refused(append, log, [b"x" * 200]) == ErrorCode.record_list_too_large
    append(log, [b"x"])


def test_a_segment_rolls_when_the_records_are_later_than_its_first_by_segment_ms(open_log):
    log = open_log(segment_ms=1000)
    append(log, timestamp=NOW)
    append(log, timestamp=NOW + 1000)
    assert bases(log) == [0]
    append(log, timestamp=NOW + 1001)
    assert bases(log) == [0, 2]


def test_records_without_time_roll_by_the_clock(open_log):
    log = open_log(segment_ms=1000)
    append(log, timestamp=-1, now_ms=NOW)
    append(log, timestamp=-1, now_ms=NOW + 1000)
    append(log, timestamp=-1, now_ms=NOW + 1001)
    assert bases(log) == [0, 2]


def test_a_segment_rolls_when_its_index_is_full(open_log):
    log = open_log(index_interval_bytes=0, segment_index_bytes=12 * 4)
    fill(log, 10)
    assert all(len(segment.offsets) <= 3 for segment in log.segments)


def test_a_segment_rolls_before_its_relative_offsets_overflow(open_log):
    log = open_log()
    append(log)
    view, header = make(2)
    wide = header._replace(last_offset_delta=2**31 - 1)
    log.append(view, wide, leader_epoch=0, now_ms=NOW)
    assert bases(log) == [0, 1]


def test_a_new_configuration_holds_for_the_segment_in_use(open_log):
    log = open_log()
    fill(log, 3)
    log.config = LogConfig(segment_bytes=log.active.size + 10, segment_ms=50)
    append(log)
    assert bases(log) == [0, 3]
    append(log, timestamp=NOW + 51)
    assert bases(log) == [0, 3, 4]


def test_a_new_configuration_holds_before_the_first_append_after_opening(open_log):
    log = open_log()
    fill(log, 3)
    log.close()
    log = open_log(clean=True)
    log.config = LogConfig(segment_bytes=log.active.size + 10)
    append(log)
    assert bases(log) == [0, 3]


# -- a failing disk


def test_an_append_on_a_full_disk_leaves_nothing_and_works_again_when_there_is_room(disk, open_log):
    log = open_log()
    kept = fill(log, 3)
    disk.capacity_bytes = disk.usage(PATH)[0] - disk.usage(PATH)[1] + 30
    assert refused(append, log) == ErrorCode.kafka_storage_error
    assert (log.log_end, stored(log)) == (3, kept)
    assert disk.open(f"{PATH}/{0:020d}.log").size() == sum(map(len, kept))
    disk.capacity_bytes = 2**40
    kept.append(append(log))
    assert stored(log) == kept


def test_a_log_that_cannot_undo_an_append_refuses_until_it_can(disk, open_log, monkeypatch):
    log = open_log()
    kept = fill(log, 3)
    file = log.active.log
    whole_append = type(file).append

    def half_append(self, *buffers):
        whole_append(self, bytes(buffers[0])[:20])
        disk.broken = True
        raise StorageFault("half of it")

    with monkeypatch.context() as patch:
        patch.setattr(type(file), "append", half_append)
        assert refused(append, log) == ErrorCode.kafka_storage_error
    assert refused(append, log) == ErrorCode.kafka_storage_error
    assert log.failure is not None
    assert stored(log) == kept, "reads go on"
    disk.broken = False
    kept.append(append(log))
    assert log.failure is None
    assert stored(log) == kept


def test_a_roll_on_a_full_disk_is_tried_again(disk, open_log):
    log = open_log(segment_bytes=250)
    kept = fill(log, 3)
    disk.capacity_bytes = 0
    assert refused(append, log) == ErrorCode.kafka_storage_error
    assert refused(append, log) == ErrorCode.kafka_storage_error
    disk.capacity_bytes = 2**40
    kept.append(append(log))
    assert bases(log) == [0, 3]
    assert stored(log) == kept
    assert stored(open_log(segment_bytes=250)) == kept


# -- what a follower appends


@pytest.fixture
def leader(tmp_path):
    return PartitionLog.open(RealDisk(), str(tmp_path / "leader-0"), LogConfig(), now_ms=NOW)


def test_a_follower_takes_whole_batches_as_they_are(open_log, leader):
    sent = [*fill(leader, 4, epoch=2), append(leader, 3, epoch=3, producer_id=9, sequence=0)]
    log = open_log(segment_bytes=250)
    assert log.append_replicated(memoryview(b"".join(sent) + sent[0][:40]), NOW) == 7
    assert stored(log) == sent
    assert log.epochs.entries == [(2, 0), (3, 4)]
    assert len(log.segments) > 1
    producer = log.producers.get(9)
    assert producer is not None
    assert producer.next_sequence == 3


def test_a_follower_stops_before_a_damaged_batch_and_refuses_it_at_the_front(open_log, leader):
    sent = fill(leader, 3)
    damaged = bytearray(sent[1])
    damaged[-1] ^= 1
    log = open_log()
    assert log.append_replicated(memoryview(sent[0] + damaged + sent[2]), NOW) == 1
    assert refused(log.append_replicated, memoryview(damaged + sent[2]), NOW) == ErrorCode.corrupt_message
    assert stored(log) == sent[:1]


def test_a_follower_refuses_offsets_it_has(open_log, leader):
    sent = fill(leader, 2)
    log = open_log()
    log.append_replicated(memoryview(b"".join(sent)), NOW)
    assert refused(log.append_replicated, memoryview(sent[1]), NOW) == ErrorCode.corrupt_message


def test_a_follower_may_begin_far_ahead(open_log):
    view, _ = make(2, base_offset=0)
    far = bytearray(view)
    far[:8] = (2**40).to_bytes(8, "big")
    log = open_log()
    log.append_replicated(memoryview(far), NOW)
    assert (log.log_end, bases(log)) == (2**40 + 2, [2**40])


# -- reading


def test_a_reader_gets_the_whole_batch_that_holds_its_offset(open_log):
    log = open_log()
    first, second = append(log, 3), append(log, 3)
    piece = log.read(4, 1000, limit=6)
    assert piece.load_nowait() == second
    piece = log.read(2, 1000, limit=6)
    assert piece.load_nowait() == first + second


def test_a_read_at_the_log_end_or_past_the_limit_is_empty(open_log):
    log = open_log()
    fill(log, 3)
    assert log.read(3, 1000, limit=3) is None
    assert log.read(2, 1000, limit=2) is None
    assert log.read(3, 1000, limit=1) is None


def test_offsets_outside_the_log_are_refused(open_log):
    log = open_log()
    fill(log, 5)
    log.raise_log_start(2)
    for offset in (-1, 1, 6):
        assert refused(log.read, offset, 1000, limit=5) == ErrorCode.offset_out_of_range


def test_no_batch_passes_the_limit(open_log):
    log = open_log()
    sent = [append(log, 3) for _ in range(4)]
    assert log.read(0, 10_000, limit=6).load_nowait() == b"".join(sent[:2])
    assert log.read(0, 10_000, limit=8).load_nowait() == b"".join(sent[:2]), "not even in part"
    assert log.read(6, 10_000, limit=8) is None


def test_a_reader_is_led_over_missing_offsets_to_the_next_segment(open_log, leader):
    log = open_log(segment_bytes=250)
    fill(log, 3)
    log.roll(NOW)
    leader.truncate_fully_and_start_at(10, NOW)
    ahead = append(leader)
    log.append_replicated(memoryview(ahead), NOW)
    assert log.read(5, 1000, limit=11).load_nowait() == ahead


def test_memory_of_indexes_is_given_back_and_taken_again(open_log):
    log = open_log(segment_bytes=250)
    sent = fill(log, 20)
    assert stored(log) == sent
    log.release_memory(log.log_end)
    assert sum(segment.offsets.loaded for segment in log.segments) <= 3
    assert stored(log) == sent


# -- truncating


def test_truncation_drops_the_batch_that_reaches_across(open_log):
    log = open_log()
    sent = [append(log, 3) for _ in range(3)]
    log.truncate_to(4, NOW)
    assert log.log_end == 3
    assert stored(log) == sent[:1]
    assert append(log, 3) is not None
    assert log.log_end == 6


def test_truncation_forgets_epochs_and_producers_behind_it(open_log):
    log = open_log(segment_bytes=250)
    for sequence in range(8):
        append(log, epoch=sequence // 4, producer_id=7, sequence=sequence)
    append(log, epoch=2, producer_id=8, sequence=0)
    log.truncate_to(3, NOW)
    assert log.epochs.entries == [(0, 0)]
    assert log.latest_epoch == 0
    producer = log.producers.get(7)
    assert producer is not None
    assert producer.next_sequence == 3
    assert log.producers.get(8) is None


def test_truncation_survives_a_crash_that_loses_everything_unsynced(disk, open_log):
    log = open_log(segment_bytes=250)
    kept = fill(log, 9)[:4]
    log.sync()
    log.truncate_to(4, NOW)
    for _ in range(5):
        disk.crash()
        log = open_log(segment_bytes=250, recovery_point=4)
        assert stored(log) == kept


def test_truncation_at_or_behind_the_end_does_nothing(open_log):
    log = open_log()
    kept = fill(log, 3)
    assert log.truncate_to(3, NOW) == []
    assert stored(log) == kept


def test_a_log_that_starts_over_begins_at_the_given_offset(disk, open_log):
    log = open_log()
    fill(log, 5, producer_id=7, sequence=0)
    for segment in log.truncate_fully_and_start_at(100, NOW):
        segment.unlink()
    assert (log.log_start, log.log_end, log.epochs.entries, len(log.producers)) == (100, 100, [], 0)
    disk.crash()
    log = open_log()
    assert (log.log_start, log.log_end) == (100, 100)
    append(log)
    assert log.log_end == 101


def test_a_real_disk_serves_as_well(tmp_path):
    def open_log(**options):
        return PartitionLog.open(RealDisk(open_files_max=3), str(tmp_path / "t-0"), config, now_ms=NOW, **options)

    config = LogConfig(segment_bytes=250, retention_bytes=400)
    log = open_log()
    sent = fill(log, 20)
    assert stored(log) == sent
    log.close()
    log = open_log(clean=True)
    assert log.recovery.clean
    assert stored(log) == sent
    dropped = log.retain(NOW, 20)
    for segment in dropped:
        segment.unlink()
    sent = [batch for batch in sent if read_header(batch).base_offset >= log.log_start]
    log.truncate_to(17, NOW)
    log = open_log()
    assert stored(log) == sent[:-3]
    log.close()


def torn(log, disk, monkeypatch):
    """An append has left part of a batch in the file, and it could not be cut off."""
    disk.capacity_bytes = disk.used() + 10
    monkeypatch.setattr(log.active.log, "truncate", lambda size: log.disk.open("nowhere/file").sync())
    with pytest.raises(Refused):
        append(log)
    disk.capacity_bytes = 2**40


def test_new_settings_do_not_make_a_log_forget_that_its_file_must_be_repaired_first(open_log, disk, monkeypatch):
    log = open_log()
    first = append(log)
    torn(log, disk, monkeypatch)
    monkeypatch.undo()
    log.config = LogConfig(retention_ms=1)
    second = append(log)
    assert stored(log) == [first, second]


def test_a_torn_end_is_truncated_before_its_segment_is_closed(open_log, disk, monkeypatch):
    log = open_log()
    first = append(log)
    torn(log, disk, monkeypatch)
    with pytest.raises(StorageFault):
        log.roll(NOW)
    monkeypatch.undo()
    log.roll(NOW)
    second = append(log)
    log.close()
    assert stored(open_log(clean=True)) == [first, second]


def test_a_truncation_that_could_not_be_synced_is_settled_before_the_next_append(disk, open_log):
    log = open_log()
    sent = fill(log, 10, epoch=1)
    sync = log.active.log.sync

    def refuse():
        raise StorageFault("cannot sync: Input/output error")

    log.active.log.sync = refuse
    with pytest.raises(StorageFault):
        log.truncate_to(5, NOW)
    assert (log.log_end, stored(log)) == (5, sent[:5])
    with pytest.raises(Refused):
        append(log, epoch=3)
    log.active.log.sync = sync
    sent[5:] = [append(log, epoch=3)]
    assert (log.log_end, stored(log), log.epochs.entries) == (6, sent, [(1, 0), (3, 5)])
    disk.process_died()
    assert stored(open_log()) == sent


# The files of the indexes, as Kafka's tools look for them.

INDEXES = ("index", "timeindex")


def index_files(disk, base=0):
    return [len(disk.read(f"{PATH}/{base:020d}.{kind}")) for kind in INDEXES]


def test_the_files_of_the_indexes_are_there_from_the_first_append(disk, open_log):
    log = open_log(segment_bytes=300)
    assert not disk.exists(f"{PATH}/{0:020d}.index"), "a partition that nobody ever wrote to costs no file"
    append(log)
    assert index_files(disk) == [0, 0]
    while len(log.segments) == 1:
        append(log)
    assert index_files(disk, log.active.base_offset) == [0, 0]
    assert index_files(disk)[1] == 12, "one entry for the largest timestamp, written when the segment was rolled"


@pytest.mark.parametrize("claimed", [True, False])
def test_after_a_crash_index_files_have_no_entries_for_lost_batches(disk, open_log, claimed):
    log = open_log(index_interval_bytes=100)
    for number in range(20):
        append(log, timestamp=NOW + number)
    log.close()
    full = index_files(disk)
    assert min(full) > 0
    file = disk.open(f"{PATH}/{0:020d}.log")
    file.truncate(file.size() // 2)
    if not claimed:
        disk.remove(f"{PATH}/{MANIFEST}")
    again = open_log(index_interval_bytes=100, clean=False)
    assert again.log_end == (20 if claimed else 10)
    assert (again.damage is not None) == claimed, "what the manifest claims is missing; without one it is a torn tail"
    left = index_files(disk)
    assert all(0 < now < before for now, before in zip(left, full, strict=True))
    offsets = array("i", disk.read(f"{PATH}/{0:020d}.index"))
    if sys.byteorder == "little":
        offsets.byteswap()
    assert max(offsets[0::2]) < 10
    assert max(offsets[1::2]) < again.segments[0].size == file.size()


def test_indexes_that_a_crash_took_are_written_again(disk, open_log):
    log = open_log()
    append(log)
    for kind in INDEXES:
        disk.remove(f"{PATH}/{0:020d}.{kind}")
    open_log(clean=False)
    assert index_files(disk) == [0, 12]


def test_a_log_truncated_to_zero_has_empty_indexes(disk, open_log):
    log = open_log(index_interval_bytes=100)
    for _ in range(20):
        append(log)
    log.close()
    assert min(index_files(disk)) > 0
    log = open_log(index_interval_bytes=100, clean=True)
    log.truncate_to(0, NOW)
    assert index_files(disk) == [0, 0]
