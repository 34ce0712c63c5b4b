"""The simulated disk loses only what a real disk may lose."""

from __future__ import annotations

from random import Random

import pytest

from ottla.errors import StorageFault
from ottla.sim.disk import SimDisk


def crashed(seed, prepare):
    disk = SimDisk(Random(seed))
    disk.mkdir("d")
    prepare(disk)
    disk.crash()
    return disk


def outcomes(prepare, path="d/f"):
    """What the file may hold after a crash, over many of them; None when it is not there."""
    found = set()
    for seed in range(200):
        disk = crashed(seed, prepare)
        found.add(disk.read(path) if disk.exists(path) else None)
    return found


def test_synced_bytes_survive_a_crash():
    def prepare(disk):
        file = disk.open("d/f", create=True)
        file.append(b"abc")
        file.sync()
        disk.sync_dir("d")

    assert outcomes(prepare) == {b"abc"}


def test_a_crash_keeps_any_prefix_of_unsynced_bytes():
    def prepare(disk):
        file = disk.open("d/f", create=True)
        file.append(b"abc")
        file.sync()
        disk.sync_dir("d")
        file.append(b"def")

    found = outcomes(prepare)
    assert {b"abc", b"abcd", b"abcde", b"abcdef"} <= found
    assert all(content.startswith(b"abc") for content in found)
    assert b"abc\0\0\0" in found


def test_a_name_survives_only_with_its_directory():
    def prepare(disk):
        file = disk.open("d/f", create=True)
        file.append(b"abc")
        file.sync()

    assert outcomes(prepare) == {None, b"abc"}


def test_a_truncation_may_be_undone():
    def prepare(disk):
        file = disk.open("d/f", create=True)
        file.append(b"abcdef")
        file.sync()
        disk.sync_dir("d")
        file.truncate(2)

    assert outcomes(prepare) == {b"ab", b"abcdef"}


def test_names_change_in_order():
    def prepare(disk):
        for name in "xyz":
            disk.open(f"d/{name}", create=True).append(b"")

    listings = {tuple(crashed(seed, prepare).listdir("d")) for seed in range(100)}
    assert listings == {(), ("x",), ("x", "y"), ("x", "y", "z")}


def test_an_atomic_write_is_there_or_not():
    def prepare(disk):
        disk.write_atomic("d/f", b"old")
        disk.write_atomic("d/f", b"new")

    assert outcomes(prepare) == {b"new"}


def test_handles_die_with_the_crash():
    disk = SimDisk(Random(0))
    disk.mkdir("d")
    file = disk.open("d/f", create=True)
    file.append(b"abc")
    disk.crash()
    with pytest.raises(AssertionError):
        file.pread(1, 0)


def test_a_full_disk_takes_what_fits():
    disk = SimDisk(Random(0), capacity_bytes=5)
    disk.mkdir("d")
    file = disk.open("d/f", create=True)
    with pytest.raises(StorageFault, match="No space"):
        file.append(b"abcdefgh")
    assert file.pread(10, 0) == b"abcde"
    file.truncate(0)
    file.append(b"abc")


def test_a_handle_keeps_to_its_file_through_a_rename():
    disk = SimDisk(Random(0))
    disk.mkdir("d")
    file = disk.open("d/f", create=True)
    file.append(b"abc")
    disk.rename("d/f", "d/g")
    assert file.pread(3, 0) == b"abc"
    file.close()
    with pytest.raises(StorageFault):
        file.pread(3, 0)


def test_one_seed_is_one_history():
    def prepare(disk):
        disk.open("d/f", create=True).append(bytes(range(100)))

    assert [crashed(3, prepare).listdir("d") for _ in range(3)] == [crashed(3, prepare).listdir("d")] * 3


def test_a_directory_is_renamed_with_all_that_is_in_it_or_not_at_all():
    def prepare(disk):
        disk.mkdir("d/old")
        for name in ("a", "b"):
            disk.write_atomic(f"d/old/{name}", name.encode())
        disk.rename("d/old", "d/new")
        assert disk.listdir("d/new") == ["a", "b"]
        assert not disk.exists("d/old")

    found = {tuple(crashed(seed, prepare).listdir(f"d/{name}")) for seed in range(50) for name in ("old", "new")}
    assert found == {(), ("a", "b")}
