"""Checks of a pipeline before Spark starts: names, cycles, and the rules of a guarantee. No Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from ottla.config.named_options import did_you_mean
from ottla.spark.options import BOOTSTRAP
from ottla.spark.pipeline import graph, option_checks
from ottla.spark.pipeline.document import Pipeline, Problem, Sink, Source, Transform

NOT_REPEATABLE: Final = (
    "rand", "randn", "random", "uuid", "shuffle", "now", "current_timestamp", "current_date", "curdate",
    "localtimestamp", "unix_timestamp", "monotonically_increasing_id", "spark_partition_id", "input_file_name",
)  # fmt: skip
"""Functions with another value when a batch is run again."""
_CALL: Final = re.compile(rf"\b({'|'.join(NOT_REPEATABLE)})\s*\(", re.IGNORECASE)
_WITHOUT_BRACKETS: Final = re.compile(r"\b(current_timestamp|current_date|localtimestamp)\b", re.IGNORECASE)
_GROUPS: Final = re.compile(r"\bgroup\s+by\b|\bselect\s+distinct\b", re.IGNORECASE)
EXACT: Final = ("ottla", "ottla-postgres", "parquet", "noop", "console", "memory")
_QUERY: Final = re.compile(r"[(\s]*(select|with|from|table|values)\b", re.IGNORECASE)


def problems(pipeline: Pipeline) -> list[Problem]:
    found = [*_names(pipeline), *_cycles(pipeline)]
    found += [*option_checks.problems(pipeline), *_loops(pipeline)]
    if not found:
        for transform in pipeline.transforms.values():
            found += _transform(pipeline, transform)
        for sink in pipeline.sinks.values():
            found += _sink(pipeline, sink)
    return sorted(found)


def _names(pipeline: Pipeline) -> list[Problem]:
    found = []
    known = [*pipeline.sources, *pipeline.transforms, *pipeline.sinks]
    for name, transform in pipeline.transforms.items():
        if name in pipeline.sources or name in pipeline.sinks:
            found.append(Problem(transform.line, f"{name} names a transform and a source or sink"))
        wrong = [each for each in graph.reads(transform.sql) if each not in known]
        found += [Problem(transform.line_with(each), f"{name} reads {each}, {_unknown(each, known)}") for each in wrong]
    for name, sink in pipeline.sinks.items():
        if name in pipeline.sources:
            found.append(
                Problem(sink.line, f"{name} names a source and a sink; a sink's topic can be read by its name")
            )
        if sink.origin not in known:
            text = f"the sink {name} is from {sink.origin}, {_unknown(sink.origin, known)}"
            found.append(Problem(sink.line_of("from"), text))
        elif (why := _no_stream(pipeline, sink)) is not None:
            found.append(Problem(sink.line, f"the sink {name} has no stream: {why}"))
    for name, source in pipeline.sources.items():
        if source.dead_letters and (source.format != "ottla" or source.batch or name not in pipeline.schemas):
            found.append(Problem(source.line, f"{name}: dead_letters are for streams of topics that have a schema"))
    for name in pipeline.schemas:
        if name not in pipeline.sources and name not in pipeline.sinks:
            found.append(Problem(pipeline.schemas[name].line, f"schemas has {name}, {_unknown(name, known)}"))
    return found


def _no_stream(pipeline: Pipeline, sink: Sink) -> str | None:
    """The reason, or None. A transform that reads an unknown name or itself, or is empty, has another problem, which is
    reported."""
    origins = graph.origins(pipeline, sink.origin)
    if origins and all(each in pipeline.sources and pipeline.sources[each].batch for each in origins):
        return f"{sink.origin} is from batch sources"
    made = [pipeline.transforms[each].sql for each in graph.ordered_transforms(pipeline, sink.origin)]
    reads_nothing = not origins and all(graph.stripped(sql).strip() for sql in made)
    return f"{sink.origin} reads no source" if reads_nothing else None


def _unknown(name: str, known: list[str]) -> str:
    return f"which is not defined{did_you_mean(name, known)}"


def _cycles(pipeline: Pipeline) -> list[Problem]:
    """Among transforms. A topic that is read and written by the same sink's query is one, too."""
    found = []

    def back_to(name: str, start: str, seen: set[str]) -> bool:
        for each in graph.reads(pipeline.transforms[name].sql):
            if each == start:
                return True
            if each in pipeline.transforms and each not in seen:
                seen.add(each)
                if back_to(each, start, seen):
                    return True
        return False

    for name, transform in pipeline.transforms.items():
        if back_to(name, name, {name}):
            found.append(Problem(transform.line, f"{name} reads itself, through other transforms or directly"))
    if not found:
        for name, sink in pipeline.sinks.items():
            if name in graph.origins(pipeline, sink.origin):
                found.append(Problem(sink.line, f"the sink {name} reads its own topic"))
    return found


def _transform(pipeline: Pipeline, transform: Transform) -> list[Problem]:
    found = []
    sql = graph.stripped(transform.sql)
    if not _QUERY.match(sql):
        word = (sql.split() or ["nothing"])[0]
        return [Problem(transform.line_of(1), f"{transform.name} is no query: it begins with {word}, not with select")]
    if pipeline.guarantee == "exactly-once":
        calls = dict.fromkeys(each.lower() for each in [*_CALL.findall(sql), *_WITHOUT_BRACKETS.findall(sql)])
        why = (
            "which is different when a batch is run again; with guarantee: exactly-once take such values from the "
            "records (timestamp), or say at-least-once"
        )
        found += [Problem(transform.line_with(call), f"{transform.name} calls {call}, {why}") for call in calls]
    unbounded = option_checks.unbounded(pipeline, graph.origins(pipeline, transform.name))
    direct = [name for name in graph.reads(transform.sql) if _streams(pipeline, name)]
    if re.search(r"\bjoin\b", sql, re.IGNORECASE) and len(direct) > 1 and unbounded:
        found.append(
            Problem(
                transform.line,
                f"{transform.name} joins the streams {', '.join(direct)}, and would keep every row of them forever: "
                f"give {', '.join(unbounded)} a watermark, and bound the join by time",
            )
        )
    elif _GROUPS.search(sql) and direct and unbounded and not _only_updates(pipeline, transform.name):
        found.append(
            Problem(
                transform.line,
                f"{transform.name} groups a stream without end: give {', '.join(unbounded)} a watermark and group by "
                "window(…), or write what has changed with every batch: mode: update on the sink",
            )
        )
    return found


def _only_updates(pipeline: Pipeline, name: str) -> bool:
    """Whether everything that this is read for writes what has changed: then a group need not come to an end."""
    return all(
        sink.mode == "update"
        for sink in pipeline.sinks.values()
        if name in graph.ordered_transforms(pipeline, sink.origin)
    )


def _streams(pipeline: Pipeline, name: str) -> bool:
    return any(graph.is_stream(pipeline, each) for each in graph.origins(pipeline, name))


def _sink(pipeline: Pipeline, sink: Sink) -> list[Problem]:
    found = []
    if pipeline.guarantee == "exactly-once" and sink.format not in EXACT:
        text = f"{sink.format} is not known to be exactly-once; set guarantee: at-least-once"
        found.append(sink.problem("format", text))
    given = {name.lower() for name in sink.options}
    read_by_name = any(sink.name in graph.origins(pipeline, other.origin) for other in pipeline.sinks.values())
    if read_by_name and (sink.format != "ottla" or "topic" not in given):
        found.append(
            Problem(sink.line, f"{sink.name} is read by its name, so it has to be a topic: format ottla, topic: …")
        )
    return found


def _loops(pipeline: Pipeline) -> list[Problem]:
    """Queries that would read their own output, without end: their own topic, or their dead letters."""
    found = []
    for source in pipeline.sources.values():
        letters = source.dead_letters
        if letters is not None and _reads_topic(source, source.options, letters.topic):
            text = f"dead_letters go to {letters.topic}, which it reads: they would come back without end"
            found.append(source.problem("dead_letters", f"{text}; name another topic"))
    for name, sink in pipeline.sinks.items():
        topic = _lower(sink.options).get("topic")
        if sink.format != "ottla" or topic is None:
            continue
        for each in graph.origins(pipeline, sink.origin):
            if each in pipeline.sources and _reads_topic(pipeline.sources[each], sink.options, topic):
                text = f"the sink {name} writes {topic}, which its source {each} reads: its records would come back"
                found.append(Problem(sink.line_of("topic"), f"{text} without end; name another topic"))
    return found


def _reads_topic(source: Source, other: Mapping[str, str], topic: str) -> bool:
    """Whether a stream reads this topic, in the cluster that the other options name."""
    given = _lower(source.options)
    if source.format != "ottla" or source.batch or given.get(BOOTSTRAP) != _lower(other).get(BOOTSTRAP):
        return False
    try:
        return (
            topic in [name.strip() for name in given.get("subscribe", "").split(",")]
            or re.fullmatch(given.get("subscribepattern", "(?!)"), topic) is not None
            or topic in json.loads(given.get("assign", "{}"))
        )
    except (ValueError, TypeError, re.error):
        return False  # it is reported by itself


def _lower(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}
