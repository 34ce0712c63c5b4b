"""Transactions across segments of which something is lost: nobody who reads committed records sees what was aborted,
and what is not shown is named."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.errors import ErrorCode, Refused
from ottla.log.accept_loss import accept_loss
from ottla.log.damage import behind_gap
from ottla.log.log_config import LogConfig
from ottla.log.manifest import FILE_NAME
from ottla.log.partition_log import PartitionLog
from ottla.log.scan import headers
from ottla.sim.disk import SimDisk
from ottla.wire import marker as markers
from ottla.wire import records
from ottla.wire.batch import batches
from ottla.wire.marker import Marker
from tests.log.batches import NOW, PATH, append
from tests.log.scrubbing import scrub

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=0)
TOPIC_ID = bytes(range(16))


def closed() -> tuple[SimDisk, set[bytes], int]:
    """Two producers whose transactions reach across segments, closed cleanly. What was committed, and the end."""
    disk = SimDisk(Random(5))
    log = PartitionLog.open(disk, PATH, CONFIG, topic_id=TOPIC_ID, now_ms=NOW)
    committed: set[bytes] = set()
    sequences = {1: 0, 2: 0}
    for at in range(6):
        values = {each: [b"%d in %d, %d" % (each, at, number) for number in range(5 - each)] for each in (1, 2)}
        for each in range(4):
            for producer in (1, 2):
                if each < len(values[producer]):
                    value = values[producer][each]
                    append(log, [value], producer_id=producer, sequence=sequences[producer], transactional=True)
                    sequences[producer] += 1
        for producer in (1, 2):
            commits = (at + producer) % 3 != 0
            data, header = markers.build(producer, 0, Marker(commits, coordinator_epoch=3), NOW)
            log.append(memoryview(data), header, leader_epoch=0, now_ms=NOW)
            committed.update(values[producer] if commits else ())
    assert len(log.segments) > 8
    assert len(log.transactions.aborted(0, log.log_end)) == 4
    log.close()
    return disk, committed, log.log_end


def opened(disk: SimDisk, end: int, *, clean: bool) -> PartitionLog:
    closed_at = {"closed_start": 0, "closed_end": end} if clean else {}
    return PartitionLog.open(
        disk, PATH, CONFIG, recovery_point=end, high_watermark=end, started=0, alone=True, clean=clean,
        topic_id=TOPIC_ID, now_ms=NOW, **closed_at,
    )  # fmt: skip


def read_committed(log: PartitionLog) -> tuple[dict[int, bytes], set[int]]:
    """As clients do it: what a producer sent is passed over from where its aborted transaction began to its marker, or
    to the end of the answer. And the offsets at which a storage error is all that there is."""
    shown: dict[int, bytes] = {}
    failed: set[int] = set()
    offset = log.log_start
    stable = log.transactions.last_stable(log.log_end)
    while offset < stable:
        try:
            limit = log.transactions.decided_limit(offset, stable)
            piece = log.read(offset, 10_000, limit=limit)
        except Refused as refused:
            if refused.code is not ErrorCode.kafka_storage_error:
                raise
            failed.add(offset)
            offset += 1
            continue
        if piece is None:
            break
        data = piece.load()
        reported = log.transactions.aborted(behind_gap(log, piece.offset), piece.end_offset())
        pending = sorted(reported, key=lambda each: each[1])
        aborted: set[int] = set()
        for position, header in batches(data):
            while pending and pending[0][1] <= header.last_offset:
                aborted.add(pending.pop(0)[0])
            if header.is_control:
                aborted.discard(header.producer_id)
            elif header.producer_id not in aborted and header.base_offset >= offset and header.record_count:
                view = memoryview(data)[position : position + header.size]
                for at, record in enumerate(records.iterate(view, bytes_max=10_000)):
                    assert record.value is not None
                    shown[header.base_offset + at] = bytes(record.value)
            offset = max(offset, header.next_offset)
    return shown, failed


def check(log: PartitionLog, committed: set[bytes], values: dict[bytes, int]) -> None:
    shown, failed = read_committed(log)
    assert set(shown.values()) <= committed, "what was aborted is shown"
    assert all(values[value] in failed for value in committed - set(shown.values())), "something is skipped in silence"
    assert log.transactions.last_stable(log.log_end) == log.log_end, "nothing is stable again"


def test_a_complete_log_has_its_committed_records():
    disk, committed, end = closed()
    shown, failed = read_committed(opened(disk, end, clean=True))
    assert (set(shown.values()), failed) == (committed, set())


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_no_single_damaged_file_exposes_aborted_records(data):
    disk, committed, end = closed()
    values = {value: offset for offset, value in read_committed(opened(disk, end, clean=True))[0].items()}
    disk, committed, end = closed()
    clean = data.draw(st.booleans())
    names = [name for name in disk.listdir(PATH) if name != FILE_NAME]
    name = data.draw(st.sampled_from(names))
    if data.draw(st.booleans()) and clean:
        disk.remove(f"{PATH}/{FILE_NAME}")
        if not name.endswith(".log"):
            return  # what proves an index is gone, and its segments are read instead: tested elsewhere
    path = f"{PATH}/{name}"
    content = disk.read(path)
    act = data.draw(st.sampled_from(["removed", "emptied", "cut", "flipped"]))
    if act == "removed":
        disk.remove(path)
    elif act == "flipped" and content:
        disk.flip_bit(path, data.draw(st.integers(0, len(content) - 1)))
    else:
        disk.write_atomic(path, content[: data.draw(st.integers(0, len(content))) if act == "cut" else 0])
    log = opened(disk, end, clean=clean)
    scrub(log)
    assert log.log_end == end
    check(log, committed, values)
    log.close()
    again = opened(disk, end, clean=True)
    check(again, committed, values)
    killed = opened(disk, end, clean=False)
    check(killed, committed, values)
    accept_loss(disk, PATH)
    after = opened(disk, end, clean=False)
    assert after.damage is None
    shown, failed = read_committed(after)
    assert not failed
    assert set(shown.values()) <= committed
    assert set(read_committed(again)[0].values()) <= set(shown.values()), "less than before is shown"


@pytest.mark.parametrize("bit", range(8))
def test_no_bit_of_the_last_offsets_moves_the_end_of_a_log_without_a_manifest(bit):
    disk, _, end = closed()
    name = max(name for name in disk.listdir(PATH) if name.endswith(".log"))
    content = disk.read(f"{PATH}/{name}")
    for position, _ in batches(content):
        for at in range(position, position + 8):
            disk, committed, end = closed()
            values = {value: offset for offset, value in read_committed(opened(disk, end, clean=True))[0].items()}
            disk, committed, end = closed()
            disk.remove(f"{PATH}/{FILE_NAME}")
            disk.overwrite(f"{PATH}/{name}", bytes([content[at] ^ 1 << bit]), at)
            log = opened(disk, end, clean=True)
            scrub(log)
            assert log.log_end == end
            check(log, committed, values)


def test_a_marker_whose_length_is_damaged_does_not_go_from_the_index_that_is_rebuilt_without_a_manifest():
    disk, committed, end = closed()
    *_, last = opened(disk, end, clean=True).segments
    *_, (abort, _), (_, header) = headers(last.log, 0, last.size)
    assert header.is_control
    disk, committed, end = closed()
    disk.remove(f"{PATH}/{FILE_NAME}")
    content = bytearray(disk.read(last.log.path))
    content[abort + 8] ^= 1  # the length of the marker points behind the end of the file
    disk.write_atomic(last.log.path, bytes(content))
    log = opened(disk, end, clean=True)
    assert log.damage is not None
    assert set(read_committed(log)[0].values()) <= committed


def test_records_after_an_accepted_lost_marker_are_stable_after_a_kill():
    disk, committed, end = closed()
    *_, last = opened(disk, end, clean=True).segments
    *_, (abort, _), (_, header) = headers(last.log, 0, last.size)
    assert header.is_control
    disk.flip_bit(last.log.path, abort)  # the offset of the marker before the last one
    opened(disk, end, clean=False).close()
    assert accept_loss(disk, PATH)
    killed = opened(disk, end, clean=False)
    assert killed.transactions.last_stable(killed.log_end) == end
    assert set(read_committed(killed)[0].values()) == committed


@pytest.mark.parametrize("clean", [True, False])
def test_the_transaction_index_of_a_lost_segment_is_used(clean):
    disk, committed, end = closed()
    log = opened(disk, end, clean=True)
    aborted = log.transactions.aborted(0, end)
    victims = [each.base_offset for each in log.segments if log.transactions.has_index(each.base_offset)]
    for victim in victims[:1]:
        disk.remove(f"{PATH}/{victim:020d}.log")
    log = opened(disk, end, clean=clean)
    assert log.damage is not None
    assert not log.transactions.undecided
    first = log.damage.missing[0][0]
    assert set(log.transactions.aborted(0, first)) == {each for each in aborted if each[1] < first}
    assert set(read_committed(log)[0].values()) <= committed


@pytest.mark.parametrize("accepted", [False, True])
def test_transactions_with_a_possible_marker_in_a_lost_range_are_undecided_until_the_loss_is_accepted(accepted):
    disk, committed, end = closed()
    log = opened(disk, end, clean=True)
    victim = next(each.base_offset for each in log.segments[1:] if log.transactions.has_index(each.base_offset))
    disk.remove(f"{PATH}/{victim:020d}.log")
    disk.remove(f"{PATH}/{victim:020d}.txnindex")
    log = opened(disk, end, clean=True)
    assert log.transactions.undecided
    first = min(each.first_offset for each in log.transactions.undecided)
    with pytest.raises(Refused, match="was committed is lost"):
        log.transactions.decided_limit(first, end)
    if accepted:
        log.close()
        accept_loss(disk, PATH)
        log = opened(disk, end, clean=True)
        assert not log.transactions.undecided
        assert read_committed(log)[1] == set()
    assert set(read_committed(log)[0].values()) <= committed
    assert max(read_committed(log)[0]) > victim


def test_a_log_with_a_damaged_batch_and_a_wrong_index_is_opened():
    disk, committed, end = closed()
    log = opened(disk, end, clean=True)
    victim = next(each for each in log.segments[1:] if log.transactions.has_index(each.base_offset))
    disk.flip_bit(victim.log.path, 66)
    disk.flip_bit(f"{PATH}/{victim.base_offset:020d}.txnindex", 4)
    log = opened(disk, end, clean=True)
    assert log.damage is not None
    assert set(read_committed(log)[0].values()) <= committed
