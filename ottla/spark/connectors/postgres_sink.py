"""Rows into a table of PostgreSQL, each exactly once: the rows of a task and its progress row are one transaction.

Who writes is named by `txnAppId` (a streaming query: its id), which write it is by `txnVersion` (the batch), and the
task by its number. A task first looks whether the progress row has its version; then it has been here before, and
leaves. Otherwise it copies its rows into a temporary table, upserts from there (the last row of a key wins), moves the
progress row on, and commits. Two attempts of one task wait for each other. A batch write without `txnAppId` keeps no
progress: with a key it can be repeated, without one it may double rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pyarrow as pa
from adbc_driver_postgresql import dbapi
from psycopg import sql
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ottla.spark.connectors.settings import Settings
from ottla.spark.options import BadOption

WRITE: Final = ("url", "table", "key", "deletedColumn", "txnAppId", "txnVersion")
PROGRESS: Final = "ottla_progress"
STAGED: Final = "ottla_staged"
ORDER: Final = "ottla_row_number"
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


class NotRepeatable(RuntimeError):
    """A batch that was written before has other rows this time."""


@dataclass(frozen=True, slots=True)
class SinkPlan:
    url: str
    table: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    """Names, and the types that they have in the table."""
    key: tuple[str, ...]
    deleted: str | None
    app_id: str | None
    version: int | None


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    rows: int
    skipped: bool


def sink_plan(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkPlan:
    """Checked against the table, once, before any task runs."""
    settings = Settings(given, WRITE)
    if overwrite:
        raise BadOption("rows are added and updated; mode('overwrite') and complete output are not there")
    url = settings.needed("url", "postgresql://user:password@localhost/database")
    table = tuple(settings.needed("table", "public.actors").split("."))
    key, deleted = settings.names("key"), settings.get("deletedColumn")
    app_id, version = settings.get("txnAppId"), settings.get("txnVersion")
    if (app_id is None) != (version is None):
        raise BadOption("txnAppId and txnVersion belong together: who writes, and which of its writes this is")
    if deleted is not None and (deleted not in schema.names or not key):
        raise BadOption(f"deletedColumn={deleted} needs a boolean column of that name, and a key to delete by")
    names = [name for name in schema.names if name != deleted]
    with psycopg.connect(url, autocommit=True) as db:
        types = _types(db, table, key)
        _make_progress(db)
    unknown = [name for name in names if name not in types]
    if unknown:
        raise BadOption(f"the table {'.'.join(table)} has no column {unknown[0]}; it has {', '.join(types)}")
    lacking = [name for name in key if name not in names]
    if lacking:
        raise BadOption(f"the key column {lacking[0]} is not among the columns: {', '.join(names)}")
    columns = tuple((name, types[name]) for name in names)
    return SinkPlan(url, table, columns, key, deleted, app_id, None if version is None else int(version))


def _types(db: psycopg.Connection[Any], table: tuple[str, ...], key: tuple[str, ...]) -> dict[str, str]:
    name = sql.Identifier(*table).as_string(db)
    found = db.execute(
        "select attname, format_type(atttypid, atttypmod) from pg_attribute "
        "where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped order by attnum",
        (name,),
    ).fetchall()
    if not found:
        raise BadOption(f"there is no table {'.'.join(table)}")
    unique = db.execute(
        "select array_agg(a.attname::text order by a.attname) from pg_index i "
        "join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey) "
        "where i.indrelid = to_regclass(%s) and i.indisunique and i.indpred is null group by i.indexrelid",
        (name,),
    ).fetchall()
    if key and [sorted(key)] not in [list(row) for row in unique]:
        raise BadOption(f"the key {', '.join(key)} is not unique in {'.'.join(table)}: make it its primary key")
    return dict(found)


def _make_progress(db: psycopg.Connection[Any]) -> None:
    with db.transaction():
        db.execute("select pg_advisory_xact_lock(hashtext(%s))", (PROGRESS,))
        db.execute(
            f"create table if not exists {PROGRESS} (app text, task int, version bigint not null, "
            "rows bigint not null, at timestamptz not null default now(), primary key (app, task))"
        )


class PostgresStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if self._plan.app_id is None and (query is None or batch is None):
            raise BadOption("Spark does not say which query and batch this is; set txnAppId and txnVersion")
        app_id = self._plan.app_id or str(query)
        return store(self._plan, app_id, int(str(batch)), context.partitionId(), iterator)


class PostgresWriter(DataSourceArrowWriter):
    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        if self._plan.app_id is None and context.getLocalProperty(QUERY_ID) is not None and not self._plan.key:
            # Two writes of one foreachBatch look the same from here, so the ids of the batch cannot name them.
            raise BadOption("a write in foreachBatch needs a key, or txnAppId and txnVersion, to be repeatable")
        return store(self._plan, self._plan.app_id, self._plan.version, context.partitionId(), iterator)


def store(
    plan: SinkPlan, app_id: str | None, version: int | None, task: int, batches: Iterator[pa.RecordBatch]
) -> Written:
    """One task's rows, in one transaction of the database."""
    with dbapi.connect(plan.url) as db, db.cursor() as cursor:
        if app_id is not None and version is not None:
            done = _done_before(cursor, app_id, version, task)
            if done is not None:
                return _skipped(done, app_id, version, task, batches)
        rows = _staged(cursor, batches)
        if rows:
            for statement in statements(plan):
                cursor.execute(statement)
        if app_id is not None and version is not None:
            cursor.execute(
                f"insert into {PROGRESS} (app, task, version, rows) "
                f"values ({_text(app_id)}, {task}, {version}, {rows}) "
                "on conflict (app, task) do update set version = excluded.version, rows = excluded.rows, at = now()"
            )
        db.commit()
        return Written(rows, skipped=False)


def _done_before(cursor: Any, app_id: str, version: int, task: int) -> tuple[int, int] | None:
    """Version and rows of the last write, if it was this one or one after it. The lock lasts until the commit."""
    lock = _text(f"{PROGRESS}/{app_id}/{task}")
    cursor.execute(f"select 1 from pg_advisory_xact_lock(hashtextextended({lock}, 0))")
    cursor.fetchall()
    cursor.execute(
        f"select version, rows from {PROGRESS} where app = {_text(app_id)} and task = {task} and version >= {version}"
    )
    found: tuple[int, int] | None = cursor.fetchone()
    return found


def _skipped(done: tuple[int, int], app_id: str, version: int, task: int, batches: Iterator[pa.RecordBatch]) -> Written:
    rows = sum(batch.num_rows for batch in batches)
    if done[0] == version and done[1] != rows:
        raise NotRepeatable(
            f"task {task} of write {version} of {app_id} stored {done[1]} rows before, and has {rows} this time: the "
            "input or the number of tasks has changed in between, so nobody can say which rows are missing"
        )
    return Written(rows, skipped=True)


def _staged(cursor: Any, batches: Iterator[pa.RecordBatch]) -> int:
    """Copy the rows, numbered, into a table of this transaction; how many there were."""
    count = 0
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return 0
    schema = first.schema.append(pa.field(ORDER, pa.int64()))

    def numbered() -> Iterator[pa.RecordBatch]:
        nonlocal count
        batch: pa.RecordBatch | None = first
        while batch is not None:
            order = pa.array(range(count, count + batch.num_rows), pa.int64())
            count += batch.num_rows
            yield pa.RecordBatch.from_arrays([*batch.columns, order], schema=schema)
            batch = next(batches, None)

    reader = pa.RecordBatchReader.from_batches(schema, numbered())
    cursor.adbc_ingest(STAGED, reader, mode="create", temporary=True)
    return count


def statements(plan: SinkPlan) -> list[str]:
    """From the staged rows into the table."""
    table = sql.Identifier(*plan.table)
    names = sql.SQL(", ").join(sql.Identifier(name) for name, _ in plan.columns)
    typed = sql.SQL(", ").join(sql.SQL("{}::" + kind).format(sql.Identifier(name)) for name, kind in plan.columns)
    staged = sql.Identifier(STAGED)
    if not plan.key:
        told = sql.SQL("insert into {} ({}) select {} from {} order by {}")
        return [told.format(table, names, typed, staged, sql.Identifier(ORDER)).as_string()]
    key = sql.SQL(", ").join(sql.Identifier(name) for name in plan.key)
    last = sql.SQL("(select distinct on ({0}) * from {1} order by {0}, {2} desc) as last").format(
        key, staged, sql.Identifier(ORDER)
    )
    kept: sql.Composable = sql.SQL("")
    made = []
    if plan.deleted is not None:
        gone = sql.Identifier(plan.deleted)
        kept = sql.SQL(" where {} is not true").format(gone)
        kinds = dict(plan.columns)
        same = sql.SQL(" and ").join(
            sql.SQL("t.{0} = last.{0}::" + kinds[name]).format(sql.Identifier(name)) for name in plan.key
        )
        told = sql.SQL("delete from {} as t using {} where last.{} and {}")
        made.append(told.format(table, last, gone, same).as_string())
    others = [name for name, _ in plan.columns if name not in plan.key]
    assigned = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others)
    action = sql.SQL("do update set {}").format(assigned) if others else sql.SQL("do nothing")
    # In the order of the key, so that tasks with keys in common lock their rows in the same order.
    told = sql.SQL("insert into {} ({}) select {} from {}{} order by {} on conflict ({}) {}")
    made.append(told.format(table, names, typed, last, kept, key, key, action).as_string())
    return made


def _text(value: str) -> str:
    told: str = sql.Literal(value).as_string()
    return told
