"""Slices of a log: whole batches within a limit, also if the log changes before they are loaded."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from ottla.errors import ErrorCode, Refused, StorageFault
from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.runtime.disk import RealDisk
from ottla.wire.batch import batches
from tests.log.batches import NOW, append, fill


def refused(act, *args, **options):
    with pytest.raises(Refused) as caught:
        act(*args, **options)
    return caught.value.code


def test_the_first_batch_comes_whole_however_little_is_asked_for(open_log):
    log = open_log()
    sent = fill(log, 3)
    assert log.read(0, 1, limit=3).load_nowait() == sent[0]


def test_no_batch_is_torn_when_there_is_less_room_than_it_needs(open_log):
    log = open_log()
    sent = fill(log, 3)
    for room in (-1, 0, 20, len(sent[0]) - 1):
        piece = log.read(0, room, limit=3, whole_first_batch=False)
        assert piece.located
        assert piece.length == 0, f"{room} bytes"
    for room in range(len(sent[0]), 3 * len(sent[0]) + 1):
        whole = room // len(sent[0])
        for first in (False, True):
            assert log.read(0, room, limit=3, whole_first_batch=first).load_nowait() == b"".join(sent[:whole])


def test_a_cold_slice_respects_the_limit_that_is_left_when_it_is_located(disk, open_log):
    log = open_log(segment_bytes=10_000)
    sent = fill(log, 9)
    log.close()
    log = open_log(clean=True, segment_bytes=10_000)
    disk.cold = 1.0
    size = len(sent[0])
    for room, first, length in [
        (2 * size, False, 2 * size),
        (size - 1, False, 0),
        (size - 1, True, size),
        (0, False, 0),
    ]:
        piece = log.read(1, 5 * size, limit=9, whole_first_batch=True)
        assert not piece.located
        assert piece.fit(room, whole_first_batch=first) == piece.length == length
        assert piece.load() == b"".join(sent[1:])[:length]
    piece = log.read(1, 5 * size, limit=9)
    assert piece.fit(5 * size, whole_first_batch=True) == 5 * size
    assert piece.fit(3 * size, whole_first_batch=False) == 3 * size, "what came before it took more than was thought"


def test_a_long_read_ends_with_a_whole_batch(open_log):
    log = open_log(index_interval_bytes=0)
    sent = fill(log, 20)
    data = log.read(3, 500, limit=20).load_nowait()
    whole = [header for _, header in batches(data)]
    assert sum(header.size for header in whole) == len(data)
    assert data == b"".join(sent[3 : 3 + len(whole)])


def test_the_offset_behind_a_small_slice_is_read_with_it(disk, open_log):
    log = open_log()
    fill(log, 9)
    for room, behind in ((1, 4), (10_000, 9)):
        piece = log.read(3, room, limit=9)
        assert piece.end_offset() == behind
        piece.load_nowait()
        before = disk.bytes_read.copy()
        assert piece.end_offset() == behind
        assert disk.bytes_read == before


def test_a_reader_at_the_tail_is_not_sent_what_is_appended_after_it_asked(open_log):
    log = open_log()
    sent = fill(log, 2)
    piece = log.read(0, 10_000, limit=log.log_end)
    fill(log, 2)
    assert piece.load_nowait() == b"".join(sent)


def test_sequential_reads_need_no_index_lookup(disk, open_log):
    log = open_log()
    fill(log, 50)
    log.read(10, 10_000, limit=50).load_nowait()
    more = fill(log, 2)
    before = disk.bytes_read.copy()
    piece = log.read(50, 10_000, limit=52)
    assert disk.bytes_read == before
    assert piece.load_nowait() == b"".join(more)
    before = disk.bytes_read.copy()
    log.read(30, 10_000, limit=52)
    assert disk.bytes_read != before, "where another offset lies has to be looked up"


def test_a_cold_read_is_located_and_loaded_in_a_thread(disk, open_log):
    log = open_log(segment_bytes=250)
    sent = fill(log, 9)
    log.close()
    log = open_log(clean=True, segment_bytes=250)
    disk.cold = 1.0
    piece = log.read(1, 10_000, limit=9)
    assert not piece.located
    assert piece.load_nowait() is None
    assert piece.load() == b"".join(sent[1:3])


def test_a_slice_survives_the_deletion_of_its_segment(disk, open_log):
    log = open_log(segment_bytes=250, retention_bytes=300)
    sent = fill(log, 9)
    disk.cold = 1.0
    piece = log.read(0, 10_000, limit=9)
    dropped = log.retain(NOW, 9)
    assert dropped
    assert piece.load() == b"".join(sent[:3])
    for segment in dropped:
        segment.unlink()
    assert refused(piece.load) == ErrorCode.offset_out_of_range


def test_a_slice_of_a_log_truncated_meanwhile_is_refused(disk, open_log):
    log = open_log()
    fill(log, 5)
    disk.cold = 1.0
    piece = log.read(3, 10_000, limit=5)
    log.truncate_to(2, NOW)
    assert refused(piece.load) == ErrorCode.not_leader_or_follower


def test_a_slice_is_refused_after_other_batches_replaced_its_bytes(open_log):
    log = open_log()
    fill(log, 5)
    piece = log.read(3, 10_000, limit=5)  # and then its reader waits for another partition's, from the device
    log.truncate_to(2, NOW)
    fill(log, 5, epoch=1)  # of the same sizes: a follower that has epoch 0 up to 3 could not tell
    assert refused(piece.load_nowait) == ErrorCode.not_leader_or_follower


@pytest.mark.parametrize("cold", [0.0, 1.0])
@pytest.mark.parametrize("interval_bytes", [0, 300, 4096])
@pytest.mark.parametrize("bytes_max", [1, 150, 1000, 100_000])
def test_a_slice_knows_the_offset_behind_its_last_batch_without_reading_it(
    disk, open_log, interval_bytes, bytes_max, cold
):
    log = open_log(index_interval_bytes=interval_bytes, segment_bytes=2500)
    for number in range(60):
        append(log, 1 + number % 4)
    offset = 0
    while (piece := log.read(offset, bytes_max, limit=log.log_end)) is not None:
        *_, (_, last) = batches(piece.load())
        disk.cold = cold
        end = piece.end_offset()
        disk.cold = 0.0
        assert end == last.next_offset if not cold else last.next_offset <= end <= log.log_end
        offset = last.next_offset
    assert offset == log.log_end


def test_damage_after_a_slice_does_not_change_its_end(disk, open_log):
    log = open_log()
    fill(log, 3)
    piece = log.read(0, 100, limit=3)
    assert piece.end_offset() == 1
    log.active.log.truncate(piece.length)
    log.active.log.append(b"\xff" * 200)
    assert piece.end_offset() == 3, "not behind the limit, whatever stands there"


# -- in chunks, while things happen to the log


def read_all(piece, start=0):
    """As an answer does that is sent bit by bit."""
    data = bytearray()
    while start + len(data) < len(piece):
        buffer = memoryview(bytearray(40))[: len(piece) - start - len(data)]
        count = piece.read_into(start + len(data), buffer)
        data += piece.read(start + len(data), len(buffer)) if count is None else buffer[:count]
    return bytes(data)


@pytest.mark.parametrize("cold", [0.0, 0.5])
def test_a_slice_is_read_in_chunks(disk, open_log, cold):
    log = open_log()
    sent = fill(log, 5)
    piece = log.read(1, 10_000, limit=5)
    disk.cold = cold
    assert len(piece) == piece.length
    assert read_all(piece) == b"".join(sent[1:])
    assert read_all(piece, 17) == b"".join(sent[1:])[17:]


@pytest.mark.parametrize("cold", [0.0, 0.5])
def test_a_slice_that_is_held_is_read_to_its_end_though_its_segment_is_unlinked(disk, open_log, cold):
    log = open_log(segment_bytes=250, retention_bytes=300)
    sent = fill(log, 9)
    held, other = (log.read(0, 10_000, limit=9) for _ in range(2))
    held.hold()
    dropped = log.retain(NOW, 9)
    for segment in dropped:
        segment.unlink()
    assert not disk.exists(dropped[0].log.path)
    disk.cold = cold
    assert read_all(held) == b"".join(sent[:3])
    assert refused(read_all, other) == ErrorCode.offset_out_of_range


def test_a_slice_of_a_truncated_log_is_read_no_further(disk, open_log):
    log = open_log()
    fill(log, 5)
    piece = log.read(0, 10_000, limit=5)
    piece.hold()
    assert piece.read_into(0, memoryview(bytearray(10))) == 10
    log.truncate_to(4, NOW)
    assert refused(piece.read_into, 10, memoryview(bytearray(10))) == ErrorCode.not_leader_or_follower
    assert refused(piece.read, 10, 10) == ErrorCode.not_leader_or_follower


def test_a_slice_of_a_deleted_topic_is_not_read_from_the_files_of_another(disk, open_log):
    log = open_log()
    fill(log, 5)
    piece = log.read(0, 10_000, limit=5)
    piece.hold()
    log.dropped = True
    assert refused(piece.read_into, 0, memoryview(bytearray(10))) == ErrorCode.not_leader_or_follower
    assert refused(piece.read, 0, 10) == ErrorCode.not_leader_or_follower


def test_a_segment_that_the_device_has_refused_to_give_is_read_before_anything_is_promised(disk, open_log, monkeypatch):
    log = open_log()
    fill(log, 5)
    piece = log.read(0, 10_000, limit=5)
    assert piece.may_wait

    def refuse(*_):
        raise StorageFault("Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(type(log.active.log), "pread_into", refuse)
        assert piece.read_into(0, memoryview(bytearray(10))) is None
        patch.setattr(type(log.active.log), "pread", refuse)
        with pytest.raises(StorageFault):
            piece.read(0, 10)
    assert not log.read(0, 10_000, limit=5).may_wait


def test_the_files_of_a_deleted_segment_are_closed_with_its_last_reader(tmp_path):
    log = PartitionLog.open(
        RealDisk(), str(tmp_path / "t-0"), LogConfig(segment_bytes=250, retention_bytes=300), now_ms=NOW
    )
    sent = fill(log, 9)
    pieces = [piece for _ in range(2) if (piece := log.read(0, 10_000, limit=9)) is not None]
    for piece in pieces:
        piece.hold()
    for segment in log.retain(NOW, 9):
        segment.unlink()
    del segment
    held = len(unlinked(tmp_path))
    assert held == 1, "one descriptor for all readers"
    assert [read_all(piece) for piece in pieces] == [b"".join(sent[:3])] * 2
    pieces.clear()
    del piece
    assert not unlinked(tmp_path)
    log.close()


def unlinked(directory: Path) -> list[str]:
    """The files of this directory that this process has open and that have no name."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in found if path.startswith(str(directory)) and path.endswith(".log.deleted (deleted)")]
