"""The manifest: its claims, when they are written, and that they are always true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import Refused, StorageFault
from ottla.log.log_config import LogConfig
from ottla.log.manifest import (
    FILE_NAME,
    NO_CRC,
    Manifest,
    ManifestDamaged,
    SegmentClaim,
    _snapshot_of,
    file_crc,
    read,
    without,
)
from ottla.log.partition_log import PartitionLog
from ottla.log.scrub import derived_damage
from ottla.sim.disk import SimDisk
from tests.log.batches import NOW, PATH, append, fill, stored
from tests.log.compacting import compact, put
from tests.log.manifests import contradictions
from tests.log.test_transactions import end, write
from tests.log.test_truncation import RefusingDisk

SMALL: dict[str, Any] = {"segment_bytes": 250, "index_interval_bytes": 0}
CONFIG = LogConfig(**SMALL)
OFFSETS = st.integers(0, 2**62)
CRCS = st.integers(-1, 2**32 - 1)
CLAIMS = st.builds(SegmentClaim, OFFSETS, OFFSETS, OFFSETS, CRCS, CRCS, CRCS)


@given(
    st.builds(
        Manifest, st.integers(-1, 2**62), st.tuples(CLAIMS, CLAIMS), st.none() | CLAIMS, st.integers(-1, 2**62),
        st.just(()) | st.tuples(st.tuples(OFFSETS, OFFSETS)), st.none() | st.binary(min_size=16, max_size=16), CRCS,
        st.just(()) | st.tuples(st.tuples(OFFSETS, OFFSETS)),
    )
)  # fmt: skip
def test_the_manifest_is_read_as_it_was_written(manifest):
    assert Manifest.decode(manifest.encode()) == manifest


@given(st.data())
def test_every_flipped_bit_and_every_truncation_is_detected(data):
    encoded = Manifest(7, (SegmentClaim(0, 9, 100, 1, 2, 3),), SegmentClaim(9, 12, 50)).encode()
    at = data.draw(st.integers(0, len(encoded) * 8 - 1))
    flipped = bytearray(encoded)
    flipped[at // 8] ^= 1 << at % 8
    for damaged in (bytes(flipped), encoded[: at // 8]):
        with pytest.raises(ManifestDamaged):
            Manifest.decode(damaged)


def test_a_closed_segment_is_claimed_when_it_is_flushed(disk, open_log):
    log = open_log(**SMALL)
    fill(log, 7)
    assert read(disk, PATH) is None
    log.sync()
    manifest = read(disk, PATH)
    assert manifest is not None
    closed_segments = [segment.base_offset for segment in log.segments[:-1]]
    assert [claim.base_offset for claim in manifest.segments] == closed_segments
    assert [claim.end_offset for claim in manifest.segments] == [*closed_segments[1:], log.active.base_offset]
    first = manifest.segments[0]
    assert (first.size, first.txnindex_crc) == (log.segments[0].size, -1)
    assert first.index_crc == file_crc(disk, f"{PATH}/{0:020d}.index")
    assert manifest.active is None
    assert contradictions(disk) == []


def test_a_clean_close_claims_the_active_segment(disk, open_log):
    log = open_log(**SMALL)
    fill(log, 7)
    log.close()
    manifest = read(disk, PATH)
    assert manifest is not None
    assert manifest.active is not None
    assert manifest.active[:3] == (log.active.base_offset, 7, log.active.size)
    assert manifest.end_offset == 7


def test_a_manifest_removed_by_another_process_is_rebuilt(disk, open_log):
    """Apache Kafka and earlier releases remove what ends in .deleted when they open a log."""
    log = open_log(**SMALL)
    sent = fill(log, 7)
    log.close()
    before = read(disk, PATH)
    disk.remove(f"{PATH}/{FILE_NAME}")
    log = open_log(clean=True, **SMALL)
    assert log.recovery.notes == ()
    assert stored(log) == sent
    log.close()
    assert read(disk, PATH) == before


def test_a_damaged_manifest_is_rebuilt_and_reported(disk, open_log):
    log = open_log(**SMALL)
    sent = fill(log, 7)
    log.close()
    before = read(disk, PATH)
    disk.flip_bit(f"{PATH}/{FILE_NAME}")
    log = open_log(clean=True, **SMALL)
    (note,) = log.recovery.notes
    assert FILE_NAME in note
    assert "rebuilt" in note
    assert stored(log) == sent
    log.close()
    assert read(disk, PATH) == before


def test_the_log_start_is_durable_before_a_file_loses_its_name(disk, open_log):
    log = open_log(retention_bytes=400, **SMALL)
    fill(log, 12)
    log.sync()
    names = disk.rename

    def rename(old, new):
        manifest = read(disk, PATH)
        assert manifest is not None
        assert manifest.log_start > int(old.rpartition("/")[2][:20])
        names(old, new)

    disk.rename = rename
    assert log.retain(NOW, 12)
    assert log.proven_start == log.log_start == log.segments[0].base_offset > 0


def test_a_log_start_is_not_proven_before_it_is_written_down(disk, open_log):
    log = open_log(**SMALL)
    fill(log, 7)
    log.sync()
    log.raise_log_start(3)
    assert log.proven_start == 0
    log.prove_start(3)
    assert log.proven_start == 3
    disk.process_died()
    assert open_log(**SMALL).log_start == 3


def test_partitions_can_be_dropped_on_a_full_disk(disk, open_log):
    log = open_log(retention_bytes=400, **SMALL)
    fill(log, 12)
    log.sync()
    disk.capacity_bytes = 0
    assert log.retain(NOW, 12)
    assert read(disk, PATH) is None
    assert log.proven_start == -1


def test_checkpoints_count_up_to_a_truncation_until_they_are_written(disk, open_log):
    log = open_log(**SMALL)
    fill(log, 7)
    log.sync()
    log.truncate_to(4, NOW)
    manifest = read(disk, PATH)
    assert manifest is not None
    assert manifest.cut == 4
    log.manifest.checkpointed(log.manifest.cuts)
    assert read(disk, PATH) == manifest._replace(cut=-1)


def test_a_truncation_behind_the_recovery_point_writes_nothing(disk, open_log):
    log = open_log(**SMALL)
    fill(log, 4)
    log.sync()
    before = disk.read(f"{PATH}/{FILE_NAME}")
    fill(log, 4)
    log.truncate_to(5, NOW)
    assert disk.read(f"{PATH}/{FILE_NAME}") == before


class KillingDisk(RefusingDisk):
    """Once it has refused a step it refuses all others."""

    killed = False

    def room(self, path: str) -> int:
        if self.killed:
            raise StorageFault(f"cannot write to {path}: Input/output error")
        try:
            return super().room(path)
        except StorageFault:
            self.killed = True
            raise


def closed(log):
    fill(log, 6)
    log.close()


def compacted(log: PartitionLog) -> None:
    compact(log, roll=False)


ACTS: dict[str, Callable[[PartitionLog], object]] = {
    "truncated": lambda log: log.truncate_to(5, NOW),
    "restarted": lambda log: log.truncate_fully_and_start_at(100, NOW),
    "retained": lambda log: log.retain(NOW, log.log_end),
    "compacted": compacted,
    "synced": lambda log: (fill(log, 6), log.sync()),
    "closed": closed,
}


def interrupted(act: Callable[[PartitionLog], object]) -> Iterator[tuple[KillingDisk, PartitionLog]]:
    """The disk refuses everything from some step on, as if the process were killed there; each time another step."""
    for step in count():
        disk = KillingDisk(Random(step))
        config = CONFIG._replace(retention_bytes=600, cleanup_compact=True, min_cleanable_dirty_ratio=0.0)
        log = PartitionLog.open(disk, PATH, config, now_ms=NOW)
        for at in range(12):
            put(log, [(b"key %d" % (at % 3), b"value %d" % at)], epoch=at // 5)
        log.sync()
        disk.left = step
        try:
            act(log)
        except (StorageFault, Refused):
            pass
        refused = disk.killed
        yield disk, log
        if not refused:
            assert step > 3
            return


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power lost"])
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_after_a_crash_at_any_point_the_manifest_is_true(act, power):
    for disk, log in interrupted(act):
        disk.killed = False
        disk.left = None
        if power:
            disk.crash()
        else:
            disk.process_died()
        assert contradictions(disk) == []
        again = PartitionLog.open(disk, PATH, log.config, recovery_point=min(log.recovery_point, 5), now_ms=NOW)
        again.close()
        assert contradictions(disk) == []


def test_a_log_of_the_release_before_is_claimed_when_it_is_closed(disk, open_log):
    log = open_log(**SMALL)
    sent = fill(log, 7)
    log.close()
    disk.remove(f"{PATH}/{FILE_NAME}")
    log = open_log(clean=True, **SMALL)
    sent += [append(log, [b"more"])]
    log.close()
    assert contradictions(disk) == []
    log = open_log(clean=True, **SMALL)
    assert stored(log) == sent


def test_many_ranges_are_taken_from_others_at_no_great_cost():
    gone = [(at, at + 1) for at in range(0, 400, 2)]
    assert without([(0, 400)], gone) == tuple((at, at + 1) for at in range(1, 400, 2))
    assert without([(500, 501)], gone) == ((500, 501),)


def test_a_transaction_index_that_changes_before_its_segment_is_claimed_is_not_claimed_as_it_is():
    """Recovery has made it again, and its memory was released: the file is not asked what it should be."""
    disk = SimDisk(Random(2))
    config = LogConfig(segment_bytes=1000)
    log = PartitionLog.open(disk, PATH, config, now_ms=NOW)
    for sequence in range(20):
        write(log, 7, sequence)
        end(log, 7, committed=False)
    log = PartitionLog.open(disk, PATH, config, now_ms=NOW)
    index = f"{PATH}/{0:020d}.txnindex"
    data = disk.read(index)
    log.release_memory(log.log_end)
    disk.flip_bit(index, 75)
    log.sync()
    claim = log.manifest.claim(0)
    assert claim is not None
    assert claim.txnindex_crc == crc32c(data)
    assert derived_damage(log, claim) == [index]


def test_snapshots_without_a_checksum_are_known_by_their_offset():
    claims = ((300, NO_CRC), (528, 0xA0818F96))
    found = Manifest.decode(Manifest(0, snapshots=claims).encode())
    assert found.snapshots == claims
    assert _snapshot_of("300") == claims[0]
