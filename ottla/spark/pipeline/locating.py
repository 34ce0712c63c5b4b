"""Which line of a pipeline's file an error of its program belongs to. No Spark."""

from __future__ import annotations

import re
import traceback
from typing import Final

from ottla.spark.pipeline.document import Pipeline
from ottla.spark.pipeline.reasons import position

_VIEW: Final = re.compile(r'createOrReplaceTempView\("(\w+)"\)')
_FUNCTION: Final = re.compile(r"(?:to|backfill|rows_of)_(\w+)")


def file_name(pipeline: Pipeline) -> str:
    """By which tracebacks call the program that is made of a pipeline."""
    return f"<{pipeline.path}>"


def line_of(pipeline: Pipeline, program: str, problem: BaseException) -> int:
    """Of the transform, source or sink that the program was at when it failed; in a transform, of the SQL. A setting
    of Spark that is talked about has a line of its own."""
    setting = next((name for name in pipeline.configuration if name in str(problem)), None)
    if setting is not None:
        return pipeline.line_of(setting)
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
    transform = pipeline.transforms[name]
    found = position(problem)
    if found is None:
        return transform.line_of(1)
    several = "\n" in transform.sql.strip()  # then the program has the text from its second line on
    return transform.line_of(max(1, found[0] - 1) if several else found[0])
