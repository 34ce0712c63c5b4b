"""`make demo` without a terminal: it ends by itself, in good order, and what it says is counted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

REPOSITORY = Path(__file__).resolve().parent.parent
VERDICT = re.compile(r"^new leader after [\d.]+ s · acknowledged ([\d,]+) · lost 0 · duplicated 0 · reordered 0$", re.M)


def test_the_demo_kills_a_leader_and_a_member_and_loses_nothing():
    done = subprocess.run(
        [sys.executable, "-m", "demo"],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    verdict = VERDICT.search(said)
    assert verdict is not None, said
    assert int(verdict[1].replace(",", "")) > 10_000
    assert "bert has 0, 1, 2, 3, 4, 5" in said
    assert "1 member reading, lag 0 records" in said
    assert "Still running" not in said
