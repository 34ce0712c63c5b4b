"""Offset and time indexes: Kafka's bytes, and damaged ones are detected."""

from __future__ import annotations

import logging
from array import array
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.log import manifest
from ottla.log.index import IndexDamaged, OffsetIndex, TimeIndex
from ottla.log.partition_log import PartitionLog
from ottla.sim.disk import SimDisk
from tests.log.batches import PATH, append, served
from tests.log.manifests import contradictions
from tests.log.test_damage import closed, opened


@pytest.fixture
def disk():
    disk = SimDisk(Random(0))
    disk.mkdir("t-0")
    return disk


def fresh(kind, disk):
    index = kind(disk, "t-0/x")
    index.replace(array("i" if kind is OffsetIndex else "q"), array("i"))
    return index


def test_an_offset_entry_is_two_big_endian_integers(disk):
    index = fresh(OffsetIndex, disk)
    index.add(3, 0x0102)
    index.add(70000, 0x010203)
    index.write()
    assert disk.read("t-0/x").hex() == "0000000300000102" + "0001117000010203"


def test_a_time_entry_is_a_long_and_an_integer(disk):
    index = fresh(TimeIndex, disk)
    index.add(0x0102030405, 7)
    index.add(0x0102030405, 8)
    index.add(0x0102030406, 9)
    index.write()
    assert disk.read("t-0/x").hex() == "0000000102030405" + "00000007" + "0000000102030406" + "00000009"


def test_only_new_entries_are_written(disk):
    index = fresh(OffsetIndex, disk)
    index.add(1, 10)
    index.write()
    disk.open("t-0/x").append(b"what a failed write left")
    index.add(2, 20)
    index.write()
    again = OffsetIndex(disk, "t-0/x")
    again.load(100)
    assert list(again.offsets) == [1, 2]


def test_the_entry_at_or_before_is_found(disk):
    index = fresh(OffsetIndex, disk)
    for offset, position in ((4, 0), (9, 100), (12, 250)):
        index.add(offset, position)
    assert [index.floor(offset) for offset in (3, 4, 8, 9, 99)] == [None, (4, 0), (4, 0), (9, 100), (12, 250)]
    assert [index.floor_position(position) for position in (0, 99, 100, 1000)] == [0, 0, 100, 250]


def test_truncation_keeps_entries_before_the_offset(disk):
    index = fresh(OffsetIndex, disk)
    for offset, position in ((4, 0), (9, 100), (12, 250)):
        index.add(offset, position)
    index.write()
    index.truncate(250)
    assert list(index.positions) == [0, 100]
    assert len(disk.read("t-0/x")) == 16


@pytest.mark.parametrize(
    "content",
    [b"1234567", "0000000300000000" + "0000000300000010", "0000000300000010" + "0000000400000010", "ffffffff00000000",
     "00000001ffffffff", "0000000100000064"],
)  # fmt: skip
def test_entries_that_do_not_ascend_or_point_outside_are_damage(disk, content):
    disk.write_atomic("t-0/x", bytes.fromhex(content) if isinstance(content, str) else content)
    with pytest.raises(IndexDamaged):
        OffsetIndex(disk, "t-0/x").load(100)


@pytest.mark.parametrize("content", [bytes(11), bytes(24), b"\xff" * 12])
def test_times_that_do_not_ascend_are_damaged(disk, content):
    disk.write_atomic("t-0/x", content)
    with pytest.raises(IndexDamaged):
        TimeIndex(disk, "t-0/x").load()


def test_a_missing_file_is_damaged(disk):
    with pytest.raises(IndexDamaged):
        TimeIndex(disk, "t-0/x").load()


@given(st.lists(st.tuples(st.integers(1, 2**20), st.integers(1, 2**10)), max_size=200))
def test_written_entries_are_loaded_again(steps):
    disk = SimDisk(Random(0))
    disk.mkdir("t-0")
    offsets, times = fresh(OffsetIndex, disk), TimeIndex(disk, "t-0/y")
    times.replace(array("q"), array("i"))
    offset = position = 0
    for offset_step, position_step in steps:
        offset, position = offset + offset_step, position + position_step
        offsets.add(offset, position)
        times.add(offset * 2**20, offset)
    offsets.write()
    times.write()
    offsets_again, times_again = OffsetIndex(disk, "t-0/x"), TimeIndex(disk, "t-0/y")
    offsets_again.load(position + 1)
    times_again.load()
    assert (offsets_again.offsets, offsets_again.positions) == (offsets.offsets, offsets.positions)
    assert (times_again.timestamps, times_again.offsets) == (times.timestamps, times.offsets)


def flip(disk: SimDisk, path: str, at: int) -> None:
    data = bytearray(disk.read(path))
    data[at] ^= 1
    disk.write_atomic(path, bytes(data))


def reported(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def used(log: PartitionLog) -> None:
    for segment in log.segments:
        segment.load_indexes()


@pytest.mark.parametrize("kind", ["index", "timeindex"])
@pytest.mark.parametrize("which", ["sealed", "active"])
def test_a_flipped_bit_in_an_index_is_noticed_when_the_index_is_loaded(kind, which, caplog):
    disk, sent, end, _ = closed()
    names = sorted(name for name in disk.listdir(PATH) if name.endswith(f".{kind}"))
    path = f"{PATH}/{names[1] if which == 'sealed' else names[-1]}"
    for at in range(len(disk.read(path))):
        caplog.clear()
        if at >= len(disk.read(path)):
            break  # recreated with fewer entries
        flip(disk, path, at)
        log = opened(disk, end)
        assert not reported(caplog), "nothing is read of it before it is needed"
        used(log)
        assert reported(caplog) == [f"{path} is rebuilt from the log: it is not what its manifest says"]
        assert len(served(log)) == len(sent)
        log.close()
        assert contradictions(disk) == [], "it was written again"
        caplog.clear()
        log = opened(disk, end)
        used(log)
        assert not reported(caplog)
        log.close()


def test_an_index_that_grew_since_the_last_clean_shutdown_is_not_damage(caplog):
    disk, _, end, _ = closed()
    log = opened(disk, end)
    for at in range(6):
        append(log, [b"more %d" % at], epoch=3)
    used(log)
    end = log.log_end
    log.close()
    log = opened(disk, end, clean=False)
    used(log)
    append(log, [b"more"], epoch=3)
    for segment in log.segments:
        segment.drop_indexes()
    used(log)
    assert not reported(caplog)
    claimed = manifest.read(disk, PATH)
    assert claimed is not None
    assert all(claim.index_crc != manifest.NO_CRC for claim in claimed.segments)
