"""Directories of killed test runs are removed; those in use are not."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from ottla.testing.leftovers import Scratch

KILLED = (
    "from ottla.testing.leftovers import Scratch; import os; print(Scratch().path, flush=True); os.kill(os.getpid(), 9)"
)


def test_the_directory_of_a_killed_run_is_removed_and_one_in_use_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    left = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False).stdout.strip()
    assert Path(left).is_dir()
    mine = Scratch()
    assert not Path(left).exists()
    other = Scratch()
    assert Path(mine.path).is_dir()
    mine.remove()
    other.remove()
    assert list(tmp_path.iterdir()) == []
