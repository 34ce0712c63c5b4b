"""The last progress of a query is stored for `ottla pipeline status`. No Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("yaml", reason="needs PyYAML: make test installs it")

from click.testing import CliRunner

from ottla.cli.main import cli
from ottla.spark.pipeline import document, query_runner
from ottla.spark.pipeline.document import Pipeline, Restart
from ottla.spark.pipeline.query_runner import Restarts

FILE = """\
name: n
storage: {storage}
configuration:
  spark.some.setting: "5"
restart: {{limit: 1, within: 1 hour, backoff: 0 seconds}}
sources: {{b: {{format: rate}}}}
transforms:
  other: select 1 as n
  picked: |

    select value,
           cast(concat('x', value) as int) as n
    from b
  more: select n + 1 as m, value from picked
sinks: {{a: {{from: more, format: noop}}}}
"""


class Query:
    """A streaming query as PySpark shows it."""

    def __init__(self) -> None:
        self.recentProgress: list[dict[str, Any]] = []
        self.isActive = True
        self.failure: Exception | None = None
        self.said: list[str] = []
        """Of it, by who watches it."""

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return self.recentProgress[-1] if self.recentProgress else None

    def exception(self) -> Exception | None:
        return self.failure

    def stop(self) -> None:
        self.isActive = False

    def progress(self, batch: int, rows: int, *late: int) -> None:
        source = {"description": "ottla", "endOffset": '{"t":{"0":1}}', "latestOffset": "null"}
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
    path.write_text(FILE.format(storage=tmp_path / "data"))
    return path


def started(pipeline: Pipeline, query: Query) -> query_runner._Query:
    made = query_runner._Query(pipeline, "a", "", lambda: cast("Any", query), query.said.append)
    made.start()
    return made


def status(file: Path) -> str:
    reported = CliRunner().invoke(cli, ["pipeline", "status", str(file)])
    assert reported.exit_code == 0, reported.output
    return reported.output


def test_rows_that_came_too_late_are_counted_through_all_batches(file):
    query = Query()
    looked = started(document.read(file), query)
    query.progress(0, 5, 0, 0)
    query.progress(1, 7, 2, 1)
    looked.look(0.0)
    query.progress(2, 4, 3, 0)
    query.progress(3, 0, 0, 0)
    looked.look(1.0)
    looked.look(2.0)
    looked.stop()
    assert "16 rows in this run, 6 too late" in status(file)


def test_counts_are_singular_or_plural_and_unknown_values_are_left_out(file):
    query = Query()
    said = query.said
    looked = started(document.read(file), query)
    query.progress(0, 1)
    looked.look(0.0)
    assert said == ["a: batch 0, 1 row in 0.1 s"]
    reported = status(file)
    assert "batch 0, 1 row in this run\n" in reported
    assert "latest" not in reported


CAST = """[CAST_INVALID_INPUT] The value 'x1' of the type "STRING" cannot be cast to "INT". SQLSTATE: 22018
== SQL (line {line}, position 8) ==
{quoted}
       ^^^^
"""


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        (CAST.format(line=3, quoted="       cast(concat('x', value) as int) as n"), "cast(concat"),
        (CAST.format(line=1, quoted="select n + 1 as m, value from picked"), "more: select"),
        (CAST.format(line=1, quoted="select something else"), "sinks:"),
        ("spark.some.setting should be less", "spark.some.setting"),
        ("no reason", "sinks:"),
    ],
)
def test_a_query_that_fails_while_it_runs_names_the_line_of_its_sql(file, problem, line):
    query = Query()
    said = query.said
    looked = started(document.read(file), query)
    query.isActive, query.failure = False, RuntimeError(problem)
    looked.look(0.0)
    [number] = [number for number, text in enumerate(file.read_text().splitlines(), 1) if line in text]
    assert f"({file}:{number})" in said[0]


def test_the_last_failure_says_that_the_limit_of_restarts_was_reached(file):
    query = Query()
    said = query.said
    looked = started(document.read(file), query)
    query.isActive, query.failure = False, RuntimeError("no worker")
    assert looked.look(0.0)
    assert not looked.look(1e9)
    assert "it is started again in 0 s" in said[0]
    assert said[1].endswith("it is not started again: 1 restart within 3600 s, which is the limit (restart)")
    assert "which is the limit" in status(file)
    assert "limit" not in Restarts(Restart(limit=0)).spent


def test_queries_for_dead_letters_are_distinguished_from_sinks(file):
    pipeline = document.read(file)
    names = ("a", "b_dead_letters")
    queries = [query_runner._Query(pipeline, name, "", lambda: cast("Any", None), print) for name in names]
    assert query_runner._counted(pipeline, queries) == "2 queries (1 sink, 1 for dead letters)"
    assert query_runner._counted(pipeline, queries[:1]) == "1 query"
