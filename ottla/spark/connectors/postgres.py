"""`format("ottla-postgres")`: tables and queries of PostgreSQL in Spark, read and written as Arrow columns (ADBC).

    spark.read.format("ottla-postgres").option("url", "postgresql://…").option("table", "colleges")       # as it is now
    spark.readStream.format("ottla-postgres")…option("incrementingColumn", "id")                          # what is new
    df.writeStream.format("ottla-postgres")…option("table", "actors").option("key", "id")                 # upserts

A batch is one query, so it is one snapshot. Reading by a column that grows sees new rows, and updated ones if every
update raises it; it cannot see deletes, and it misses a row that is committed after one with a higher value, which
happens as soon as two writers work at once. Where that matters, read the changes: `ottla-postgres-cdc`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from adbc_driver_postgresql import dbapi
from psycopg import sql
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ottla.spark.connectors.postgres_options import ReadPlan, batch_plan, read_plan, stream_plan
from ottla.spark.connectors.postgres_sink import PostgresStreamWriter, PostgresWriter, sink_plan
from ottla.spark.options import BadOption
from ottla.spark.tracebacks import short_tracebacks

NUMERIC: Final = 1700
DECIMAL_DIGITS_MAX: Final = 38
_TYPES: Final = {
    16: "boolean", 17: "binary", 20: "long", 21: "short", 23: "int", 25: "string", 700: "float", 701: "double",
    1043: "string", 1082: "date", 1114: "timestamp_ntz", 1184: "timestamp", 1005: "array<short>", 1007: "array<int>",
    1009: "array<string>", 1016: "array<long>", 1021: "array<float>", 1022: "array<double>",
}  # fmt: skip
"""PostgreSQL's types by their oids. Others (uuid, jsonb, enums, intervals…) are read as their text."""


class Field(NamedTuple):
    name: str
    spark: str
    as_text: bool
    """Selected as text; decimals are made of it here."""


def fields(plan: ReadPlan) -> list[Field]:
    with psycopg.connect(plan.url, autocommit=True) as db:
        cursor = db.execute(f"select * from {plan.relation} limit 0".encode())
        return [_field(column) for column in cursor.description or ()]


def _field(column: Any) -> Field:
    if column.type_code == NUMERIC and column.precision and column.precision <= DECIMAL_DIGITS_MAX:
        return Field(column.name, f"decimal({column.precision},{column.scale or 0})", True)
    known = _TYPES.get(column.type_code)
    return Field(column.name, known or "string", known is None)


@short_tracebacks
class PostgresDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "ottla-postgres"

    def schema(self) -> str:
        return ", ".join(f"`{each.name}` {each.spark}" for each in fields(read_plan(self.options)))

    def reader(self, schema: StructType) -> TableReader:
        return TableReader(batch_plan(self.options), schema)

    def streamReader(self, schema: StructType) -> IncrementalReader:
        return IncrementalReader(stream_plan(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> PostgresWriter:
        plan = sink_plan(self.options, schema, overwrite=overwrite)
        if plan.options.app_id is not None and plan.options.version is None:
            raise BadOption("txnVersion is missing: it counts the writes of txnAppId, as a batch id does")
        return PostgresWriter(plan)

    def streamWriter(self, schema: StructType, overwrite: bool) -> PostgresStreamWriter:
        return PostgresStreamWriter(sink_plan(self.options, schema, overwrite=overwrite))


def select(plan: ReadPlan, schema: StructType, condition: sql.Composable) -> Iterator[pa.RecordBatch]:
    """One query, its answer batch by batch in exactly the columns and types that Spark expects."""
    there = {field.name: field for field in fields(plan)}
    missing = [name for name in schema.names if name not in there]
    if missing:
        raise BadOption(f"{plan.relation} has no column {missing[0]} any more; begin a new query to take up its schema")
    columns = [
        sql.SQL("{0}::text as {0}" if there[name].as_text else "{0}").format(sql.Identifier(name))
        for name in schema.names
    ]
    parts = (sql.SQL(", ").join(columns), sql.SQL(plan.relation), condition)
    query = sql.SQL("select {} from {}{}").format(*parts).as_string()
    target = to_arrow_schema(schema, timezone="UTC")
    with dbapi.connect(plan.url) as db, db.cursor() as cursor:
        cursor.execute("set timezone = 'UTC'")
        cursor.execute(query)
        for batch in cursor.fetch_record_batch():
            yield _fitted(batch, target)


def _fitted(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for column, field in zip(batch.columns, target, strict=True):
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        arrays.append(column if column.type == field.type else pc.cast(column, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=target)


@short_tracebacks
class TableReader(DataSourceReader):
    def __init__(self, plan: ReadPlan, schema: StructType) -> None:
        self._plan = plan
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return select(self._plan, self._schema, sql.SQL(""))


@dataclass(frozen=True)
class Between(InputPartition):
    """Values of the column in (after, upto], as text."""

    after: str | None
    upto: str


@short_tracebacks
class IncrementalReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Positions are {"column": "id", "value": "42"}, without a value before the first row."""

    def __init__(self, plan: ReadPlan, schema: StructType) -> None:
        assert plan.incrementing is not None
        self._plan = plan
        self._schema = schema
        self._column = sql.Identifier(plan.incrementing)
        self._target: str | None = None
        self._bounded = False

    def initialOffset(self) -> dict[str, str]:
        return {"column": self._plan.incrementing or ""}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._plan.rows_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._bounded, self._target = True, self._highest(None, None)

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        if start.get("column") != self._plan.incrementing:
            raise BadOption(f"the checkpoint counts by the column {start.get('column')}: begin a new one for another")
        if self._bounded and self._target is None:
            return start
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        found = self._highest(start.get("value"), rows_max)
        return start if found is None else {**start, "value": found}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        return [Between(start.get("value"), end["value"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Between)
        return select(self._plan, self._schema, self._where(partition.after, partition.upto))

    def _where(self, after: str | None, upto: str | None) -> sql.Composable:
        conditions = [sql.SQL("{} is not null").format(self._column)]
        if after is not None:
            conditions.append(sql.SQL("{} > {}").format(self._column, sql.Literal(after)))
        if upto is not None:
            conditions.append(sql.SQL("{} <= {}").format(self._column, sql.Literal(upto)))
        return sql.SQL(" where ") + sql.SQL(" and ").join(conditions)

    def _highest(self, after: str | None, rows_max: int | None) -> str | None:
        """The column's value of the last of so many rows; rows with the same value stay together."""
        relation = sql.SQL(self._plan.relation)
        limit = sql.SQL("" if rows_max is None else f" order by 1 limit {rows_max}")
        query = sql.SQL("select max(c)::text from (select {} as c from {}{}{}) as found")
        with psycopg.connect(self._plan.url, autocommit=True) as db:
            db.execute("set timezone = 'UTC'")
            row = db.execute(query.format(self._column, relation, self._where(after, self._target), limit)).fetchone()
        found: str | None = row[0] if row else None
        return found
