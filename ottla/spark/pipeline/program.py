"""The PySpark that a pipeline is: written out, so that what runs is what `eject` prints. No Spark.

Each sink is one query with one checkpoint and a session of its own for its views, so that sinks can be stopped,
refreshed and changed one by one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ottla.spark.pipeline import graph
from ottla.spark.pipeline.document import Pipeline, Schema, Sink, Source

HEAD: Final = '''"""{name}: made of {path} by `ottla pipeline eject`."""

from pyspark.sql import SparkSession
from pyspark.sql.functions import broadcast, count, count_if, expr, lit
from pyspark.sql.streaming import StreamingQuery

{imports}from ottla.spark.connectors.parquet import ParquetEpochs

CONFIGURATION = {configuration}

'''
FOOT: Final = """
SINKS = {{{sinks}}}  # a sink whose topic is read comes before those that read it


if __name__ == "__main__":
    builder = SparkSession.builder.appName({name})
    for setting, value in CONFIGURATION.items():
        builder = builder.config(setting, value)
    session = builder.getOrCreate()
    for query in [begin(session) for begin in SINKS.values()]:
        query.awaitTermination()
"""
BASE: Final = {"spark.sql.session.timeZone": "UTC"}
SHARED: Final = ("kafka.bootstrap.servers", "kafka.sasl", "kafka.ssl", "kafka.security")
"""Options by which a cluster is reached, for reading and writing."""
STARTING: Final = {"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"}
STATE: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
"""State of joins and windows is kept on disk, so that it may be larger than the memory."""


@dataclass(frozen=True, slots=True)
class Span:
    """Of the records' times, in ms: from the first on, before the second."""

    start_ms: int
    end_ms: int

    def __str__(self) -> str:
        return f"{self.start_ms}-{self.end_ms}"


def backfill(pipeline: Pipeline, sink: Sink, span: Span) -> str:
    """A sink's query as a batch over records of some time. Run again, it writes nothing twice."""
    text = _head(pipeline, "{}")
    lines = ["", f"def backfill_{sink.name}(spark: SparkSession) -> None:", *_views(pipeline, sink, span)]
    if sink.format == "parquet":
        lines.append(f'    {_epochs(sink)}.store(rows, "backfill={span}")')
    else:
        name = f"{pipeline.name}-{sink.name}-backfill-{span}"
        options = {**sink.options, "txnAppId": name, "txnVersion": "0"}
        writer = f"rows.write.mode({_text('append')}).format({_text(sink.format)})"
        lines.append(f"    {writer}.options(**{_mapping(options)}).save()")
    return text + "\n".join(lines) + "\n"


def program(pipeline: Pipeline) -> str:
    text = _head(pipeline, _mapping({**BASE, **STATE, **pipeline.configuration}))
    for sink in pipeline.sinks.values():
        text += "\n" + "\n".join(_query(pipeline, sink)) + "\n\n"
    for query, source in graph.dead_letters(pipeline).items():
        text += "\n" + "\n".join(_aside(pipeline, query, pipeline.sources[source])) + "\n\n"
    names = [*graph.dead_letters(pipeline), *graph.ordered_sinks(pipeline)]
    sinks = ", ".join(f"{_text(name)}: to_{name}" for name in names)
    return text + FOOT.format(sinks=sinks, name=_text(pipeline.name))


def _head(pipeline: Pipeline, configuration: str) -> str:
    avro = any(schema.avro for schema in pipeline.schemas.values())
    imports = "from ottla.spark.avro import fits_avro, from_avro\n" if avro else ""
    path = pipeline.path.rsplit("/", 1)[-1]
    return HEAD.format(name=pipeline.name, path=path, configuration=configuration, imports=imports)


def _query(pipeline: Pipeline, sink: Sink) -> Iterable[str]:
    yield f"def to_{sink.name}(spark: SparkSession, available_now: bool = False) -> StreamingQuery:"
    yield from _views(pipeline, sink, None)
    yield from _indented(_writer(pipeline, sink))
    yield from _indented(_started(sink.trigger))


def _views(pipeline: Pipeline, sink: Sink, span: Span | None) -> Iterable[str]:
    yield "    spark = spark.newSession()  # views of its own"
    for name in graph.origins(pipeline, sink.origin):
        yield from _indented(_relation(pipeline, sink, name, span))
    for name in graph.ordered_transforms(pipeline, sink.origin):
        yield f"    spark.sql({_sql(pipeline.transforms[name].sql)}).createOrReplaceTempView({_text(name)})"
    yield f"    rows = spark.table({_text(sink.origin)})"


def _started(trigger: str | None) -> Iterable[str]:
    told = f"processingTime={_text(trigger or '0 seconds')}"
    yield f"writer = writer.trigger(availableNow=True) if available_now else writer.trigger({told})"
    yield "return writer.start()"


def _relation(pipeline: Pipeline, sink: Sink, name: str, span: Span | None) -> Iterable[str]:
    source = source_of(pipeline, name)
    yield _read(pipeline, source, sink.name) if span is None or source.batch else _read_span(source, span)
    if source.format == "ottla":
        yield from _decoded(pipeline.schemas.get(name), put_aside=source.dead_letters is not None)
    if source.watermark is not None and span is None:
        yield f"frame = frame.withWatermark({_text(source.watermark.column)}, {_text(source.watermark.delay)})"
    if source.batch and source.broadcast:
        yield "frame = broadcast(frame)  # a join that shuffles would reorder the stream"
    yield f"frame.createOrReplaceTempView({_text(name)})"


def source_of(pipeline: Pipeline, name: str) -> Source:
    """What is read by a name: a source, or the topic of a sink."""
    return pipeline.sources.get(name) or _topic_of(pipeline, pipeline.sinks[name])


def reading(pipeline: Pipeline, source: Source, reader: str) -> dict[str, str]:
    """With which options a query reads a source."""
    options = dict(source.options)
    given = {option.lower() for option in options}
    if source.format == "ottla" and not source.batch:
        defaults = {"kafka.isolation.level": "read_committed", "groupId": f"{pipeline.name}-{reader}"}
        if not given & STARTING:
            defaults["startingOffsets"] = "earliest"
        options |= {option: value for option, value in defaults.items() if option.lower() not in given}
    return options


def _read(pipeline: Pipeline, source: Source, reader: str) -> str:
    options = reading(pipeline, source, reader)
    begin = "spark.read" if source.batch else "spark.readStream"
    return f"frame = {begin}.format({_text(source.format)}).options(**{_mapping(options)}).load()"


def _read_span(source: Source, span: Span) -> str:
    streaming = {"groupid", "maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay", *STARTING}
    options = {name: value for name, value in source.options.items() if name.lower() not in streaming}
    options |= {
        "startingTimestamp": str(span.start_ms),
        "endingTimestamp": str(span.end_ms),
        "startingOffsetsByTimestampStrategy": "latest",
        "kafka.isolation.level": "read_committed",
    }
    return f"frame = spark.read.format({_text(source.format)}).options(**{_mapping(options)}).load()"


def _aside(pipeline: Pipeline, query: str, source: Source) -> Iterable[str]:
    """Values that do not fit go on as they are, with where they come from in their headers."""
    assert source.dead_letters is not None
    marks = [("topic", "topic"), ("partition", "cast(partition as string)"), ("offset", "cast(offset as string)")]
    marks += [("pipeline", f"'{pipeline.name}'"), ("reason", "'the value does not fit the schema'")]
    added = ", ".join(
        f"named_struct('key', 'ottla.dlq.{name}', 'value', cast({told} as binary))" for name, told in marks
    )
    headers = f"concat(coalesce(headers, array()), array({added})) as headers"
    with_headers = replace(source, options={**source.options, "includeHeaders": "true"})
    kafka = {name: value for name, value in source.options.items() if name.lower().startswith(SHARED)}
    yield f"def to_{query}(spark: SparkSession, available_now: bool = False) -> StreamingQuery:"
    yield "    " + _read(pipeline, with_headers, query)
    yield f'    frame = frame.withColumn("_bad", {_unfit(pipeline.schemas[source.name])})'
    yield '    frame = frame.observe("dead_letters", count(lit(1)).alias("all"), count_if("_bad").alias("bad"))'
    yield f'    rows = frame.where("_bad").selectExpr("key", "value", {_text(headers)})'
    options = {**kafka, "topic": source.dead_letters.topic}
    sink = Sink(query, source.line, source.name, "ottla", options)
    yield from _indented(_writer(pipeline, sink))
    yield from _indented(_started(None))


def _unfit(schema: Schema) -> str:
    """The column that says whether a value does not fit; one that is null does."""
    if schema.avro:
        return f"~fits_avro({_avro(schema)})"
    told = "from_json(cast(value as string), '{}, _unfit string', map('columnNameOfCorruptRecord', '_unfit'))"
    return f"expr({_text(f'value is not null and {told.format(schema.text)}._unfit is not null')})"


def _avro(schema: Schema) -> str:
    return f'"value", {_text(schema.text)}, registry={schema.registry!r}'


def _decoded(schema: Schema | None, *, put_aside: bool) -> Iterable[str]:
    """Keys are text; values too, or what the schema says. What does not fit stops the query, or was put aside."""
    value = "cast(value as string) as value"
    if schema is not None and put_aside:
        yield f"frame = frame.where(~({_unfit(schema)}))"
    if schema is not None and schema.avro:
        mode = ', mode="PERMISSIVE"' if put_aside else ""  # Spark may read before it filters
        yield f'frame = frame.withColumn("value", from_avro({_avro(schema)}{mode}))'
        value = "value"
    elif schema is not None:
        value = f"from_json(cast(value as string), '{schema.text}', map('mode', 'FAILFAST')) as value"
    columns = ["cast(key as string) as key", value, "topic", "partition", "offset", "timestamp"]
    yield f"frame = frame.selectExpr({', '.join(_text(column) for column in columns)})"


def _topic_of(pipeline: Pipeline, sink: Sink) -> Source:
    """A sink that is read by its name."""
    kept = {
        name: value
        for name, value in sink.options.items()
        if name.lower() == "kafka.bootstrap.servers"
        or name.lower().startswith(("kafka.sasl", "kafka.ssl", "kafka.sec"))
    }
    topic = next(value for name, value in sink.options.items() if name.lower() == "topic")
    return Source(sink.name, sink.line, "ottla", {**kept, "subscribe": topic})


def _writer(pipeline: Pipeline, sink: Sink) -> Iterable[str]:
    yield f"writer = rows.writeStream.queryName({_text(sink.name)})"
    yield f'writer = writer.option("checkpointLocation", {_text(pipeline.checkpoint(sink.name))})'
    if sink.mode:
        yield f"writer = writer.outputMode({_text(sink.mode)})"
    if sink.format == "parquet":
        yield f"writer = writer.foreachBatch({_epochs(sink)})"
    else:
        yield f"writer = writer.format({_text(sink.format)}).options(**{_mapping(sink.options)})"


def _epochs(sink: Sink) -> str:
    names = {"path": "path", "rowsPerFile": "rows_per_file", "files": "files"}
    told = [f"{names[each]}={_text(value) if each == 'path' else value}" for each, value in sink.options.items()]
    return f"ParquetEpochs({', '.join(told)})"


def _indented(lines: Iterable[str]) -> Iterable[str]:
    return ("    " + line for line in lines)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _sql(value: str) -> str:
    if "\n" not in value.strip():
        return _text(value.strip())
    return '"""\n' + value.strip().replace("\\", "\\\\").replace('"""', '\\"\\"\\"') + '\n"""'


def _mapping(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{_text(name)}: {_text(value)}" for name, value in values.items()) + "}"
