"""Failures of a query: the reason, taken from the long text of an exception of PySpark, and the line of the pipeline's
file that it belongs to. No Spark.

PySpark wraps an error once for every process that it passes. A reason of ours is at the end of the last Python
traceback; Spark's own follow an error condition in brackets. Both are surrounded by SQLSTATEs, plans and the state of
the query, which say nothing about what to do.
"""

from __future__ import annotations

import re
import traceback
from typing import Any, Final

from ottla.spark.pipeline import graph
from ottla.spark.pipeline.document import Pipeline, Transform

LENGTH_MAX: Final = 1000
TRACEBACK: Final = "Traceback (most recent call last):"

PERMANENT_ERRORS: Final = (
    "ottla.spark.options.BadOption",
    "ottla.spark.exactly_once.NotRepeatable",
    "ottla.spark.range_reader.DataLost",
    "ottla.spark.connectors.capture.LostSlot",
    "ottla.client.errors.BadName",
)
PERMANENT_CONDITIONS: Final = (
    "MALFORMED_RECORD", "CAST_INVALID_INPUT", "UNRESOLVED_", "PARSE_SYNTAX_ERROR", "DATA_SOURCE_NOT_FOUND",
)  # fmt: skip
"""What comes again as it was when a query is started again."""
SPARKS_OWN: Final = "pyspark.errors."
"""Errors of Spark that Python has passed on, as in foreachBatch."""
DATA_EXCEPTION: Final = re.compile(r"SQLSTATE: 22[0-9A-Z]{3}")
"""The class of SQL's errors that the data are to blame for (a division by zero, an overflow, a cast that fails, an
index out of bounds): the same records are read again."""

UNFIT: Final = "does not fit the schema of"
"""In the error that names a record which is not what its schema says; it is read again as it was."""

BUSY: Final = "Python worker failed to connect back"
"""What Spark says of a worker that was not there in the ten seconds that it gives it; nothing can set them."""

_STATE: Final = "=== Streaming Query ==="
_JAVA: Final = re.compile(r"\n(?:JVM stacktrace:|Driver stacktrace:|\s+at [\w.$/]+\()")
_PLAN: Final = re.compile(r";\n'?\W*'?[A-Z]\w+ .*", re.DOTALL)
_QUOTED_SQL: Final = re.compile(r"\n\s*== SQL .*", re.DOTALL)
_SQLSTATE: Final = re.compile(r"[;,]?\s*SQLSTATE: [0-9A-Z]{5}")
_TERMINATED: Final = re.compile(r"\[STREAM_FAILED\] Query \[.*?\] terminated[^:\n]*: ", re.DOTALL)
_CONDITION: Final = re.compile(r"\[([A-Z][A-Z0-9]*_[A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\] ")
_ERROR: Final = re.compile(r"([A-Za-z_][\w.]*)(?:: (.*))?")
_CALLING: Final = re.compile(r"An error occurred while calling [\w.]+\s*: (?:[\w.$]+(?:Exception|Error): )?")
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
_POSITION: Final = re.compile(r"[;(]?\s*\bline (\d+),? pos (\d+)\)?;?")

_VIEW: Final = re.compile(r'createOrReplaceTempView\("(\w+)"\)')
_QUOTED_LINE: Final = re.compile(r"== SQL[^(\n]*\(line (\d+), position \d+\) ==\n(.*)")
_FUNCTION: Final = re.compile(r"(?:to|backfill|rows_of)_(\w+)")


def reason(text: str) -> str:
    """The reason, as the process that raised it put it, without the names of the wrappers."""
    story = text.partition(_STATE)[0]
    found = _of_python(story) or _of_spark(story) or "no reason was given"
    if BUSY in found:
        return f"{BUSY}: the machine is too busy to start one within ten seconds"
    return found[:LENGTH_MAX]


def counted(number: int, one: str, many: str | None = None) -> str:
    """1 query, 2 queries."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def position(text: str) -> tuple[int, int] | None:
    """Where in an SQL text the error is: its line from 1 on and its column from 0 on."""
    found = _POSITION.search(text)
    return (int(found[1]), int(found[2])) if found else None


def condition(text: str) -> str | None:
    """Spark's name for the innermost error."""
    found = _CONDITION.findall(text.partition(_STATE)[0])
    return found[-1] if found else None


def raised(text: str) -> str | None:
    """The full name of the Python error at the end of the last traceback."""
    found = _last_error(text.partition(_STATE)[0])
    return found[0] if found else None


def is_permanent(text: str) -> bool:
    """Whether a query would fail in the same way when it is started again."""
    name, known = raised(text), condition(text)
    story = text.partition(_STATE)[0]
    if UNFIT in story or name in PERMANENT_ERRORS:
        return True
    if known is None or not (name is None or name.startswith(SPARKS_OWN)):
        return False
    return known.startswith(PERMANENT_CONDITIONS) or bool(DATA_EXCEPTION.search(story.rpartition(f"[{known}] ")[2]))


def is_busy(text: str) -> bool:
    """Whether the machine had no time to start a worker, which has nothing to do with the query."""
    return BUSY in text.partition(_STATE)[0]


def _last_error(story: str) -> tuple[str, str] | None:
    """The class and the message of the error that the last traceback ends with."""
    _, there, tail = story.rpartition(TRACEBACK)
    if not there:
        return None
    lines = _JAVA.split(tail)[0].splitlines()
    for at, line in enumerate(lines):
        found = _ERROR.fullmatch(line)
        if found is not None:
            reported = [found[2] or "", *(each.strip() for each in lines[at + 1 :])]
            return found[1], _plain(" ".join(each for each in reported if each))
    return None


def _of_python(story: str) -> str | None:
    found = _last_error(story)
    if found is None:
        return None
    name, message = found
    if name.startswith("ottla.") and message:
        return message
    short = name.rpartition(".")[2]
    return f"{short}: {message}" if message else short


def _of_spark(story: str) -> str:
    reported = _QUOTED_SQL.sub("", _PLAN.sub("", _JAVA.split(story.strip())[0]))
    reported = _CALLING.sub("", _TERMINATED.sub("", reported))
    if reported.rstrip().endswith(":") and (causes := _CAUSE.findall(story)):
        reported = causes[-1]  # this exception only wraps the reason
    conditions = _CONDITION.findall(reported)
    reported = _plain(_POSITION.sub("", _CONDITION.sub("", reported)))
    return f"{reported} ({conditions[-1]})" if conditions and reported else reported


def _plain(text: str) -> str:
    return " ".join(_SQLSTATE.sub("", text).split())


# Lines of the pipeline's file.


def file_name(pipeline: Pipeline) -> str:
    """By which tracebacks call the program that is made of a pipeline."""
    return f"<{pipeline.path}>"


def executed(pipeline: Pipeline, text: str) -> dict[str, Any]:
    """The names that the program defines."""
    namespace: dict[str, Any] = {"__name__": "ottla_pipeline"}
    exec(compile(text, file_name(pipeline), "exec"), namespace)
    return namespace


def line_of(pipeline: Pipeline, program: str, problem: BaseException) -> int:
    """Of the transform, source or sink that the program was at when it failed; in a transform, of the SQL. A setting
    of Spark that is talked about has a line of its own."""
    setting = _setting_line(pipeline, str(problem))
    if setting is not None:
        return setting
    frames = traceback.extract_tb(problem.__traceback__)
    frame = next((each for each in reversed(frames) if each.filename == file_name(pipeline)), None)
    if frame is None or frame.lineno is None:
        return 1
    name = _view(program.splitlines()[frame.lineno - 1 :])
    if name in pipeline.transforms:
        return _sql_line(pipeline, name, str(problem))
    if name in pipeline.sources:
        return pipeline.sources[name].line
    query = _FUNCTION.fullmatch(frame.name)
    return sink_line(pipeline, query[1] if query else "")


def query_line(pipeline: Pipeline, query: str, problem: str) -> int:
    """The line for the error of a query: of the SQL that Spark quotes; else of the sink, or of the setting."""
    setting = _setting_line(pipeline, problem)
    if setting is not None:
        return setting
    quoted = _QUOTED_LINE.search(problem)
    if quoted is not None and query in pipeline.sinks:
        for name in graph.ordered_transforms(pipeline, pipeline.sinks[query].origin):
            transform = pipeline.transforms[name]
            if quoted[2].strip() and quoted[2].strip() in transform.sql:
                return _in_file(transform, int(quoted[1]))
    return sink_line(pipeline, query)


def _setting_line(pipeline: Pipeline, problem: str) -> int | None:
    setting = next((name for name in pipeline.configuration if name in problem), None)
    return None if setting is None else pipeline.line_of(setting)


def sink_line(pipeline: Pipeline, query: str) -> int:
    """Of a sink, or of the source of the dead letters."""
    if query in pipeline.sinks:
        return pipeline.sinks[query].line
    source = pipeline.sources.get(query.removesuffix("_dead_letters"))
    return source.line if source is not None else 1


def _view(lines: list[str]) -> str:
    """The view that the statement makes which begins here."""
    for line in lines:
        if line.lstrip().startswith(("rows =", "def ", "return ")):
            return ""
        if found := _VIEW.search(line):
            return found[1]
    return ""


def _sql_line(pipeline: Pipeline, name: str, problem: str) -> int:
    found = position(problem)
    return _in_file(pipeline.transforms[name], found[0] if found else None)


def _in_file(transform: Transform, line: int | None) -> int:
    """For a line of the SQL as the program has it: a text of several lines begins in its second."""
    if line is None:
        return transform.line_of(1)
    several = "\n" in transform.sql.strip()
    return transform.line_of(max(1, line - 1) if several else line)
