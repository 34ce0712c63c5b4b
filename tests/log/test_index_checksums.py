"""Index files against the checksums in the manifest: compared when an index is loaded, rebuilt with one line."""

from __future__ import annotations

import logging

import pytest

from ottla.log import manifest
from ottla.log.partition_log import PartitionLog
from ottla.sim.disk import SimDisk
from tests.log.batches import PATH, append, served
from tests.log.manifests import contradictions
from tests.log.test_damage import closed, opened


def flip(disk: SimDisk, path: str, at: int) -> None:
    data = bytearray(disk.read(path))
    data[at] ^= 1
    disk.write_atomic(path, bytes(data))


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
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
            break  # made anew with fewer entries
        flip(disk, path, at)
        log = opened(disk, end)
        assert not told(caplog), "nothing is read of it before it is needed"
        used(log)
        assert told(caplog) == [f"{path} is rebuilt from the log: it is not what its manifest says"]
        assert len(served(log)) == len(sent)
        log.close()
        assert contradictions(disk) == [], "it was written anew"
        caplog.clear()
        log = opened(disk, end)
        used(log)
        assert not told(caplog)
        log.close()


def test_an_index_that_grew_since_the_last_clean_stop_is_not_held_against_it(caplog):
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
    assert not told(caplog)
    claimed = manifest.read(disk, PATH)
    assert claimed is not None
    assert all(claim.index_crc != manifest.NO_CRC for claim in claimed.segments)
