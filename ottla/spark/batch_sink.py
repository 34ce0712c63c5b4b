"""BatchSink: topics and tables as sinks of `foreachBatch`, exactly once, in append and update mode.

    counts.writeStream.outputMode("update").foreachBatch(
        BatchSink("ottla", {"kafka.bootstrap.servers": "localhost:9092", "topic": "counts"})
    )

Who speaks: Spark's driver, which is called with every micro-batch, and the tasks of one job. The tasks write as those
of the data source's own writer do, and return their commit messages to the driver as rows; the driver decides and
commits. The only difference from `format("ottla")`: Spark starts no process to plan or to commit.

A batch is known by `txnAppId`, which is the query's id unless given, and by the batch's number. Two sinks of one
`foreachBatch` need names of their own: with one name, the second would count as a repetition of the first. The same
sink may write the same rows again, for example in a retry loop: an incomplete write is completed, and a complete one is
not repeated.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, DataSourceArrowWriter

from ottla.spark import clients
from ottla.spark.connectors import postgres_options as postgres
from ottla.spark.options import BadOption, check_promise, write_options
from ottla.spark.tracebacks import short_tracebacks
from ottla.spark.writers import query_and_run

if TYPE_CHECKING:
    import pyarrow as pa

RUNS_MAX: Final = 1000

_written: dict[tuple[str, str, str], tuple[int, object]] = {}
"""The last batch of a run, a format and a name, with its identity; none while one is written."""


@short_tracebacks
@dataclass(frozen=True)
class BatchSink:
    format: str
    options: Mapping[str, str]

    def __post_init__(self) -> None:
        """Wrong options are refused here, and not with the first batch."""
        _source(self.format)
        given = {name: str(value) for name, value in self.options.items()}
        if "txnversion" in {name.lower() for name in given}:
            raise BadOption("txnVersion cannot be set here: it is the number of the batch")
        if self.format == "ottla":
            options = write_options(given)
            check_promise(options, streaming=True)
            clients.new_producer(options.kafka)
        else:
            postgres.sink_options(given)

    def __call__(self, batch: DataFrame, number: int) -> None:
        options = {name.lower(): str(value) for name, value in self.options.items()}
        if options.get("guarantee", "").lower() != "at_least_once":
            query, run = query_and_run(batch)
            name = options.setdefault("txnappid", query or "")
            if not name:
                raise BadOption(
                    "txnAppId is missing: on Spark Connect the query of a batch is unknown, so give the "
                    "sink a name of its own, which stays the same as long as the checkpoint does"
                )
            options["txnversion"] = str(number)
            key, content = (run or name, self.format, name), _content(batch, options)
            follows = _follows(key, number, content)
            write(batch, self.format, options, follows=follows)
            _note(key, number, content)
        else:
            write(batch, self.format, options)


def write(batch: DataFrame, form: str, options: Mapping[str, str], *, follows: bool = False) -> None:
    """A DataFrame through the batch writer of a data source, in one job; one after another, if it `follows`."""
    source = _source(form)(CaseInsensitiveDict(options))
    writer: Any = source.writer(batch.schema, overwrite=False)
    if follows:
        writer.follow()
    try:
        rows = batch.mapInArrow(_writing(writer), "message binary").collect()
    except Exception:
        writer.give_up()
        raise
    writer.commit([pickle.loads(row.message) for row in rows])


def _writing(writer: DataSourceArrowWriter) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        message = pickle.dumps(writer.write(batches))
        yield pa.RecordBatch.from_arrays([pa.array([message], pa.binary())], names=["message"])

    return task


def _source(form: str) -> type[DataSource]:
    if form == "ottla":
        from ottla.spark.source import OttlaDataSource

        return OttlaDataSource
    if form == "ottla-postgres":
        from ottla.spark.connectors.postgres import PostgresDataSource

        return PostgresDataSource
    raise BadOption(f"there is no sink {form!r} for a batch; there are ottla and ottla-postgres")


def _content(batch: DataFrame, options: Mapping[str, str]) -> object:
    """The write, as far as it is known without running it."""
    try:
        plan: object = batch.semanticHash()
    except Exception:  # noqa: BLE001 - then it is like nothing else
        plan = object()
    return plan, tuple(sorted(options.items()))


def _follows(key: tuple[str, str, str], number: int, content: object) -> bool:
    """Whether the batch before this one was written by the same run; then it was committed. After a failure nothing
    is known, until a batch has been written."""
    before, written = _written.get(key, (-1, None))
    if before > number or (before == number and written != content):
        raise BadOption(
            f"batch {number} is written twice under the name {key[2]}, with other rows or to somewhere else: give each "
            "sink of a foreachBatch an option txnAppId of its own, or the second is taken for a repetition of the first"
        )
    _written.pop(key, None)
    return before >= 0 and before == number - 1


def _note(key: tuple[str, str, str], number: int, content: object) -> None:
    _written[key] = (number, content)
    while len(_written) > RUNS_MAX:
        _written.pop(next(iter(_written)))
