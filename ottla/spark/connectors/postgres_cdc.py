"""`format("ottla-postgres-cdc")`: the changes of tables of PostgreSQL as a stream of records, ready for a topic.

    spark.readStream.format("ottla-postgres-cdc").option("url", "postgresql://…").option("tables", "public.actors")

Positions in the checkpoint are {"lsn": "0/1A2B3C8"}; before the snapshot {"snapshot": "initial"}, and after it with
"at", the timestamp of its records, which is the same when they are read again. The planner makes the slot and keeps
the exported snapshot open; tasks read. There is one task, since the order of changes matters, and since exactly-once
sinks want a batch that is run again to be cut the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ottla.spark.connectors.capture import Capture, Exported, connect
from ottla.spark.connectors.envelope import Captured
from ottla.spark.connectors.pgoutput import lsn_number, lsn_text
from ottla.spark.connectors.postgres_options import CaptureOptions, capture_options
from ottla.spark.options import BadOption
from ottla.spark.tracebacks import short_tracebacks

SCHEMA: Final = "topic string, key string, value string, timestamp timestamp, op string, lsn long"
ARROW: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("key", pa.string()),
        ("value", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("op", pa.string()),
        ("lsn", pa.int64()),
    ]
)
BATCH_ROWS: Final = 5_000


@short_tracebacks
class PostgresCdcDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "ottla-postgres-cdc"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> CdcStreamReader:
        return CdcStreamReader(capture_options(self.options))

    def reader(self, schema: StructType) -> Any:
        raise BadOption("changes are read with readStream; for rows as they are now: read.format('ottla-postgres')")


@dataclass(frozen=True)
class CdcPartition(InputPartition):
    """Of the snapshot, or of the changes in (start, end]."""

    start: int | None
    end: int
    exported: str | None = None
    at: datetime | None = None
    """The timestamp of records of the snapshot."""


@short_tracebacks
class CdcStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: CaptureOptions) -> None:
        self._options = options
        self._exported: Exported | None = None
        self._target: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For the tasks, which get the exported snapshot by its name."""
        return {"_options": self._options, "_exported": None, "_target": None}

    def initialOffset(self) -> dict[str, str]:
        with connect(self._options.url) as db:
            capture = Capture(self._options, db)
            capture.prepare()
            if self._options.snapshot != "never":
                return {"snapshot": self._options.snapshot}
            there = capture.slot()
            return {"lsn": lsn_text(there.confirmed if there else capture.make_slot())}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.changes_max)

    def prepareForTriggerAvailableNow(self) -> None:
        with connect(self._options.url) as db:
            self._target = Capture(self._options, db).position()

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        if start.get("snapshot") == "done":
            return start
        if self._options.snapshot == "only" and "lsn" not in start:
            return {"snapshot": "done", "at": datetime.now(UTC).isoformat()}
        with connect(self._options.url) as db:
            capture = Capture(self._options, db)
            if "lsn" not in start:
                return {"lsn": lsn_text(self._begin(capture)), "at": datetime.now(UTC).isoformat()}
            self._let_go()
            changes_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            begun = lsn_number(start["lsn"])
            end = capture.end_after(begun, changes_max, self._target)
            return start if end == begun else {"lsn": lsn_text(end)}

    def _begin(self, capture: Capture) -> int:
        """A slot that is there already was left by an earlier try, or made by hand: it is taken over as it is."""
        there = capture.slot()
        if there is not None:
            return there.confirmed
        self._exported = capture.make_slot_exporting()
        return self._exported.lsn

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Shown with the query's progress: how far the database is, and how much of its log it keeps for us."""
        with connect(self._options.url) as db:
            capture = Capture(self._options, db)
            slot = capture.slot()
            retained = slot.retained_bytes if slot else 0
            return {"lsn": lsn_text(capture.position()), "retainedWalBytes": retained}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        if "lsn" in start:
            return [CdcPartition(lsn_number(start["lsn"]), lsn_number(end["lsn"]))]
        name = self._exported.name if self._exported is not None and not self._exported.closed else None
        at = datetime.fromisoformat(end["at"]) if "at" in end else datetime.now(UTC)  # earlier versions left it out
        return [CdcPartition(None, lsn_number(end["lsn"]) if "lsn" in end else -1, name, at)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, CdcPartition)
        with connect(self._options.url) as db:
            capture = Capture(self._options, db)
            if partition.start is None:
                assert partition.at is not None
                records = capture.snapshot(partition.exported, partition.end, partition.at)
            else:
                records = capture.changes(partition.start, partition.end)
            while rows := list(islice(records, BATCH_ROWS)):
                yield _batch(rows)

    def commit(self, end: dict[str, str]) -> None:
        self._let_go()
        if "lsn" in end:
            with connect(self._options.url) as db:
                Capture(self._options, db).advance(lsn_number(end["lsn"]))

    def stop(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        if self._exported is not None:
            self._exported.close()
            self._exported = None


def _batch(rows: list[Captured]) -> pa.RecordBatch:
    columns = [[getattr(row, name) for row in rows] for name in ARROW.names]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, ARROW.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW)
