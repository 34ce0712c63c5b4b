"""Checks of a pipeline's options, schemas, intervals and modes, by the code that reads them. No Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from ottla.config.named_options import any_of, did_you_mean
from ottla.spark import clients
from ottla.spark.connectors import postgres_options as postgres
from ottla.spark.options import BadOption, check_promise, check_topic, read_options, write_options
from ottla.spark.pipeline import ddl, graph
from ottla.spark.pipeline.document import Pipeline, Problem, Schema, Sink, Source
from ottla.spark.pipeline.program import RECORD, parquet_options, reading

MODES: Final = ("append", "update", "complete")
TIMES: Final = ("timestamp", "timestamp_ltz", "timestamp_ntz", "string", "date")
"""Types that an event time is made of without a unit."""


FORMATS: Final = (
    "ottla", "ottla-postgres", "ottla-postgres-cdc", "kafka", "rate", "rate-micro-batch", "socket", "jdbc", "delta",
    "iceberg", "parquet", "orc", "avro", "json", "csv", "text", "xml", "binaryFile", "console", "memory", "noop",
)  # fmt: skip
"""Known options of Ottla and Spark, for suggestions; there may be others."""
FILES: Final = ("orc", "avro", "json", "csv", "text", "xml")
"""Sinks of Spark that support append mode only. Parquet is ours."""
SETTINGS: Final = (
    (re.compile(r"spark\.sql\.shuffle\.partitions|spark\.default\.parallelism|spark\..*\.(cores|instances)"),
     re.compile(r"[1-9]\d*"), "a whole number"),
    (re.compile(r"spark\.driver\.memory"), re.compile(r"[1-9]\d*[kmgt]", re.IGNORECASE), "a size like 512m or 2g"),
    (re.compile(r"spark\..*\.(memory|memoryOverhead|maxResultSize)"),
     re.compile(r"\d+([kmgtp]b?|b)?", re.IGNORECASE), "a size like 512m or 2g"),
    (re.compile(r"spark\..*\.enabled"), re.compile(r"true|false", re.IGNORECASE), "true or false"),
)  # fmt: skip
"""Settings by their names, what they may be, and that in words. The first that fits counts."""


def problems(pipeline: Pipeline) -> list[Problem]:
    found = _settings(pipeline)
    found += [problem for source in pipeline.sources.values() for problem in _source(pipeline, source)]
    found += [problem for name, schema in pipeline.schemas.items() for problem in _schema(name, schema)]
    found += [problem for sink in pipeline.sinks.values() for problem in _sink(pipeline, sink)]
    return found


def notes(pipeline: Pipeline) -> list[Problem]:
    """Options that have no effect, which is no problem. Only of a pipeline that has no problems."""
    found = []
    for source in pipeline.sources.values():
        if source.format == "ottla":
            reported = read_options(source.options, streaming=not source.batch).notes
            found += [_at_option(source, note) for note in reported]
    for sink in pipeline.sinks.values():
        if sink.format == "ottla":
            reported = write_options(sink.options).notes
            found += [_at_option(sink, note) for note in reported]
    return sorted(found)


def _source(pipeline: Pipeline, source: Source) -> list[Problem]:
    found = _format(source)
    problem = _refusal(lambda: _read(pipeline, source))
    if problem is not None:
        found.append(_at_option(source, problem))
    letters = source.dead_letters
    if letters is not None and (problem := _refusal(lambda: check_topic("dead_letters", letters.topic))):
        found.append(source.problem("dead_letters", problem))
    if source.watermark is not None:
        found += _event_time(pipeline, source)
    for column in source.deduplicate:
        if source.watermark is None:
            text = "deduplicate needs a watermark, which says how long a row is remembered"
            return [*found, source.problem("deduplicate", text)]
        if _is_topic(source) and _type_of(pipeline, source, column) is None and column != source.watermark.name:
            text = f"deduplicate names {column}, and {_there_is(pipeline, source, column)}"
            found.append(source.problem("deduplicate", text))
    return found


def _format(whose: Source | Sink) -> list[Problem]:
    if whose.format in FORMATS:
        return []
    near = did_you_mean(whose.format.lower(), FORMATS, cutoff=0.8)
    return [whose.problem("format", f"there is no format {whose.format!r}{near}")] if near else []


def _read(pipeline: Pipeline, source: Source) -> object:
    options = dict(source.options)
    if source.format == "ottla":
        streaming = not source.batch
        read = read_options(reading(pipeline, source, "check") if streaming else options, streaming=streaming)
        return clients.new_consumer(read.kafka)
    if source.format == "ottla-postgres":
        return postgres.batch_plan(options) if source.batch else postgres.stream_plan(options)
    if source.format == "ottla-postgres-cdc":
        if source.batch:
            raise BadOption("changes are a stream: leave batch out, or read the table with format ottla-postgres")
        return postgres.capture_options(options)
    return None


def _is_topic(source: Source) -> bool:
    return source.format == "ottla"


def _event_time(pipeline: Pipeline, source: Source) -> list[Problem]:
    mark = source.watermark
    assert mark is not None
    if source.batch:
        return [source.problem("watermark", "a batch has no watermark")]
    if not _is_topic(source):
        return []
    line, whose = source.line_of("watermark"), f"the watermark of {source.name}"
    kind = _type_of(pipeline, source, mark.column)
    if kind is None:
        return [Problem(line, f"{whose} is by {mark.column}, and {_there_is(pipeline, source, mark.column)}")]
    if mark.name in RECORD and mark.column != mark.name:
        return [Problem(line, f"{whose}: a record has a column {mark.name} already; as: {mark.name}_of_event, say")]
    base = re.split(r"\W", kind, maxsplit=1)[0]
    if base in ddl.NUMBERS and mark.unit is None:
        return [Problem(line, f"{whose}: {mark.column} is {kind}, a number: unit: milliseconds, or what it counts")]
    if mark.unit is not None and base not in ddl.NUMBERS:
        return [Problem(line, f"{whose}: {mark.column} is {kind}; unit is for numbers")]
    if mark.unit is None and kind != "?" and base not in TIMES:
        return [Problem(line, f"{whose}: {mark.column} is {kind}; it can be {', '.join(TIMES)}, or a number with unit")]
    return []


def _type_of(pipeline: Pipeline, source: Source, column: str) -> str | None:
    """Of a record's column, or of a field of its value; "?" where only Spark knows, and None where there is none."""
    first, *path = column.split(".")
    if first not in RECORD:
        return None
    if not path:
        return RECORD[first]
    schema = pipeline.schemas.get(source.name)
    if first != "value" or schema is None:
        return None
    if schema.avro:
        return "?" if path[0].lower() in schema.columns else None
    try:
        return ddl.type_at(schema.text, path)
    except ddl.BadType:
        return "?"  # it is reported by itself


def _there_is(pipeline: Pipeline, source: Source, column: str) -> str:
    if column.startswith("value."):
        schema = pipeline.schemas.get(source.name)
        return (
            f"there is no schema of {source.name} to find it in"
            if schema is None
            else f"the schema has {', '.join(schema.columns)}"
        )
    return f"a record has {', '.join(RECORD)}"


def _schema(name: str, schema: Schema) -> list[Problem]:
    if schema.avro:
        return []
    try:
        ddl.columns(schema.text)
    except ddl.BadType as problem:
        return [Problem(schema.line, f"the schema {name}: {problem}")]
    return []


def _sink(pipeline: Pipeline, sink: Sink) -> list[Problem]:
    found = _format(sink)
    problem = _refusal(lambda: _written(sink))
    if problem is not None:
        found.append(_at_option(sink, problem))
    if sink.trigger is not None and (wrong := _refusal(lambda: ddl.seconds(sink.trigger or ""))):
        found.append(sink.problem("trigger", f"the trigger {wrong}"))
    if sink.mode is not None and sink.mode not in MODES:
        hint = did_you_mean(sink.mode, MODES, f"it can be {any_of(MODES)}")
        found.append(sink.problem("mode", f"there is no mode {sink.mode!r}{hint}"))
    is_parquet = sink.format == "parquet"
    if sink.mode == "complete" and (is_parquet or sink.format in ("ottla", "ottla-postgres")):
        text = "mode complete would write all rows again with every batch; update writes those that changed"
        found.append(sink.problem("mode", text))
    if (sink.mode in ("update", "complete") and sink.format in FILES) or (sink.mode == "update" and is_parquet):
        text = f"mode {sink.mode} writes rows again that have changed, and {sink.format} is only added to"
        found.append(sink.problem("mode", f"{text}: append, or a topic or a table with a key"))
    given = {name.lower() for name in sink.options}
    if sink.mode == "update" and sink.format == "ottla-postgres" and "key" not in given:
        text = "mode update needs the option key, by which the table's rows are found"
        found.append(sink.problem("mode", text))
    return found


def _written(sink: Sink) -> object:
    if sink.format == "ottla":
        options = write_options(sink.options)
        if options.version is not None:
            raise BadOption("txnVersion cannot be set here: a streaming query counts its batches by itself")
        check_promise(options, streaming=True)
        return clients.new_producer(options.kafka)
    if sink.format == "ottla-postgres":
        if postgres.sink_options(sink.options).version is not None:
            raise BadOption("txnVersion cannot be set here: a streaming query counts its batches by itself")
    elif sink.format == "parquet":
        parquet_options(sink)
    return None


def _refusal(check: Callable[[], object]) -> str | None:
    try:
        check()
    except ValueError as problem:  # BadOption is one
        return str(problem)
    return None


def _at_option(whose: Source | Sink, problem: str) -> Problem:
    """In the line of the option that is talked about."""
    words = {word.lower().rstrip(".") for word in re.findall(r"[\w.]+", problem)}
    option = next((each for each in whose.options if each.lower() in words), "options")
    return whose.problem(option, problem)


def unbounded(pipeline: Pipeline, names: list[str]) -> list[str]:
    """Streams among these that have no watermark."""
    sources: Mapping[str, Source] = pipeline.sources
    streams = [name for name in names if graph.is_stream(pipeline, name)]
    return [name for name in streams if name not in sources or sources[name].watermark is None]


def _settings(pipeline: Pipeline) -> list[Problem]:
    """Settings of Spark in `configuration` that it would check only at its start."""
    found = []
    for name, value in pipeline.configuration.items():
        kind = next((each for each in SETTINGS if each[0].fullmatch(name)), None)
        if kind is not None and not kind[1].fullmatch(value.strip()):
            found.append(Problem(pipeline.line_of(name), f"{name} is {value!r}; it is {kind[2]}"))
    return found
