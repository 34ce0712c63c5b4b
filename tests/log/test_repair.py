"""A log that was not closed cleanly, and of which bytes are damaged: what is whole stays, what is not is named and kept
aside, and only a tail behind which nothing whole stands is cut."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.log.damage import mark_missing
from ottla.log.log_config import LogConfig
from ottla.log.manifest import FILE_NAME
from ottla.log.partition_log import PartitionLog
from ottla.log.truncation import quarantine
from ottla.sim.disk import SimDisk
from ottla.wire import marker as markers
from ottla.wire.batch import read_header, stamp
from ottla.wire.marker import Marker
from tests.log.batches import NOW, PATH, append, fill, make, served
from tests.log.test_damage import logs

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=0)


def opened(disk: SimDisk, *, recovery_point: int = 0, high_watermark: int = 0, **config) -> PartitionLog:
    return PartitionLog.open(
        disk, PATH, CONFIG._replace(**config), recovery_point=recovery_point, high_watermark=high_watermark, alone=True,
        started=0, topic_id=bytes(range(16)), now_ms=NOW,
    )  # fmt: skip


def intact(disk: SimDisk, sent: list[bytes]) -> set[int]:
    """The offsets of batches that stand in some file as they were sent, each behind the one before."""
    found = set()
    for data in map(disk.read, logs(disk)):
        end = 0
        for batch in sent:
            if (at := data.find(batch, end)) >= 0:
                end = at + len(batch)
                found.add(read_header(batch).base_offset)
    return found


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_undamaged_batches_are_served_and_damaged_ones_are_reported_or_truncated(data):
    disk = SimDisk(Random(5))
    log = opened(disk)
    sent = fill(log, 6)
    if synced := data.draw(st.booleans()):
        log.sync()
    sent += fill(log, 6)
    at = data.draw(st.integers(0, 12 if not synced else 6))
    recovery_point = min(at, 6) if synced else 0
    # What is before the recovery point is the scrub's.
    path = data.draw(st.sampled_from([each for each in logs(disk) if int(each[-24:-4]) >= recovery_point]))
    content = bytearray(disk.read(path))
    act = data.draw(st.sampled_from(["flipped", "zeroed", "noise", "taken out", "put in"]))
    start = data.draw(st.integers(0, len(content) - 1))
    size = data.draw(st.integers(1, 60 if act == "taken out" else 120))  # a whole batch less is as after compaction
    piece = {"zeroed": bytes(size), "put in": b"\1" * size, "noise": b"\2" * size}.get(act, b"")
    if act == "flipped":
        content[start] ^= 1 << data.draw(st.integers(0, 7))
    else:
        content[start : start + (0 if act == "put in" else size)] = piece
    disk.write_atomic(path, bytes(content))
    there = intact(disk, sent)
    log = opened(disk, recovery_point=recovery_point, high_watermark=at)
    shown = served(log)
    missing = () if log.damage is None else log.damage.missing
    for offset, batch in enumerate(sent):
        # No checksum covers offset and epoch: one that moved is seen by its neighbours, the last one has none.
        if offset in there and offset >= recovery_point:
            assert shown.get(offset) == batch
        elif offset not in shown:
            assert offset >= log.log_end or any(first <= offset < end for first, end in missing)
    assert log.log_end > max(there, default=-1)
    again = opened(disk, recovery_point=recovery_point, high_watermark=at)
    assert served(again) == shown
    assert (() if again.damage is None else again.damage.missing) == missing
    assert again.log_end == log.log_end


def test_zeros_over_a_batch_and_the_next_offset_are_not_read_as_offset_0():
    disk = SimDisk(Random(5))
    log = opened(disk)
    sent = fill(log, 6)
    path = logs(disk)[0]
    content = disk.read(path)
    disk.write_atomic(path, bytes(len(sent[0]) + 8) + content[len(sent[0]) + 8 :])
    log = opened(disk)
    assert log.damage is not None
    assert log.damage.missing == ((0, 2),)
    assert list(served(log)) == [2, 3, 4, 5]


def test_a_last_batch_with_a_changed_offset_is_not_read_as_a_batch_after_a_gap():
    """Nothing behind it contradicts the offset; but without compaction a leader leaves no gap."""
    disk = SimDisk(Random(5))
    log = opened(disk)
    sent = fill(log, 3)
    path = logs(disk)[0]
    content = bytearray(disk.read(path))
    content[len(sent[0]) + len(sent[1]) + 4] ^= 2  # a byte of the third one's offset
    disk.write_atomic(path, bytes(content))
    log = opened(disk)
    assert log.log_end == 2
    assert list(served(log)) == [0, 1]
    assert disk.read(f"{path}.{len(sent[0]) + len(sent[1])}.damaged") == content[len(sent[0]) + len(sent[1]) :]


@pytest.mark.parametrize("proof", [{"high_watermark": 8}, {"cleanup_compact": True}], ids=["committed", "compacted"])
def test_a_last_batch_behind_a_gap_of_its_leader_stays(proof):
    disk = SimDisk(Random(5))
    log = opened(disk)
    fill(log, 3)
    view, _ = make([b"behind a gap"])
    stamp(view, 7, 0)
    log.append_replicated(memoryview(view), NOW)
    log = opened(disk, **proof)
    assert log.log_end == 8
    assert log.damage is None


def test_truncated_bytes_are_quarantined(disk, open_log):
    log = open_log()
    sent = fill(log, 3)
    path = f"{PATH}/{0:020d}.log"
    disk.flip_bit(path, len(sent[0]) + len(sent[1]) + 70)
    tail = disk.read(path)[len(sent[0]) + len(sent[1]) :]
    log = open_log()
    assert log.damage is None
    assert log.log_end == 2
    assert disk.read(f"{path}.{len(sent[0]) + len(sent[1])}.damaged") == tail
    append(log, [b"another"])
    disk.open(path).append(b"another tail" * 9)
    open_log()
    disk.open(path).append(b"and yet another" * 9)
    open_log()
    quarantined = [disk.read(f"{PATH}/{name}") for name in disk.listdir(PATH) if name.endswith(".damaged")]
    assert sorted(quarantined) == sorted([tail, b"another tail" * 9, b"and yet another" * 9])


def test_batches_inside_a_record_of_a_torn_batch_are_ignored(disk, open_log):
    """A client may send what it likes as a value, and a write may be torn anywhere."""
    log = open_log()
    fill(log, 2)
    inner = []
    for offset in (40, 41):
        view, _ = make([b"within"])
        stamp(view, offset, 0)
        inner.append(bytes(view))
    whole = append(log, [b"".join(inner) + b"behind" * 20])
    disk.open(f"{PATH}/{0:020d}.log").truncate(disk.open(f"{PATH}/{0:020d}.log").size() - 30)
    log = open_log()
    assert len(whole) > 200
    assert log.damage is None
    assert log.log_end == 2


@pytest.mark.parametrize("stops", [["kill"] * 3, ["kill", "stop", "kill"], ["stop", "kill", "kill"]])
def test_read_committed_consumers_continue_after_a_lost_range_after_any_number_of_restarts(stops):
    disk = SimDisk(Random(5))
    log = opened(disk)
    for at in range(12):
        append(log, [b"in doubt %d" % at], producer_id=1, sequence=at, transactional=True)
    data, header = markers.build(1, 0, Marker(True, coordinator_epoch=3), NOW)
    log.append(memoryview(data), header, leader_epoch=0, now_ms=NOW)
    fill(log, 3)
    victim = next(each for each in log.segments if each.base_offset <= 12 and each is not log.segments[0])
    disk.remove(victim.log.path)
    for stop in stops:
        log = opened(disk)
        assert log.damage is not None
        append(log, [b"more"])
        assert log.transactions.last_stable(log.log_end) == log.log_end
        if stop == "stop":
            log.close()


def test_undamaged_records_are_kept_without_a_manifest():
    disk = SimDisk(Random(5))
    log = opened(disk)
    sent = fill(log, 12)
    log.sync()
    disk.remove(f"{PATH}/{FILE_NAME}")
    disk.flip_bit(f"{PATH}/{log.segments[1].base_offset:020d}.log", 70)
    lost = log.segments[1].base_offset
    log = opened(disk)
    assert log.damage is not None
    assert log.damage.missing == ((lost, lost + 1),)
    assert list(served(log).values()) == sent[:lost] + sent[lost + 1 :]


def test_a_directory_with_the_name_of_an_index_does_not_prevent_quarantine():
    disk = SimDisk(Random(5))
    log = opened(disk)
    fill(log, 12)
    log.sync()
    victim = log.segments[1]
    mark_missing(log, [(victim.base_offset, log.segments[2].base_offset)])
    disk.remove(victim.offsets.path)
    disk.mkdir(victim.offsets.path)
    assert quarantine(log, NOW) == victim.base_offset
    assert log.damage is None
    assert disk.is_directory(f"{victim.offsets.path}.damaged")
