"""Line numbers: which line of a pipeline's file an error of its program belongs to. No Spark."""

from __future__ import annotations

import re
import traceback
from typing import Final

from ottla.spark.pipeline import graph
from ottla.spark.pipeline.document import Pipeline, Transform
from ottla.spark.pipeline.failures import position

_VIEW: Final = re.compile(r'createOrReplaceTempView\("(\w+)"\)')
_QUOTED: Final = re.compile(r"== SQL[^(\n]*\(line (\d+), position \d+\) ==\n(.*)")
_FUNCTION: Final = re.compile(r"(?:to|backfill|rows_of)_(\w+)")


def file_name(pipeline: Pipeline) -> str:
    """By which tracebacks call the program that is made of a pipeline."""
    return f"<{pipeline.path}>"


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
    """For what a query said when it failed: of the SQL that Spark quotes; else of the sink, or of the setting."""
    setting = _setting_line(pipeline, problem)
    if setting is not None:
        return setting
    quoted = _QUOTED.search(problem)
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
    """Of a sink, or of the source whose dead letters a query puts aside."""
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
