"""Runs a function of a test in an interpreter of its own.

For tests that look at what a whole process holds (threads, descriptors): brokers that other tests share live in the
process of the test run, and open segments and threads whenever they like.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 240


def run_alone(function: Callable[[], None], temporary: Path) -> str:
    """What the function printed; its temporary files are made in `temporary`. A failed assertion fails here, too."""
    program = f"from {function.__module__} import {function.__qualname__} as function; function()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
