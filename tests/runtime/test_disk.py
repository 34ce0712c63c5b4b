"""The disk of the operating system: files opened on demand, few descriptors, errors with the path."""

from __future__ import annotations

import os
import threading
from functools import partial
from random import Random

import pytest

from ottla.errors import StorageFault, SyncFault
from ottla.runtime.disk import RealDisk
from ottla.sim.disk import SimDisk


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def test_the_first_write_creates_a_file(tmp_path):
    path = str(tmp_path / "log")
    file = RealDisk().open(path, create=True)
    assert not os.path.exists(path)
    assert file.size() == 0
    file.append(b"abc", b"def")
    assert file.size() == 6
    assert file.pread(10, 2) == b"cdef"
    assert file.pread_nowait(3, 0) == b"abc"
    file.close()


def test_many_files_need_few_descriptors(tmp_path):
    disk = RealDisk(open_files_max=5)
    before = descriptors()
    files = [disk.open(str(tmp_path / str(n)), create=True) for n in range(50)]
    for number, file in enumerate(files):
        file.append(b"%d" % number)
    assert descriptors() - before <= 5
    for number, file in enumerate(files):
        assert file.pread(10, 0) == b"%d" % number
        file.append(b"!")
    assert [file.size() for file in files] == [len(str(n)) + 1 for n in range(50)]
    for file in files:
        file.close()
    assert descriptors() <= before


def test_reading_in_threads_while_descriptors_come_and_go(tmp_path):
    disk = RealDisk(open_files_max=2)
    files = [disk.open(str(tmp_path / str(n)), create=True) for n in range(8)]
    for number, file in enumerate(files):
        file.append(bytes([number]) * 1000)
    wrong: list[int] = []

    def read(number: int) -> None:
        whole = bytes([number]) * 1000
        if any(files[number].pread(1000, 0) != whole for _ in range(300)):
            wrong.append(number)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for file in files:
        file.close()


def test_appends_to_a_truncated_file_begin_at_its_end(tmp_path):
    file = RealDisk().open(str(tmp_path / "log"), create=True)
    file.append(b"0123456789")
    file.truncate(4)
    file.append(b"x")
    assert file.pread(100, 0) == b"0123x"
    file.close()


def test_bytes_in_the_middle_of_a_file_are_overwritten(tmp_path):
    disk = RealDisk()
    path = str(tmp_path / "file")
    file = disk.open(path, create=True)
    file.append(b"0123456789")
    disk.overwrite(path, b"abc", 3)
    assert file.pread(100, 0) == b"012abc6789"
    file.append(b"x")
    assert disk.read(path) == b"012abc6789x"
    with pytest.raises(StorageFault, match="other"):
        disk.overwrite(str(tmp_path / "other"), b"abc", 3)


def test_pread_once_reads_a_file_to_its_end(tmp_path):
    disk = RealDisk()
    path = str(tmp_path / "file")
    data = os.urandom(300_000)
    writer = disk.open(path, create=True)
    writer.append(data)
    writer.sync()
    once = disk.open(path)
    chunks = [once.pread_once(70_000, at) for at in range(0, 400_000, 70_000)]
    assert b"".join(chunks) == data
    once.close()
    with pytest.raises(StorageFault, match="other"):
        disk.open(str(tmp_path / "other")).pread_once(10, 0)


def test_errors_name_the_path(tmp_path):
    file = RealDisk().open(str(tmp_path / "nowhere" / "log"), create=True)
    with pytest.raises(StorageFault, match="nowhere/log"):
        file.append(b"x")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_a_storage_fault_until_there_is_space(tmp_path):
    path = tmp_path / "log"
    path.symlink_to("/dev/full")
    file = RealDisk().open(str(path), create=True)
    with pytest.raises(StorageFault, match="No space left"):
        file.append(b"x")
    path.unlink()
    file.append(b"x")
    assert path.read_bytes() == b"x"
    file.close()


def test_a_lock_is_held_by_one_and_free_when_released(tmp_path):
    disk = RealDisk()
    lock = disk.lock(str(tmp_path / ".lock"))
    assert lock is not None
    assert disk.lock(str(tmp_path / ".lock")) is None
    lock.release()
    again = disk.lock(str(tmp_path / ".lock"))
    assert again is not None
    again.release()


def test_an_atomic_write_replaces_the_whole_file(tmp_path):
    disk = RealDisk()
    path = str(tmp_path / "checkpoint")
    disk.write_atomic(path, b"old and long")
    disk.write_atomic(path, b"new")
    assert disk.read(path) == b"new"
    assert disk.listdir(str(tmp_path)) == ["checkpoint"]
    with pytest.raises(FileNotFoundError):
        disk.read(path + ".missing")


def test_listdir_of_a_file_is_empty(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    assert RealDisk().listdir(str(tmp_path / "file")) == []
    assert RealDisk().listdir(str(tmp_path / "nothing")) == []


def test_files_of_together_are_durable_at_its_end(tmp_path):
    disk = RealDisk()
    old = str(tmp_path / "checkpoint")
    disk.write_atomic(old, b"old")
    with disk.together(str(tmp_path)):
        file = disk.open(str(tmp_path / "log"), create=True)
        file.append(b"abc")
        file.sync()
        disk.write_atomic(old, b"new")
        disk.sync_dir(str(tmp_path))
    assert disk.read(old) == b"new"
    assert disk.read(str(tmp_path / "log")) == b"abc"
    assert disk.listdir(str(tmp_path)) == ["checkpoint", "log"]
    file.sync()


def test_files_use_at_most_half_of_the_descriptors(tmp_path, monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda which: (16, 16))
    disk = RealDisk()
    before = descriptors()
    files = [disk.open(str(tmp_path / str(n)), create=True) for n in range(20)]
    for file in files:
        file.append(b"x")
    assert descriptors() - before <= 8
    for file in files:
        file.close()


def test_two_threads_may_write_one_file_at_once(tmp_path):
    disk, path = RealDisk(), str(tmp_path / "file")
    faults = []

    def write(content):
        for _ in range(50):
            try:
                disk.write_atomic(path, content)
            except StorageFault as fault:
                faults.append(fault)

    threads = [threading.Thread(target=write, args=(content,)) for content in (b"a" * 20, b"b" * 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert disk.read(path) in (b"a" * 20, b"b" * 200)
    assert disk.listdir(str(tmp_path)) == ["file"]


def test_a_failed_atomic_write_leaves_no_file(tmp_path, monkeypatch):
    def refuse(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageFault, match="No space"):
        RealDisk().write_atomic(str(tmp_path / "file"), b"content")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("real", [False, True])
def test_a_rename_does_not_replace_a_directory_with_files(tmp_path, real):
    disk = RealDisk() if real else SimDisk(Random(1))
    for name in ("old", "new", "empty"):
        disk.mkdir(f"{tmp_path}/{name}")
    disk.open(f"{tmp_path}/old/file", create=True).append(b"old")
    disk.open(f"{tmp_path}/new/file", create=True).append(b"new")
    with pytest.raises(StorageFault, match="not empty"):
        disk.rename(f"{tmp_path}/old", f"{tmp_path}/new")
    disk.rename(f"{tmp_path}/old", f"{tmp_path}/empty")
    assert disk.read(f"{tmp_path}/empty/file") == b"old"
    assert disk.read(f"{tmp_path}/new/file") == b"new"


def test_a_failed_sync_of_a_directory_is_a_sync_fault(tmp_path, monkeypatch):
    def refuse(fd):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(SyncFault):
        RealDisk().sync_dir(str(tmp_path))


def test_after_a_failed_fsync_every_later_sync_fails(tmp_path, monkeypatch):
    sound = os.fsync

    def fail_once(fd):
        monkeypatch.setattr(os, "fsync", sound)
        raise OSError(5, "Input/output error")

    disk = RealDisk()
    reported: list[SyncFault] = []
    disk.on_sync_failure(reported.append)
    file = disk.open(f"{tmp_path}/file", create=True)
    file.append(b"x")
    monkeypatch.setattr(os, "fsync", fail_once)
    for ask in (file.sync, file.sync, partial(disk.sync_dir, str(tmp_path)), partial(disk.write_atomic, "mark", b"")):
        with pytest.raises(SyncFault):
            ask()
    assert len(reported) == 1


def test_reads_inside_together_see_new_contents(tmp_path):
    disk = RealDisk()
    path = str(tmp_path / "checkpoint")
    disk.write_atomic(path, b"old")
    with disk.together(str(tmp_path)):
        disk.write_atomic(path, b"new")
        assert disk.read(path) == b"new"
        disk.write_atomic(path, b"newer")
        assert disk.read(path) == b"newer"
    assert disk.read(path) == b"newer"
    assert os.listdir(tmp_path) == ["checkpoint"]
