"""What a query has said is kept for `ottla pipeline status`, and told in words. No Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("yaml", reason="needs PyYAML: make test installs it")

from click.testing import CliRunner

from ottla.cli.main import cli
from ottla.spark.pipeline import document, running
from ottla.spark.pipeline.document import Pipeline

FILE = """\
name: n
storage: {place}
sources: {{b: {{format: rate}}}}
sinks: {{a: {{from: b, format: noop}}}}
"""


class Query:
    """A streaming query as PySpark shows it."""

    def __init__(self) -> None:
        self.recentProgress: list[dict[str, Any]] = []
        self.isActive = True
        self.failure: Exception | None = None

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return self.recentProgress[-1] if self.recentProgress else None

    def exception(self) -> Exception | None:
        return self.failure

    def stop(self) -> None:
        self.isActive = False

    def progress(self, batch: int, rows: int, *late: int) -> None:
        source = {"description": "ottla", "endOffset": '{"t":{"0":1}}', "latestOffset": None}
        self.recentProgress.append(
            {
                "timestamp": f"2026-11-17T10:00:{len(self.recentProgress):02}Z",
                "batchId": batch,
                "numInputRows": rows,
                "durationMs": {"triggerExecution": 100},
                "observedMetrics": {},
                "sources": [source],
                "stateOperators": [{"numRowsTotal": 1, "numRowsDroppedByWatermark": each} for each in late],
            }
        )


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "p.yaml"
    path.write_text(FILE.format(place=tmp_path / "data"))
    return path


def started(pipeline: Pipeline, query: Query, said: list[str]) -> running._Query:
    made = running._Query(pipeline, "a", "", lambda: cast("Any", query), said.append)
    made.start()
    return made


def status(file: Path) -> str:
    told = CliRunner().invoke(cli, ["pipeline", "status", str(file)])
    assert told.exit_code == 0, told.output
    return told.output


def test_rows_that_came_too_late_are_counted_through_all_batches(file):
    query = Query()
    looked = started(document.read(file), query, [])
    query.progress(0, 5, 0, 0)
    query.progress(1, 7, 2, 1)
    looked.look(0.0)
    query.progress(2, 4, 3, 0)
    query.progress(3, 0, 0, 0)
    looked.look(1.0)
    looked.look(2.0)
    looked.stop()
    assert "16 rows in this run, 6 too late" in status(file)
