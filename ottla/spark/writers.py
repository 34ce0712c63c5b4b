"""Writers of data sources: which query and batch a task writes for, and commit and abort for batches and streams alike.

Spark pickles a writer in the driver and calls `write` in the tasks. When all tasks are done, it calls `commit` with
their messages: in the driver for a batch write, in a worker for a streaming query. If one failed, it calls `abort`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.datasource import WriterCommitMessage

from ottla.spark.tracebacks import short_tracebacks
from ottla.spark.workers import settle

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
RUN_ID: Final = "spark.jobGroup.id"
"""What Spark sets for the threads and tasks of a micro-batch: the query, the batch, and this run of the query."""
Messages = Sequence[WriterCommitMessage | None]


@short_tracebacks
class MessageCommitter:
    """A mixin for `DataSourceArrowWriter` and `DataSourceStreamArrowWriter`; only the latter has batch ids."""

    @abstractmethod
    def _commit(self, messages: Messages) -> None: ...

    @abstractmethod
    def _abort(self, messages: Messages) -> None: ...

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        try:
            self._commit(messages)
        finally:
            if batchId is not None:
                settle()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        self._abort(messages)


def current_task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "writers write in tasks"
    return task


def query_and_run(batch: DataFrame) -> tuple[str | None, str | None]:
    """The query that a batch of `foreachBatch` belongs to, and the run of it. On Spark Connect, neither is known."""
    try:
        context = batch.sparkSession.sparkContext
    except Exception:  # noqa: BLE001 - which error it is depends on the version of PySpark
        return None, None
    return context.getLocalProperty(QUERY_ID), context.getLocalProperty(RUN_ID)
