"""A log with lost or changed files: every batch is served correctly, or the missing range is reported."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.errors import ErrorCode, Refused
from ottla.log.accept_loss import accept_loss
from ottla.log.evidence import NOT_KNOWN
from ottla.log.log_config import LogConfig
from ottla.log.manifest import FILE_NAME
from ottla.log.partition_log import PartitionLog
from ottla.log.retention import retain
from ottla.log.truncation import quarantine
from ottla.sim.disk import SimDisk
from ottla.wire import marker as markers
from ottla.wire.batch import batches, read_header
from ottla.wire.marker import Marker
from tests.log.batches import NOW, PATH, append, fill, served
from tests.log.scrubbing import scrub

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=0)


def closed(random: Random | None = None) -> tuple[SimDisk, list[bytes], int, list[tuple[int, int]]]:
    """A log of several segments with aborted transactions, closed cleanly: what it holds, its end, what was aborted."""
    disk = SimDisk(random or Random(5))
    log = PartitionLog.open(disk, PATH, CONFIG, topic_id=bytes(range(16)), now_ms=NOW)
    sent = []
    for at in range(8):
        sent.append(append(log, [b"value %d" % at], epoch=at // 3, producer_id=9, sequence=at))
        sent.append(append(log, [b"in doubt"], epoch=at // 3, producer_id=1, sequence=at, transactional=True))
        data, header = markers.build(1, 0, Marker(at % 2 == 0, coordinator_epoch=3), NOW)
        log.append(memoryview(data), header, leader_epoch=at // 3, now_ms=NOW)
        sent.append(bytes(data))
    aborted = log.transactions.aborted(0, log.log_end)
    assert len(log.segments) > 4
    assert len(aborted) == 4
    log.close()
    return disk, sent, log.log_end, aborted


def opened(
    disk: SimDisk, end: int, *, clean: bool = True, closed_start: int = NOT_KNOWN, closed_end: int = NOT_KNOWN
) -> PartitionLog:
    return PartitionLog.open(
        disk, PATH, CONFIG, recovery_point=end, high_watermark=end, closed_start=closed_start, closed_end=closed_end,
        clean=clean, topic_id=bytes(range(16)), now_ms=NOW,
    )  # fmt: skip


def logs(disk: SimDisk) -> list[str]:
    return [f"{PATH}/{name}" for name in disk.listdir(PATH) if name.endswith(".log")]


def check_damage_is_remembered(disk: SimDisk, log: PartitionLog, end: int) -> None:
    """The process is killed before it has written anything, and nothing else tells of the loss any more. Recovery may
    find a flipped bit besides."""
    again = opened(disk, end, clean=False)
    assert (again.log_start, again.log_end) == (log.log_start, log.log_end)
    if log.damage is not None:
        assert again.damage is not None
        for start, stop in log.damage.missing:
            assert any(first <= start and stop <= last for first, last in again.damage.missing)


@settings(deadline=None, max_examples=400)
@given(data=st.data())
def test_any_single_damaged_file_is_repaired_or_reported(data):
    disk, sent, end, aborted = closed()
    name = data.draw(st.sampled_from(disk.listdir(PATH)))
    path = f"{PATH}/{name}"
    content = disk.read(path)
    act = data.draw(st.sampled_from(["removed", "emptied", "cut", "extended", "flipped"]))
    if act == "removed":
        disk.remove(path)
    elif act == "flipped" and content:
        at = data.draw(st.integers(0, len(content) * 8 - 1))
        disk.flip_bit(path, at // 8)
    else:
        cut = data.draw(st.integers(0, len(content))) if act == "cut" else len(content) * (act == "extended")
        disk.write_atomic(
            path, content[:cut] + (data.draw(st.binary(min_size=1, max_size=90)) if act == "extended" else b"")
        )
    log = opened(disk, end)
    assert log.log_end == end
    found, _ = scrub(log)  # a bit that flipped in the data is seen by nobody else
    assert not found or (name.endswith(".log") and act == "flipped")
    expected = {read_header(batch).base_offset: batch for batch in sent}
    seen = served(log)
    lost = {offset for offset in expected if offset not in seen}
    assert seen == {offset: batch for offset, batch in expected.items() if offset not in lost}
    if lost:
        assert log.damage is not None
        assert all(any(start <= offset < stop for start, stop in log.damage.missing) for offset in lost)
    if log.damage is None:
        assert log.transactions.aborted(0, end) == aborted
    check_damage_is_remembered(disk, log, end)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("victim", ["first", "middle", "active", "directory"])
def test_a_log_with_lost_records_continues_at_its_old_end(victim, clean):
    disk, _, end, _ = closed()
    logs = [name for name in disk.listdir(PATH) if name.endswith(".log")]
    if victim == "directory":
        disk.rmtree(PATH)
    else:
        disk.remove(f"{PATH}/{logs[{'first': 0, 'middle': 2, 'active': -1}[victim]]}")
    log = opened(disk, end, clean=clean)
    assert log.damage is not None
    assert (log.log_start, log.log_end) == (0, end)
    check_damage_is_remembered(disk, log, end)
    missing = log.damage.missing
    append(log, [b"more"])
    assert log.log_end == end + 1
    log.close()
    again = opened(disk, end)
    assert again.damage is not None
    assert again.damage.missing == missing
    assert max(served(again)) == end
    with pytest.raises(Refused, match="accept-loss") as refused:
        again.read(missing[0][0], 1000, limit=end)
    assert refused.value.code is ErrorCode.kafka_storage_error


def test_a_power_cut_behind_the_recovery_point_is_no_damage(disk, open_log):
    log = open_log(segment_bytes=400)
    fill(log, 5)
    log.sync()
    fill(log, 5)
    log.epochs_file.save(log.epochs)
    log.snapshots.write(log.log_end, log.producers)
    disk.crash()
    log = open_log(segment_bytes=400, recovery_point=5)
    assert log.damage is None
    assert log.log_end >= 5


def test_a_checkpoint_beyond_manifest_and_clean_shutdown_file_is_wrong():
    disk, sent, end, _ = closed()
    log = opened(disk, end + 400, closed_start=0, closed_end=end)
    assert log.damage is None
    assert log.log_end == end
    assert any("rebuilt" in note for note in log.recovery.notes)
    assert len(served(log)) == len(sent)


def copied(disk: SimDisk) -> dict[str, bytes]:
    return {name: disk.read(f"{PATH}/{name}") for name in disk.listdir(PATH)}


@pytest.mark.parametrize(
    ("clean", "evidence"),
    [(True, {"closed_start": 0}), (True, {"recovery_point": 1}), (False, {"high_watermark": 1}),
     (False, {"recovery_point": 1})],
    ids=["the mark", "the recovery point", "the high watermark, killed", "the recovery point, killed"],
)  # fmt: skip
def test_an_older_copy_of_the_directory_does_not_outweigh_newer_evidence(clean, evidence):
    """Whole with its manifest: only what lies elsewhere tells that it is not the last one."""
    disk, sent, end, _ = closed()
    older = copied(disk)
    log = opened(disk, end)
    for at in range(20):
        append(log, [b"later %d" % at], epoch=3)
    log.close()
    later = log.log_end
    disk.rmtree(PATH)
    disk.mkdir(PATH)
    for name, data in older.items():
        disk.write_atomic(f"{PATH}/{name}", data)
    reported: dict[str, Any] = {what: later for what in evidence if what != "closed_start"}
    if "closed_start" in evidence:
        reported = {"closed_start": 0, "closed_end": later}
    log = PartitionLog.open(disk, PATH, CONFIG, clean=clean, topic_id=bytes(range(16)), now_ms=NOW, **reported)
    assert log.damage is not None
    assert log.damage.missing == ((end, later),)
    assert log.log_end == later
    assert list(served(log).values()) == sent
    check_damage_is_remembered(disk, log, later)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("victim", ["cut", "segment", "directory"])
def test_missing_committed_records_are_detected_after_a_kill(victim, alone):
    """The high watermark is all that tells of it: nothing was synced yet."""
    disk = SimDisk(Random(5))
    log = PartitionLog.open(disk, PATH, CONFIG, topic_id=bytes(range(16)), now_ms=NOW)
    for at in range(3):
        append(log, [b"value %d" % at])
    path = log.active.log.path
    if victim == "cut":
        disk.write_atomic(path, disk.read(path)[:-5])
    elif victim == "segment":
        disk.remove(path)
    else:
        disk.rmtree(PATH)
    again = PartitionLog.open(disk, PATH, CONFIG, high_watermark=3, alone=alone, topic_id=bytes(range(16)), now_ms=NOW)
    assert again.damage is not None
    assert again.damage.missing == ((2 if victim == "cut" else 0, 3),)
    append(again, [b"more"])
    assert again.log_end == 4, "an offset is given twice"


@pytest.mark.parametrize("alone", [True, False])
def test_a_snapshot_proves_the_end_after_a_kill_where_there_is_no_other_replica(alone):
    """Elsewhere a power cut may have taken what was never committed."""
    disk = SimDisk(Random(5))
    log = PartitionLog.open(disk, PATH, CONFIG, topic_id=bytes(range(16)), now_ms=NOW)
    while len(log.segments) < 3:
        append(log, [b"value"])
    disk.remove(log.segments[1].log.path)
    disk.remove(log.segments[2].log.path)
    again = PartitionLog.open(disk, PATH, CONFIG, alone=alone, topic_id=bytes(range(16)), now_ms=NOW)
    start = log.segments[1].base_offset
    assert (again.damage is not None) == alone
    assert again.log_end == (log.segments[2].base_offset if alone else start)


@pytest.mark.parametrize("end", [0, 2, 5])
def test_a_truncation_below_the_high_watermark_is_no_damage(end):
    """A follower that its leader cuts, and that is killed before its checkpoints are written again."""
    disk = SimDisk(Random(5))
    log = PartitionLog.open(disk, PATH, CONFIG, topic_id=bytes(range(16)), now_ms=NOW)
    for at in range(9):
        append(log, [b"value %d" % at])
    log.checkpointed_end = 9  # as the checkpoint of high watermarks says
    log.truncate_to(end, NOW)
    again = opened(disk, 9, clean=False)
    assert again.damage is None
    assert again.log_end == end


def test_a_first_segment_that_is_lost_with_the_manifest_is_missed_after_a_kill():
    disk, _, end, _ = closed()
    logs = [name for name in disk.listdir(PATH) if name.endswith(".log")]
    disk.remove(f"{PATH}/{logs[0]}")
    disk.remove(f"{PATH}/{FILE_NAME}")
    log = PartitionLog.open(
        disk, PATH, CONFIG, recovery_point=end, high_watermark=end, started=0, topic_id=bytes(range(16)), now_ms=NOW
    )
    assert log.damage is not None
    assert log.damage.missing == ((0, int(logs[1][:20])),)
    assert log.log_start == 0
    assert log.proven_start == 0


def test_without_a_manifest_checkpoints_prove_the_end():
    disk, _, end, _ = closed()
    logs = [name for name in disk.listdir(PATH) if name.endswith(".log")]
    disk.remove(f"{PATH}/{logs[-1]}")
    disk.remove(f"{PATH}/{FILE_NAME}")
    log = opened(disk, end)
    assert log.damage is not None
    assert log.damage.missing[-1][1] == end


@pytest.mark.parametrize("victim", [0, 2, -1])
def test_segments_are_quarantined_before_they_are_copied_again(victim):
    disk, sent, end, _ = closed()
    logs = [name for name in disk.listdir(PATH) if name.endswith(".log")]
    before = {name: disk.read(f"{PATH}/{name}") for name in logs}
    disk.remove(f"{PATH}/{logs[victim]}")
    log = opened(disk, end)
    assert log.damage is not None
    first = log.damage.missing[0][0]
    quarantine(log, NOW)
    assert log.log_end == first
    assert not log.damage
    quarantined = {name.removesuffix(".damaged") for name in disk.listdir(PATH) if name.endswith(".damaged")}
    assert all(disk.read(f"{PATH}/{name}.damaged") == before[name] for name in quarantined)
    assert {int(name[:20]) for name in quarantined} == {int(name[:20]) for name in logs if int(name[:20]) > first}
    log.append_replicated(memoryview(b"".join(batch for batch in sent if read_header(batch).base_offset >= first)), NOW)
    log.close()
    again = opened(disk, end)
    assert again.damage is None
    assert list(served(again).values()) == sent


@pytest.mark.parametrize("victim", [0, 2, -1])
def test_a_loss_that_is_accepted_becomes_a_gap(victim):
    disk, sent, end, _ = closed()
    logs = [name for name in disk.listdir(PATH) if name.endswith(".log")]
    disk.remove(f"{PATH}/{logs[victim]}")
    log = opened(disk, end)
    assert log.damage is not None
    missing = log.damage.missing
    log.close()
    assert accept_loss(disk, PATH) == missing
    again = opened(disk, end)
    assert again.damage is None
    assert again.log_end == end
    piece = again.read(max(missing[0][0], again.log_start), 10_000, limit=end)
    data = b"" if piece is None else piece.load()
    assert not data or read_header(data).base_offset == missing[0][1]
    assert bool(data) == (victim != -1)
    if victim == 0:
        assert again.log_start == missing[0][1]
    assert accept_loss(disk, PATH) == ()
    assert len(sent) == 24


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_any_file_lost_with_the_manifest_is_repaired_or_reported(data):
    """Where the mark of the clean stop names the log."""
    disk, sent, end, aborted = closed()
    disk.remove(f"{PATH}/{FILE_NAME}")
    name = data.draw(st.sampled_from(disk.listdir(PATH)))
    if data.draw(st.booleans()) or not name.endswith((".log", ".txnindex")):
        disk.remove(f"{PATH}/{name}")
    else:
        disk.write_atomic(f"{PATH}/{name}", b"")
    log = opened(disk, end, closed_start=0)
    assert (log.log_start, log.log_end) == (0, end)
    expected = {read_header(batch).base_offset: batch for batch in sent}
    seen = served(log)
    assert all(seen[offset] == expected[offset] for offset in seen)
    lost = expected.keys() - seen.keys()
    assert bool(lost) == (log.damage is not None) == name.endswith(".log")
    if log.damage is None:
        assert log.transactions.aborted(0, end) == aborted
    else:
        assert all(any(start <= offset < stop for start, stop in log.damage.missing) for offset in lost)
    check_damage_is_remembered(disk, log, end)


def test_a_log_that_starts_where_its_first_segment_was_deleted_is_whole():
    disk, _, end, _ = closed()
    log = opened(disk, end, closed_start=0)
    log.raise_log_start(log.segments[2].base_offset)
    start = log.log_start
    for segment in retain(log, NOW, end):
        segment.unlink()
    log.close()
    disk.remove(f"{PATH}/{FILE_NAME}")
    again = opened(disk, end, closed_start=start)
    assert again.damage is None
    assert (again.log_start, again.log_end) == (start, end)


@pytest.mark.parametrize("restarted", [False, True], ids=["since it was written", "found at the start"])
@pytest.mark.parametrize("closed_first", [False, True], ids=["sealed", "closed"])
def test_a_transaction_index_damaged_before_it_is_in_the_manifest_is_not_used(restarted, closed_first):
    """The manifest claims what the log knows, not what the file says by then."""
    disk, _, end, _ = closed()
    log = opened(disk, end)
    append(log, [b"in doubt"], epoch=3, producer_id=1, sequence=8, transactional=True)
    data, header = markers.build(1, 0, Marker(False, coordinator_epoch=3), NOW)
    log.append(memoryview(data), header, leader_epoch=3, now_ms=NOW)
    aborted, end = log.transactions.aborted(0, log.log_end), log.log_end
    if restarted:
        log.close()
        log = opened(disk, end)
    disk.flip_bit(f"{PATH}/{log.active.base_offset:020d}.txnindex", 4)
    if closed_first:
        log.close()
    else:
        while len(log.segments) < 12:
            append(log, [b"more"], epoch=3)
        job = log.prepare_sync()
        assert job is not None
        job.run()
        log.finish_sync(job)
    again = opened(disk, log.log_end, clean=closed_first)
    assert again.transactions.aborted(0, again.log_end) == aborted


def names(disk: SimDisk, suffix: str = ".log") -> list[str]:
    return [name for name in disk.listdir(PATH) if name.endswith(suffix)]


@pytest.mark.parametrize("clean", [True, False])
def test_files_with_swapped_names_are_detected(clean):
    disk, sent, end, _ = closed()
    sizes = {name: len(disk.read(f"{PATH}/{name}")) for name in names(disk)}
    first = names(disk)[0]
    second = next(name for name in names(disk)[1:] if sizes[name] != sizes[first])
    contents = disk.read(f"{PATH}/{first}"), disk.read(f"{PATH}/{second}")
    disk.write_atomic(f"{PATH}/{second}", contents[0])
    disk.write_atomic(f"{PATH}/{first}", contents[1])
    log = opened(disk, end, clean=clean)
    assert log.damage is not None
    expected = {read_header(batch).base_offset: batch for batch in sent}
    seen = served(log)
    assert all(expected[offset] == batch for offset, batch in seen.items())
    lost = expected.keys() - seen.keys()
    assert {int(first[:20]), int(second[:20])} <= lost
    assert all(any(start <= offset < stop for start, stop in log.damage.missing) for offset in lost)


@pytest.mark.parametrize("closed_first", [True, False])
@pytest.mark.parametrize("victim", [0, 2, -1])
@pytest.mark.parametrize("what", ["removed", "cut"])
def test_files_that_are_put_back_are_recognised(victim, closed_first, what):
    disk, sent, end, aborted = closed()
    name = names(disk)[victim]
    whole = disk.read(f"{PATH}/{name}")
    if what == "removed":
        disk.remove(f"{PATH}/{name}")
    else:
        disk.write_atomic(f"{PATH}/{name}", whole[:-5])
    log = opened(disk, end, closed_start=0, closed_end=end)
    assert log.damage is not None
    append(log, [b"more"], epoch=3)
    if closed_first:
        log.close()
    disk.write_atomic(f"{PATH}/{name}", whole)
    again = opened(disk, end + 1, clean=closed_first)
    assert again.damage is None
    assert list(served(again).values())[:-1] == sent
    assert again.log_end == end + 1
    assert again.transactions.aborted(0, end) == aborted


def test_an_older_manifest_beside_newer_files_cuts_nothing():
    disk, sent, end, _ = closed()
    older = disk.read(f"{PATH}/{FILE_NAME}")
    log = opened(disk, end)
    for _ in range(9):
        append(log, [b"more"], epoch=3)
    log.close()
    disk.write_atomic(f"{PATH}/{FILE_NAME}", older)
    again = opened(disk, log.log_end, closed_start=0, closed_end=log.log_end)
    assert again.damage is None
    assert len(served(again)) == len(sent) + 9
    assert not names(disk, ".damaged")


@pytest.mark.parametrize("act", ["removed", "emptied", "cut"])
def test_a_compacted_log_that_lost_a_segment_with_its_manifest_misses_it(act):
    disk, _, end, _ = closed()
    log = opened(disk, end)
    victim = log.segments[2]
    content = disk.read(victim.log.path)
    disk.remove(f"{PATH}/{FILE_NAME}")
    if act == "removed":
        disk.remove(victim.log.path)
    else:
        first = next(batches(content))[1].size
        disk.write_atomic(victim.log.path, content[:first] if act == "cut" else b"")
    log = PartitionLog.open(
        disk, PATH, CONFIG._replace(cleanup_compact=True), recovery_point=end, high_watermark=end, closed_start=0,
        closed_end=end, clean=True, topic_id=bytes(range(16)), now_ms=NOW,
    )  # fmt: skip
    assert log.damage is not None
    assert log.damage.missing[0][1] == log.segments[2 if act == "removed" else 3].base_offset
    assert log.damage.missing[0][0] >= victim.base_offset
