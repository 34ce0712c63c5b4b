"""Leader epoch cache: start offsets, and the end offset of an epoch."""

from __future__ import annotations

from random import Random

import pytest

from ottla.errors import Fault
from ottla.log.epochs import LeaderEpochs
from ottla.sim.disk import SimDisk


def test_the_latest_epoch_ends_at_the_log_end():
    assert LeaderEpochs([(1, 0), (4, 10)]).end_offset_for(4, 25) == (4, 25)


def test_an_epoch_ends_where_the_next_known_one_starts():
    assert LeaderEpochs([(1, 0), (4, 10)]).end_offset_for(1, 25) == (1, 10)


def test_the_end_of_an_epoch_without_records_is_that_of_the_one_before():
    assert LeaderEpochs([(1, 0), (4, 10)]).end_offset_for(3, 25) == (1, 10)


def test_an_epoch_older_than_all_ended_where_the_first_starts():
    assert LeaderEpochs([(3, 5), (4, 10)]).end_offset_for(1, 25) == (1, 5)


def test_an_epoch_newer_than_all_is_unknown():
    assert LeaderEpochs([(1, 0)]).end_offset_for(2, 25) == (-1, -1)
    assert LeaderEpochs().end_offset_for(0, 0) == (-1, -1)
    assert LeaderEpochs().end_offset_for(-1, 0) == (-1, -1)


def test_an_epoch_without_records_is_replaced_by_the_next():
    assert LeaderEpochs([(1, 0), (2, 10), (3, 10)]).entries == [(1, 0), (3, 10)]


def test_assigning_the_same_epoch_again_changes_nothing():
    epochs = LeaderEpochs([(1, 0)])
    epochs.assign(1, 7)
    assert epochs.entries == [(1, 0)]
    assert not epochs.dirty


def test_the_epoch_of_an_offset():
    epochs = LeaderEpochs([(1, 5), (4, 10)])
    assert [epochs.epoch_of(offset) for offset in (4, 5, 9, 10, 99)] == [-1, 1, 1, 4, 4]


def test_truncation_from_the_end_forgets_epochs_without_records():
    epochs = LeaderEpochs([(1, 0), (2, 10), (3, 20)])
    epochs.truncate_from_end(10)
    assert epochs.entries == [(1, 0)]
    assert epochs.dirty


@pytest.mark.parametrize(
    ("log_start", "left"),
    [(0, [(1, 0), (2, 10), (3, 20)]), (5, [(1, 5), (2, 10), (3, 20)]), (10, [(2, 10), (3, 20)]), (25, [(3, 25)])],
)
def test_truncation_from_the_start_keeps_the_epoch_that_owns_the_log_start(log_start, left):
    epochs = LeaderEpochs([(1, 0), (2, 10), (3, 20)])
    epochs.truncate_from_start(log_start)
    assert epochs.entries == left


def test_the_checkpoint_is_kafka_s():
    disk = SimDisk(Random(0))
    disk.mkdir("t-0")
    epochs = LeaderEpochs([(1, 0), (4, 10)])
    assert epochs.encode() == b"0\n2\n1 0\n4 10\n"
    disk.write_atomic("t-0/leader-epoch-checkpoint", epochs.encode())
    read = LeaderEpochs.read(disk, "t-0")
    assert read is not None
    assert read.entries == epochs.entries
    assert LeaderEpochs.read(disk, "t-1") is None


@pytest.mark.parametrize("text", [b"0\n2\n1 0\n", b"0\n1\none 0\n", b"0\n2\n4 0\n1 10\n", b"0\n2\n1 9\n4 3\n", b"\xff"])
def test_a_damaged_checkpoint_is_a_fault(text):
    disk = SimDisk(Random(0))
    disk.mkdir("t-0")
    disk.write_atomic("t-0/leader-epoch-checkpoint", text)
    with pytest.raises(Fault, match="leader-epoch-checkpoint is damaged"):
        LeaderEpochs.read(disk, "t-0")
