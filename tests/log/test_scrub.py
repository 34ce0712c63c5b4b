"""The scrub: a flipped bit is found, wherever it is, and nothing else is taken for one."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from ottla.errors import ErrorCode, Refused, StorageFault
from ottla.log.accept_loss import accept_loss
from ottla.log.scrub import CHUNK_BYTES, SegmentScrub
from ottla.log.truncation import quarantine
from ottla.sim.disk import SimDisk
from ottla.wire.batch import batches, read_header
from ottla.wire.records import iterate
from tests.log.batches import NOW, PATH, append, served
from tests.log.compacting import compact, headers_of, put
from tests.log.scrubbing import scrub
from tests.log.test_damage import closed, opened

HEADER_BYTES_WITHOUT_CHECKSUM = 16


def log_files(disk: SimDisk) -> list[str]:
    return [f"{PATH}/{name}" for name in disk.listdir(PATH) if name.endswith(".log")]


def flip(disk: SimDisk, path: str, at: int, bit: int) -> None:
    data = bytearray(disk.read(path))
    data[at] ^= 1 << bit
    disk.overwrite(path, bytes(data), 0)


@pytest.mark.parametrize("which", [0, 1, -1], ids=["first", "second", "last"])
def test_no_bit_outside_of_the_checksum_flips_unseen(which):
    """Base offset, length and leader epoch of the first, a middle and the last batch of a closed segment."""
    whole, sent, end, _ = closed()
    path = log_files(whole)[1]
    position, header = list(batches(whole.read(path)))[which]
    expected = {read_header(batch).base_offset: batch for batch in sent if batch[:8] != header.base_offset.to_bytes(8)}
    for at in range(HEADER_BYTES_WITHOUT_CHECKSUM):
        for bit in range(8):
            disk, *_ = closed()
            flip(disk, path, position + at, bit)
            log = opened(disk, end)
            found, _ = scrub(log)
            assert [each.offsets for each in found] == [(header.base_offset, header.next_offset)], (at, bit)
            assert served(log) == expected


def test_a_healthy_log_is_found_healthy():
    disk, sent, end, _ = closed()
    log = opened(disk, end)
    assert scrub(log) == ([], [])
    assert len(served(log)) == len(sent)


def test_batches_larger_than_a_chunk_are_checked_piece_by_piece(disk, open_log):
    log = open_log(segment_bytes=50 * CHUNK_BYTES)
    for percent in (10, 900, 20, 1500, 2500, 30):
        append(log, [bytes(CHUNK_BYTES * percent // 100)])
    log.roll(NOW)
    log.sync()
    assert scrub(log) == ([], [])
    walk = SegmentScrub(log, log.segments[0])
    while not walk.done:
        assert walk.step() <= 2 * CHUNK_BYTES
    disk.flip_bit(log.segments[0].log.path, 15 * CHUNK_BYTES)
    found, _ = scrub(log)
    assert [each.offsets for each in found] == [(3, 4)]


def test_gaps_of_compaction_are_no_damage(open_log):
    log = open_log(segment_bytes=400, cleanup_compact=True)
    for at in range(40):
        put(log, [(b"key %d" % (at % 7 if at % 3 else -at), b"value %d" % at)])
    compact(log)
    log.sync()
    found = headers_of(log)
    assert any(one.next_offset < other.base_offset for one, other in pairwise(found))
    assert scrub(log) == ([], [])


def test_only_what_is_below_the_recovery_point_of_the_active_segment_is_read(disk, open_log):
    log = open_log()
    append(log, [b"synced"])
    log.sync()
    append(log, [b"not yet"])
    second = list(batches(disk.read(log.active.log.path)))[1][0]
    flip(disk, log.active.log.path, second + 65, 0)
    assert scrub(log) == ([], [])
    flip(disk, log.active.log.path, second + 65, 0)
    disk.flip_bit(log.active.log.path, 65)
    found, _ = scrub(log)
    assert [each.offsets for each in found] == [(0, 1)]
    with pytest.raises(Refused) as refused:
        log.read(0, 1000, limit=2)
    assert refused.value.code is ErrorCode.kafka_storage_error


def test_a_log_that_was_truncated_meanwhile_is_not_judged(disk, open_log):
    log = open_log(segment_bytes=400)
    for _ in range(20):
        append(log, [b"value"])
    walk = SegmentScrub(log, log.segments[1])
    assert walk.current
    log.truncate_to(3, NOW)
    assert not walk.current


def test_damaged_bytes_are_quarantined_and_missing_until_the_loss_is_accepted():
    disk, sent, end, _ = closed()
    path = log_files(disk)[1]
    position, header = list(batches(disk.read(path)))[1]
    flip(disk, path, position + 70, 2)
    damaged = disk.read(path)[position : position + header.size]
    log = opened(disk, end)
    scrub(log)
    assert disk.read(f"{path}.{position}.damaged") == damaged
    offset = header.base_offset
    before = log.read(offset - 1, 10_000, limit=end)
    assert before is not None
    assert [each.base_offset for _, each in batches(before.load())] == [offset - 1], "reads end before what is missing"
    log.close()
    again = opened(disk, end)
    assert again.damage is not None
    assert again.damage.missing == ((offset, offset + 1),)
    assert scrub(again) == ([], [])
    assert len(served(again)) == len(sent) - 1
    again.close()
    reported: list[tuple[int, int]] = []
    assert accept_loss(disk, PATH, lambda *reached: reported.append(reached)) == ((offset, offset + 1),)
    assert len(reported) > 2, "progress"
    assert reported == sorted(reported)
    assert reported[-1][0] == reported[-1][1] > 0
    given_up = opened(disk, end)
    piece = given_up.read(offset, 10_000, limit=end)
    assert piece is not None
    data = piece.load()
    offsets = [
        record.offset for at, found in batches(data) for record in iterate(data[at : at + found.size], bytes_max=1000)
    ]
    assert offsets[0] == offset + 1
    assert scrub(given_up) == ([], [])


@pytest.mark.parametrize("segment", [0, 2])
def test_a_replica_copies_the_damaged_segment_again(segment):
    disk, sent, end, aborted = closed()
    path = log_files(disk)[segment]
    position = list(batches(disk.read(path)))[1][0]
    flip(disk, path, position + 70, 2)
    log = opened(disk, end)
    scrub(log)
    quarantine(log, NOW)
    assert log.damage is None
    assert log.log_end == int(path[-24:-4])
    log.append_replicated(
        memoryview(b"".join(each for each in sent if read_header(each).base_offset >= log.log_end)), NOW
    )
    assert list(served(log).values()) == sent
    assert log.transactions.aborted(0, end) == aborted
    log.close()
    again = opened(disk, end)
    assert again.damage is None
    assert scrub(again) == ([], [])


@pytest.mark.parametrize("kind", ["index", "timeindex", "txnindex"])
def test_a_changed_derived_file_is_rebuilt(kind):
    disk, sent, end, aborted = closed()
    log = opened(disk, end)
    log.transactions.release_memory(end)
    names = [name for name in disk.listdir(PATH) if name.endswith(f".{kind}") and disk.read(f"{PATH}/{name}")]
    path = f"{PATH}/{names[0]}"
    before = disk.read(path)
    flip(disk, path, len(before) - 2, 1)
    assert scrub(log) == ([], [path])
    assert disk.read(path) == before
    assert scrub(log) == ([], [])
    assert len(served(log)) == len(sent)
    assert log.transactions.aborted(0, end) == aborted


def test_noise_is_one_finding_and_the_scrub_continues_after_it():
    disk, sent, end, _ = closed()
    path = log_files(disk)[1]
    found = list(batches(disk.read(path)))
    start, stop = found[1][0], found[3][0]
    disk.overwrite(path, Random(3).randbytes(stop - start), start)
    log = opened(disk, end)
    findings, _ = scrub(log)
    assert [each.offsets for each in findings] == [(found[1][1].base_offset, found[3][1].base_offset)]
    assert len(served(log)) == len(sent) - 2


@pytest.mark.parametrize("act", ["flipped", "removed"])
def test_aborted_records_stay_hidden_if_the_transaction_index_changes_while_the_log_is_open(act):
    disk, _, end, aborted = closed()
    log = opened(disk, end)
    for name in [name for name in disk.listdir(PATH) if name.endswith(".txnindex")][:2]:
        if act == "removed":
            disk.remove(f"{PATH}/{name}")
        else:
            flip(disk, f"{PATH}/{name}", 9, 0)
    assert log.transactions.aborted(0, end) == aborted


def test_a_leader_epoch_file_that_changed_on_disk_is_written_again_on_close():
    disk, _, end, _ = closed()
    path = f"{PATH}/leader-epoch-checkpoint"
    whole = disk.read(path)
    log = opened(disk, end)
    disk.overwrite(path, b"7", len(whole) - 2)
    assert disk.read(path) != whole
    log.close()
    assert disk.read(path) == whole


@pytest.mark.parametrize("segment", [0, 2])
def test_a_quarantine_that_the_disk_refused_half_way_is_retried(segment, monkeypatch):
    refused = 0
    for count in range(60):
        disk, sent, end, _ = closed()
        path = log_files(disk)[segment]
        flip(disk, path, list(batches(disk.read(path)))[1][0] + 70, 2)
        log = opened(disk, end)
        scrub(log)
        calls = iter(range(10**6))
        room = disk.room

        def room_once(path, *, calls=calls, count=count, room=room):
            if next(calls) == count:
                raise StorageFault(f"cannot write to {path}: Input/output error")
            return room(path)

        monkeypatch.setattr(disk, "room", room_once)
        try:
            quarantine(log, NOW)
        except StorageFault:
            refused += 1
            if log.damage is not None:
                quarantine(log, NOW)
        monkeypatch.setattr(disk, "room", room)
        assert log.damage is None
        assert log.log_end == int(path[-24:-4]), count
        missing = [each for each in sent if read_header(each).base_offset >= log.log_end]
        log.append_replicated(memoryview(b"".join(missing)), NOW)
        assert list(served(log).values()) == sent, count
        log.close()
        assert opened(disk, end).damage is None, count
    assert refused > 5
