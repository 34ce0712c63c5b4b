"""Temporary directories of test brokers, and removal of those that killed test runs left behind.

Each directory has a file that its process keeps locked. The next test broker that starts removes directories without a
lock, and kills brokers that still run in them (on Linux brokers end with the process that started them).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Final

PREFIX: Final = "ottla-test-"
LOCK: Final = "in-use"


class Scratch:
    """A temporary directory of this process."""

    def __init__(self) -> None:
        sweep()
        self.path = tempfile.mkdtemp(prefix=PREFIX)
        self._lock: IO[str] = open(Path(self.path) / LOCK, "w")  # noqa: SIM115 (held as long as the directory)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def sweep() -> None:
    """Remove the directories of killed runs."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        try:
            with lock.open("r+") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _end_brokers_in(lock.parent)
                shutil.rmtree(lock.parent, ignore_errors=True)
        except OSError:
            continue  # in use, removed meanwhile, or of another user


def _end_brokers_in(directory: Path) -> None:
    listed = subprocess.run(["ps", "-axo", "pid=,command="], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        number, _, command = line.strip().partition(" ")
        if f"{directory}/" in command and "ottla" in command and number.isdecimal():
            try:
                os.kill(int(number), signal.SIGKILL)
            except OSError:
                continue
