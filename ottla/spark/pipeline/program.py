"""Program of a pipeline: the PySpark it is compiled to, which `eject` prints and `run` runs. No Spark.

Each sink is one query with one checkpoint and a session of its own for its views, so that sinks can be stopped,
refreshed and changed one by one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ottla.config.named_options import did_you_mean
from ottla.spark.options import BadOption
from ottla.spark.pipeline import graph
from ottla.spark.pipeline.document import Pipeline, Schema, Sink, Source
from ottla.spark.pipeline.failures import UNFIT

HEAD: Final = '''"""{name}: made of {path} by `ottla pipeline eject`."""

import os

from pyspark.sql import SparkSession
from pyspark.sql.functions import broadcast, col, count, count_if, expr, lit, when
from pyspark.sql.streaming import StreamingQuery

{imports}from ottla.spark.batch_sink import BatchSink
from ottla.spark.connectors.parquet import ParquetEpochs

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
RECORD: Final = {
    "key": "string",
    "value": "string",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
}
"""The columns of a topic's relation, and their types where there is no schema."""
FROM_NUMBERS: Final = {
    "seconds": "timestamp_seconds({})",
    "milliseconds": "timestamp_millis({})",
    "microseconds": "timestamp_micros({})",
}
FOR_EACH_BATCH: Final = ("ottla", "ottla-postgres")
"""Sinks that Spark refuses in update mode, as it does all that are written in Python: they write each batch."""
PARQUET: Final = {"path": "path", "rowsPerFile": "rows_per_file", "files": "files", "partitionBy": "partition_by"}
"""Options of a Parquet sink, and the arguments of ParquetEpochs that they are."""
FROM_JSON: Final = "from_json(cast(value as string), '{}, _unfit string', map('columnNameOfCorruptRecord', '_unfit'))"
NOT_JSON: Final = "value is not null and ({0} is null or {0}._unfit is not null)"
"""Spark reads a value without any characters but blanks as null, and does not call it corrupt."""
SHOWN_MAX: Final = 200
"""Characters, or bytes, of a value that does not fit the schema, in the error that names it."""
TEXT_SHOWN: Final = f"left(cast(value as string), {SHOWN_MAX})"
HEX_SHOWN: Final = f"'0x', hex(substring(value, 1, {SHOWN_MAX}))"
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
SHUFFLE: Final = "spark.sql.shuffle.partitions"
"""How many tasks joins and groups have, each with a state of its own in the checkpoint."""


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


def analysed(pipeline: Pipeline, sink: Sink) -> str:
    """The rows of a sink's query, without starting it."""
    lines = ["", f"def rows_of_{sink.name}(spark: SparkSession):", *_views(pipeline, sink, None), "    return rows"]
    return _head(pipeline, "{}") + "\n".join(lines) + "\n"


def program(pipeline: Pipeline) -> str:
    text = _head(pipeline, _configuration(pipeline))
    for sink in pipeline.sinks.values():
        text += "\n" + "\n".join(_query(pipeline, sink)) + "\n\n"
    for query, source in graph.dead_letters(pipeline).items():
        text += "\n" + "\n".join(_dead_letters_query(pipeline, query, pipeline.sources[source])) + "\n\n"
    names = [*graph.dead_letters(pipeline), *graph.ordered_sinks(pipeline)]
    sinks = ", ".join(f"{_text(name)}: to_{name}" for name in names)
    return text + FOOT.format(sinks=sinks, name=_text(pipeline.name))


def _configuration(pipeline: Pipeline) -> str:
    """The same as of a session that `ottla pipeline run` makes, unless that is on a cluster."""
    settings = {**BASE, **STATE, **pipeline.configuration}
    lines = [f"    {_text(name)}: {_text(value)}," for name, value in settings.items()]
    if SHUFFLE not in pipeline.configuration:
        lines.append(f"    {_text(SHUFFLE)}: str(os.cpu_count()),  # Spark's own default, 200, is for large clusters")
    return "\n".join(["{", *lines, "}"])


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
    shown = f"processingTime={_text(trigger or '0 seconds')}"
    yield f"writer = writer.trigger(availableNow=True) if available_now else writer.trigger({shown})"
    yield "return writer.start()"


def _relation(pipeline: Pipeline, sink: Sink, name: str, span: Span | None) -> Iterable[str]:
    source = source_of(pipeline, name)
    yield _read(pipeline, source, sink.name) if span is None or source.batch else _read_span(source, span)
    if source.format == "ottla":
        yield from _decoded(pipeline.schemas.get(name), source)
    yield from _event_time(source, bounded=span is not None)
    if source.batch and source.broadcast:
        yield "frame = broadcast(frame)  # a join that shuffles would reorder the stream"
    yield f"frame.createOrReplaceTempView({_text(name)})"


def _event_time(source: Source, *, bounded: bool) -> Iterable[str]:
    """A column of its own for the event time, since Spark takes no field of a struct for a watermark."""
    mark = source.watermark
    if mark is None:
        return
    shown = FROM_NUMBERS[mark.unit].format(mark.column) if mark.unit else mark.column
    if "." in mark.column or shown != mark.name:
        shown = shown if mark.unit else f"cast({mark.column} as timestamp)"
        yield f"frame = frame.withColumn({_text(mark.name)}, expr({_text(shown)}))"
    if not bounded:
        yield f"frame = frame.withWatermark({_text(mark.name)}, {_text(mark.delay)})"
    if source.deduplicate:
        names = [f"_same_{number}" for number in range(len(source.deduplicate))]
        made = ", ".join(
            f"{_text(name)}: expr({_text(column)})" for name, column in zip(names, source.deduplicate, strict=True)
        )
        yield f"frame = frame.withColumns({{{made}}})"
        drop = "dropDuplicates" if bounded else "dropDuplicatesWithinWatermark"
        yield f"frame = frame.{drop}([{', '.join(map(_text, names))}]).drop({', '.join(map(_text, names))})"


def source_of(pipeline: Pipeline, name: str) -> Source:
    """The input of a name: a source, or the topic of a sink."""
    return pipeline.sources.get(name) or _topic_of(pipeline, pipeline.sinks[name])


def reading(pipeline: Pipeline, source: Source, reader: str) -> dict[str, str]:
    """With which options a query reads a source."""
    options = dict(source.options)
    given = {option.lower() for option in options}
    if source.format == "ottla" and not source.batch:
        defaults = {
            "kafka.isolation.level": "read_committed",
            "groupId": f"{pipeline.name}-{reader}",
            "checkpointLocation": pipeline.checkpoint(reader),
        }
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


def _dead_letters_query(pipeline: Pipeline, query: str, source: Source) -> Iterable[str]:
    """Values that do not fit are sent on unchanged, with their origin in the headers."""
    assert source.dead_letters is not None
    marks = [("topic", "topic"), ("partition", "cast(partition as string)"), ("offset", "cast(offset as string)")]
    marks += [("pipeline", f"'{pipeline.name}'"), ("reason", "'the value does not fit the schema'")]
    added = ", ".join(
        f"named_struct('key', 'ottla.dlq.{name}', 'value', cast({shown} as binary))" for name, shown in marks
    )
    headers = f"concat(coalesce(headers, array()), array({added})) as headers"
    with_headers = replace(source, options={**source.options, "includeHeaders": "true"})
    yield f"def to_{query}(spark: SparkSession, available_now: bool = False) -> StreamingQuery:"
    yield "    " + _read(pipeline, with_headers, query)
    yield f'    frame = frame.withColumn("_bad", {_unfit(pipeline.schemas[source.name])})'
    yield '    frame = frame.observe("dead_letters", count(lit(1)).alias("all"), count_if("_bad").alias("bad"))'
    yield f'    rows = frame.where("_bad").selectExpr("key", "value", {_text(headers)})'
    options = {**_shared(source.options), "topic": source.dead_letters.topic}
    sink = Sink(query, source.line, source.name, "ottla", options)
    yield from _indented(_writer(pipeline, sink))
    yield from _indented(_started(None))


def _unfit(schema: Schema) -> str:
    """The column that says whether a value does not fit; one that is null does."""
    if schema.avro:
        return f"~fits_avro({_avro(schema)})"
    return f"expr({_text(NOT_JSON.format(FROM_JSON.format(schema.text)))})"


def _avro(schema: Schema) -> str:
    return f'"value", {_text(schema.text)}, registry={schema.registry!r}'


def _decoded(schema: Schema | None, source: Source) -> Iterable[str]:
    """Keys are text; values, too, unless there is a schema. A value that does not fit stops the query, or is a dead
    letter."""
    value, to_dead_letters = "cast(value as string) as value", source.dead_letters is not None
    if schema is not None and to_dead_letters:
        yield f"frame = frame.where(~({_unfit(schema)}))"
    if schema is not None and schema.avro:
        # Spark may read before it filters, also where values that do not fit went to the dead letters.
        yield f'frame = frame.withColumn("_read", from_avro({_avro(schema)}, mode="PERMISSIVE"))'
        unfit = "value is not null and _read is null"
        yield from _fitting(source, unfit, "_read", to_dead_letters=to_dead_letters, shown=HEX_SHOWN)
        value = "value"
    elif schema is not None:
        yield f'frame = frame.withColumn("_read", expr({_text(FROM_JSON.format(schema.text))}))'
        yield from _fitting(
            source, NOT_JSON.format("_read"), "_read", to_dead_letters=to_dead_letters, without="_unfit"
        )
        value = "value"
    columns = ["cast(key as string) as key", value, *[name for name in RECORD if name not in ("key", "value")]]
    yield f"frame = frame.selectExpr({', '.join(_text(column) for column in columns)})"


def _fitting(
    source: Source, unfit: str, read: str, *, to_dead_letters: bool, without: str = "", shown: str = TEXT_SHOWN
) -> Iterable[str]:
    """The decoded value; a record that does not fit is reported, with the remedy."""
    fitting = f'col("{read}")' + (f'.dropFields("{without}")' if without else "")
    if to_dead_letters:
        yield f'frame = frame.withColumn("value", {fitting})'
        return
    words = (
        f"concat('a record {UNFIT} {source.name}: topic ', topic, ', partition ', partition, "
        f"', offset ', offset, ', value ', {shown}, "
        "'. dead_letters: {topic: NAME} on the source puts such records aside, and the query goes on')"
    )
    yield f"unfit = expr({_text(f'raise_error({words})')})"
    yield f'frame = frame.withColumn("value", when(expr({_text(unfit)}), unfit).otherwise({fitting}))'


def _topic_of(pipeline: Pipeline, sink: Sink) -> Source:
    """A sink that is read by its name."""
    topic = next(value for name, value in sink.options.items() if name.lower() == "topic")
    return Source(sink.name, sink.line, "ottla", {**_shared(sink.options), "subscribe": topic})


def _shared(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name.lower().startswith(SHARED)}


def _writer(pipeline: Pipeline, sink: Sink) -> Iterable[str]:
    yield f"writer = rows.writeStream.queryName({_text(sink.name)})"
    yield f'writer = writer.option("checkpointLocation", {_text(pipeline.checkpoint(sink.name))})'
    if sink.mode:
        yield f"writer = writer.outputMode({_text(sink.mode)})"
    if sink.format == "parquet":
        yield f"writer = writer.foreachBatch({_epochs(sink)})"
    elif sink.mode == "update" and sink.format in FOR_EACH_BATCH:
        yield f"writer = writer.foreachBatch(BatchSink({_text(sink.format)}, {_mapping(sink.options)}))"
    else:
        yield f"writer = writer.format({_text(sink.format)}).options(**{_mapping(sink.options)})"


def _epochs(sink: Sink) -> str:
    arguments = [f"{PARQUET[name]}={value!r}" for name, value in parquet_options(sink).items()]
    return f"ParquetEpochs({', '.join(arguments)})"


def parquet_options(sink: Sink) -> dict[str, str | int | tuple[str, ...]]:
    """By their names, as what they are; BadOption for those that ParquetEpochs does not have."""
    known = {name.lower(): name for name in PARQUET}
    found: dict[str, str | int | tuple[str, ...]] = {}
    for given, value in sink.options.items():
        name = known.get(given.lower())
        if name is None:
            hint = did_you_mean(given.lower(), known, f"there are {', '.join(PARQUET)}", shown=known)
            raise BadOption(f"there is no option {given!r}{hint}")
        if name in ("rowsPerFile", "files") and not (value.isdecimal() and int(value)):
            raise BadOption(f"{given} is {value!r}; it is a whole number from 1 on")
        if name == "partitionBy":
            found[name] = tuple(part.strip() for part in value.split(",") if part.strip())
        else:
            found[name] = value if name == "path" else int(value)
    if not found.get("path"):
        raise BadOption("the option path is missing; for example file:///data/orders")
    return found


def check_partitions(sink: Sink, columns: list[str]) -> None:
    names = parquet_options(sink).get("partitionBy", ())
    assert isinstance(names, tuple)
    missing = [name for name in names if name not in columns]
    if missing:
        raise BadOption(f"partitionBy names {missing[0]}; the columns are {', '.join(columns)}")
    if len(set(names)) == len(columns):
        raise BadOption("partitionBy names all columns, and nothing is left to be stored in the files")


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
