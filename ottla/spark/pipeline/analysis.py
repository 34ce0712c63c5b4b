"""Analysis by Spark: the SQL of a pipeline is parsed and analysed, and no query is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.config.named_options import did_you_mean
from ottla.spark.connectors import postgres_options as postgres
from ottla.spark.options import BadOption, write_options
from ottla.spark.pipeline import failures, storage
from ottla.spark.pipeline.document import Pipeline, Problem, Sink
from ottla.spark.pipeline.failures import reason
from ottla.spark.pipeline.program import analysed, check_partitions
from ottla.spark.pipeline.spark_session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SQL: Final = "spark.sql."


def problems(pipeline: Pipeline) -> tuple[list[Problem], list[Problem]]:
    """And what may be none."""
    log = storage.home(pipeline) / "spark.log"
    with session(pipeline.name, log, None, pipeline.configuration) as spark:
        return found(pipeline, spark), strange_settings(pipeline, spark)


def strange_settings(pipeline: Pipeline, spark: SparkSession) -> list[Problem]:
    """Settings of SQL that Spark does not know, and that are almost one of its own; extensions may have others."""
    named = [name for name in pipeline.configuration if name.startswith(SQL)]
    if not named:
        return []
    jvm: Any = spark._jvm
    companion = getattr(getattr(jvm.org.apache.spark.sql.internal, "SQLConf$"), "MODULE$")  # of Scala
    known = {str(entry.key()) for entry in companion.getConfigEntries().toArray()}
    hints = {name: did_you_mean(name, known, cutoff=0.85) for name in named if name not in known}
    return [
        Problem(pipeline.line_of(name), f"Spark does not know the setting {name}{hint}")
        for name, hint in hints.items()
        if hint
    ]


def found(pipeline: Pipeline, spark: SparkSession) -> list[Problem]:
    return sorted({problem for sink in pipeline.sinks.values() for problem in _sink(pipeline, sink, spark)})


def _sink(pipeline: Pipeline, sink: Sink, spark: SparkSession) -> list[Problem]:
    text = analysed(pipeline, sink)
    namespace = failures.executed(pipeline, text)
    try:
        rows = namespace[f"rows_of_{sink.name}"](spark)
    except Exception as problem:  # noqa: BLE001 - of PySpark, of a database, of a registry: all are reported
        return [Problem(failures.line_of(pipeline, text, problem), reason(str(problem)))]
    try:
        _check_columns(sink, rows)
        _check_streaming(sink, rows, spark)
    except Exception as problem:  # noqa: BLE001
        at = "partitionBy" if "partitionBy" in str(problem) else "from"
        line = sink.line_of(at if isinstance(problem, BadOption) else "mode")
        return [Problem(line, f"the sink {sink.name}: {reason(str(problem))}")]
    return []


def _check_columns(sink: Sink, rows: DataFrame) -> None:
    """Whether the columns that the sink writes exist."""
    if sink.format == "ottla":
        from ottla.spark.sink import plan_of

        plan_of(write_options(sink.options), rows.schema)
    elif sink.format == "ottla-postgres":
        postgres.check_columns(postgres.sink_options(sink.options), rows.schema.names)
    elif sink.format == "parquet":
        check_partitions(sink, rows.schema.names)


def _check_streaming(sink: Sink, rows: DataFrame, spark: SparkSession) -> None:
    """What Spark asks when a query is started: whether it can be answered in this output mode."""
    jvm: Any = spark._jvm
    made: Any = rows
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, (sink.mode or "append").capitalize())()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(made._jdf.queryExecution().analyzed(), mode)
