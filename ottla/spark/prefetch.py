"""Prefetch: small batches are read by the planner and sent with the plan, so that no task starts a Python worker.

PySpark does that for its simple readers. Its wrapper for these is a private class, so it may be absent one day: then
this module cannot be imported, and tasks read everything, as with `prefetchMaxRecords=0`.

Whether a batch is small follows from its offsets and the options alone, as `offsets` demands: it is one task then,
in both cases. The planner leaves the rows to the task if they have too many bytes, if they do not arrive in time, or if
Spark has lost the prefetched rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql.datasource import InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadLimit

from ottla.client.errors import ClientError
from ottla.spark.source import OttlaStreamReader, RangesPartition

if TYPE_CHECKING:
    import pyarrow as pa

BYTES_MAX: Final = 2**20
"""Of rows that go through the driver."""
log = logging.getLogger(__name__)


class PrefetchingStreamReader(_SimpleStreamReaderWrapper):
    """The reader for the planner process. Everything but the rows comes from the wrapped reader."""

    def __init__(self, reader: OttlaStreamReader) -> None:
        super().__init__(cast("Any", reader))  # it asks for PySpark's own base class, of which it uses none
        self._reader = reader
        self._rows: tuple[object, list[pa.RecordBatch] | None] = (None, None)
        """Of the batch that was planned last, by its offsets."""

    def getDefaultReadLimit(self) -> ReadLimit:
        return self._reader.getDefaultReadLimit()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, dict[str, int]]:
        return self._reader.latestOffset(start, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        parts = self._reader.small_batch(start, end)
        if parts is None:
            self._rows = (None, None)
            return self._reader.partitions(start, end)
        self._rows = ((start, end), _read(self._reader, parts))
        return parts

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any] | None:
        planned, rows = self._rows
        self._rows = (None, None)
        return iter(rows) if planned == (start, end) and rows is not None else None

    def commit(self, end: dict[str, Any]) -> None:
        self._reader.commit(end)

    def read(self, input_partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(input_partition)

    def stop(self) -> None:
        self._reader.stop()


def _read(reader: OttlaStreamReader, parts: Sequence[RangesPartition]) -> list[pa.RecordBatch] | None:
    """None: the task is to read them, and to say why it cannot."""
    rows: list[pa.RecordBatch] = []
    size = 0
    try:
        for part in parts:
            with closing(reader.read(part)) as batches:
                for batch in batches:
                    rows.append(batch)
                    size += batch.nbytes
                    if size > BYTES_MAX:
                        return None
    except ClientError as error:
        log.info("the planner leaves a batch to its task: %s", error)
        return None
    return rows
