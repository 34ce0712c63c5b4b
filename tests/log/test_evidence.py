"""Evidence of what a log must hold, where its manifest is lost or another's. A log start that is guessed is never taken
for proven, what tells of an earlier one is believed, and holes between segments are damage."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest

from ottla.errors import ErrorCode, Refused
from ottla.log.epochs import FILE_NAME as EPOCHS
from ottla.log.log_config import LogConfig
from ottla.log.manifest import FILE_NAME, read
from ottla.log.partition_log import PartitionLog
from ottla.log.retention import retain
from ottla.log.verify import verify_partition
from ottla.runtime.disk import RealDisk
from ottla.sim.disk import SimDisk
from ottla.wire.batch import batches
from tests.log.batches import NOW, PATH, append, fill, served
from tests.log.test_damage import CONFIG, closed, logs, opened

INDEXES = (".index", ".timeindex")


def killed(disk: SimDisk, **options) -> PartitionLog:
    return PartitionLog.open(disk, PATH, CONFIG, topic_id=bytes(range(16)), now_ms=NOW, **options)


def young(*, synced: bool) -> tuple[SimDisk, int]:
    """A log that was killed in its first seconds. Its second segment begins at the offset."""
    disk = SimDisk(Random(5))
    log = killed(disk)
    fill(log, 12)
    if synced:
        log.sync()
    return disk, log.segments[1].base_offset


def lose_first(disk: SimDisk, *endings: str) -> None:
    for ending in (".log", *endings):
        disk.remove(f"{PATH}/{0:020d}{ending}")
    disk.remove(f"{PATH}/{FILE_NAME}")


@pytest.mark.parametrize("recorded_by", ["epochs", "indexes"])
def test_a_first_segment_lost_with_the_manifest_is_damage_if_any_file_proves_it(recorded_by):
    disk, second = young(synced=recorded_by == "epochs")
    lose_first(disk, *(INDEXES if recorded_by == "epochs" else ()))
    assert disk.exists(f"{PATH}/{EPOCHS}") == (recorded_by == "epochs")
    found = verify_partition(disk, PATH, finished=False).findings
    assert any(finding.records and finding.offset == 0 for finding in found)
    log = killed(disk)
    assert log.damage is not None
    assert log.damage.missing == ((0, second),)
    assert log.log_start == 0
    again = killed(disk)
    assert again.damage is not None
    assert again.damage.missing == ((0, second),)


def test_a_guessed_log_start_is_not_reported_as_proven():
    """Nothing tells of the first segment: the log starts behind it, and no follower deletes what it has."""
    disk, second = young(synced=False)
    lose_first(disk, *INDEXES)
    log = killed(disk)
    for _ in range(2):
        assert log.damage is None
        assert log.log_start == second
        assert log.proven_start == 0
        append(log)
        log.close()
        log = killed(disk, clean=True)
    append(log)
    log.sync()
    assert log.proven_start == 0
    third = log.segments[1].base_offset
    log.raise_log_start(third)
    retain(log, NOW, log.log_end)
    assert log.proven_start == third


@pytest.mark.parametrize("lost", [(), (EPOCHS,)])
def test_a_log_start_that_is_proven_elsewhere_is_proven_without_a_manifest(lost):
    disk = SimDisk(Random(5))
    log = killed(disk)
    fill(log, 12)
    log.raise_log_start(log.segments[2].base_offset)
    for segment in retain(log, NOW, log.log_end):
        segment.unlink()
    log.sync()
    for name in (FILE_NAME, *lost):
        disk.remove(f"{PATH}/{name}")
    recorded = {"started": log.log_start, "log_start": log.log_start} if lost else {}
    again = killed(disk, **recorded)
    assert again.damage is None
    assert again.proven_start == again.log_start == log.log_start
    written = read(disk, PATH)
    assert written is not None
    assert written.proven_start == log.log_start


def test_segments_that_were_about_to_be_deleted_are_not_missed():
    """By a release that writes no manifest; its epochs are written later."""
    disk = SimDisk(Random(5))
    log = killed(disk)
    fill(log, 12)
    log.sync()
    log.raise_log_start(log.segments[2].base_offset)
    retain(log, NOW, log.log_end)
    disk.remove(f"{PATH}/{FILE_NAME}")
    again = killed(disk)
    assert again.damage is None
    assert again.log_start == log.log_start


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("what", ["removed", "emptied", "cut at a batch", "cut in a batch"])
def test_a_hole_between_segments_is_damage_though_the_manifest_is_lost(what, clean):
    disk, _, end, _ = closed()
    disk.remove(f"{PATH}/{FILE_NAME}")
    victim = logs(disk)[2]
    content = disk.read(victim)
    if what == "removed":
        disk.remove(victim)
    else:
        first = 12 + int.from_bytes(content[8:12], "big")
        disk.write_atomic(victim, content[: {"emptied": 0, "cut at a batch": first}.get(what, first + 70)])
    following = int(logs(disk)[3 if what != "removed" else 2].rpartition("/")[2][:20])
    log = opened(disk, end, clean=clean)
    base = int(victim.rpartition("/")[2][:20])
    start = base if what in ("removed", "emptied") else base + 1
    assert log.damage is not None
    assert log.damage.missing == ((start, following),)
    assert log.log_end == end
    assert sorted(served(log)) == [offset for offset in range(end) if not start <= offset < following]
    with pytest.raises(Refused) as refused:
        log.read(start, 1, limit=end)
    assert refused.value.code is ErrorCode.kafka_storage_error


@pytest.mark.parametrize("how", ["by its policy", "before"])
def test_a_log_that_was_compacted_may_have_holes(how):
    disk, _, end, _ = closed()
    disk.remove(f"{PATH}/{FILE_NAME}")
    disk.remove(logs(disk)[2])
    config, cleaned = (CONFIG._replace(cleanup_compact=True), 0) if how == "by its policy" else (CONFIG, end)
    log = PartitionLog.open(
        disk, PATH, config, recovery_point=end, high_watermark=end, cleaned=cleaned, clean=True, now_ms=NOW
    )
    assert log.damage is None
    assert log.cleaned == cleaned


def test_a_hole_before_the_log_start_is_no_damage():
    disk, _, end, _ = closed()
    disk.remove(f"{PATH}/{FILE_NAME}")
    disk.remove(logs(disk)[1])
    start = int(logs(disk)[2].rpartition("/")[2][:20])
    log = PartitionLog.open(disk, PATH, CONFIG, recovery_point=end, log_start=start, clean=True, now_ms=NOW)
    assert log.damage is None
    assert log.log_start == start


def test_a_manifest_of_another_topic_proves_nothing():
    disk, _, end, _ = closed()
    manifest = read(disk, PATH)
    assert manifest is not None
    other = manifest._replace(topic_id=bytes(16), segments=manifest.segments[:1], active=None, log_start=5)
    disk.write_atomic(f"{PATH}/{FILE_NAME}", other.encode())
    log = opened(disk, end)
    assert any("is another topic's" in note for note in log.recovery.notes)
    assert log.log_start == 0
    assert log.damage is None


@pytest.mark.parametrize("kind", ["log", "index", "timeindex", "snapshot", FILE_NAME, "leader-epoch-checkpoint"])
def test_a_directory_with_the_name_of_a_file_is_quarantined(tmp_path: Path, kind):
    disk, path, config = RealDisk(), str(tmp_path / "t-0"), LogConfig(segment_bytes=400, index_interval_bytes=0)
    log = PartitionLog.open(disk, path, config, now_ms=int(time.time() * 1000))
    for number in range(20):
        append(log, [b"%d" % number], producer_id=3, sequence=number)
    end = log.log_end
    log.close()
    (victim,) = [name for name in sorted(disk.listdir(path)) if name.endswith(kind)][-1:]
    (tmp_path / "t-0" / victim).unlink()
    (tmp_path / "t-0" / victim).mkdir()
    (tmp_path / "t-0" / victim / "inside").write_text("")
    log = PartitionLog.open(
        disk, path, config, recovery_point=end, high_watermark=end, clean=True, now_ms=int(time.time() * 1000)
    )
    for segment in log.segments:
        segment.load_indexes()
    assert log.log_end == end
    assert (log.damage is not None) == (kind == "log")
    append(log, [b"more"], producer_id=3, sequence=20)
    log.close()
    log = PartitionLog.open(
        disk, path, config, recovery_point=end + 1, high_watermark=end + 1, clean=True, now_ms=int(time.time() * 1000)
    )
    assert log.log_end == end + 1
    assert log.recovery.notes == ()
    log.close()


def test_noise_after_a_closed_segment_is_truncated_without_a_manifest_too():
    disk, _ = young(synced=True)
    name = f"{PATH}/{0:020d}.log"
    data = disk.read(name)
    disk.write_atomic(name, data + Random(3).randbytes(84))
    disk.remove(f"{PATH}/{FILE_NAME}")
    log = killed(disk, recovery_point=12)
    assert log.damage is None
    assert log.segments[0].size == len(data)
    assert disk.read(name) == data
    assert any("cut back" in note for note in log.recovery.notes)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("act", ["cut", "extended"])
def test_the_end_of_a_closed_segment_of_a_compacted_log_without_a_manifest_is_whole_batches(act, clean):
    """As in a data directory of a release that writes no manifest."""
    disk = SimDisk(Random(5))
    config = LogConfig(segment_bytes=400, index_interval_bytes=0, cleanup_compact=True, cleanup_delete=False)
    log = PartitionLog.open(disk, PATH, config, now_ms=NOW)
    fill(log, 20)
    end, second, size = log.log_end, log.segments[1].base_offset, log.segments[0].size
    log.close()
    name = f"{PATH}/{0:020d}.log"
    data = disk.read(name)
    disk.write_atomic(name, data[:-30] if act == "cut" else data + Random(3).randbytes(36))
    disk.remove(f"{PATH}/{FILE_NAME}")
    log = PartitionLog.open(disk, PATH, config, clean=clean, recovery_point=end, alone=True, now_ms=NOW)
    batch = next(iter(batches(data)))[1].size
    if act == "cut":
        assert log.damage is not None
        assert log.damage.missing == ((second - 1, second),)
        assert log.segments[0].size == size - batch
    else:
        assert log.damage is None
        assert disk.read(name) == data
    assert log.log_end == end
