"""Analysis by Spark: the SQL of a pipeline is parsed and analysed, and no query is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.spark.connectors import options as postgres
from ottla.spark.options import BadOption, write_options
from ottla.spark.pipeline import kept, locating
from ottla.spark.pipeline.document import Pipeline, Problem, Sink
from ottla.spark.pipeline.program import analysed
from ottla.spark.pipeline.reasons import reason
from ottla.spark.pipeline.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def problems(pipeline: Pipeline) -> list[Problem]:
    log = kept.home(pipeline) / "spark.log"
    with session(pipeline.name, log, None, pipeline.configuration) as spark:
        return found(pipeline, spark)


def found(pipeline: Pipeline, spark: SparkSession) -> list[Problem]:
    return sorted({problem for sink in pipeline.sinks.values() for problem in _sink(pipeline, sink, spark)})


def _sink(pipeline: Pipeline, sink: Sink, spark: SparkSession) -> list[Problem]:
    text = analysed(pipeline, sink)
    namespace: dict[str, Any] = {"__name__": "ottla_pipeline"}
    exec(compile(text, locating.file_name(pipeline), "exec"), namespace)
    try:
        rows = namespace[f"rows_of_{sink.name}"](spark)
    except Exception as problem:  # noqa: BLE001 - of PySpark, of a database, of a registry: all are told
        return [Problem(locating.line_of(pipeline, text, problem), reason(str(problem)))]
    try:
        _check_columns(sink, rows)
        _check_streaming(sink, rows, spark)
    except Exception as problem:  # noqa: BLE001
        line = sink.line_of("from" if isinstance(problem, BadOption) else "mode")
        return [Problem(line, f"the sink {sink.name}: {reason(str(problem))}")]
    return []


def _check_columns(sink: Sink, rows: DataFrame) -> None:
    """Whether there is what the sink writes."""
    if sink.format == "ottla":
        from ottla.spark.sink import plan_of

        plan_of(write_options(sink.options), rows.schema)
    elif sink.format == "ottla-postgres":
        postgres.check_columns(postgres.sink_options(sink.options), rows.schema.names)


def _check_streaming(sink: Sink, rows: DataFrame, spark: SparkSession) -> None:
    """What Spark asks when a query is started: whether it can be answered in this output mode."""
    jvm: Any = spark._jvm
    made: Any = rows
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, (sink.mode or "append").capitalize())()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(made._jdf.queryExecution().analyzed(), mode)
