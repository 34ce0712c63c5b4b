"""Rows into a table of PostgreSQL, each exactly once: the rows of a batch and its progress row are one transaction.

`txnAppId` identifies the writer (a streaming query: its id), `txnVersion` the write (the batch). Every task copies its
rows into a staging table of its own. When all tasks are done, the driver checks whether the progress row has this
version already; then the batch was stored before, with any tasks. Otherwise it upserts from all staging tables (the
last row of a key wins), updates the progress row, and commits; the same transaction drops the staging tables, and those
that earlier attempts have left. They are not logged, so they are empty after a crash of the database: the driver counts
what it finds. A write without `txnAppId` keeps no progress: with a key it can be repeated, without one it may double
rows.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pyarrow as pa
from adbc_driver_postgresql import dbapi
from psycopg import sql
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ottla.spark.connectors.postgres_options import SinkOptions, check_columns, sink_options
from ottla.spark.options import BadOption
from ottla.spark.tracebacks import short_tracebacks
from ottla.spark.workers import settling
from ottla.spark.writers import BATCH_ID, QUERY_ID, MessageCommitter, Messages, current_task

PROGRESS: Final = "ottla_progress"
STAGED: Final = "ottla_staged"
TASK: Final = "ottla_task"
ORDER: Final = "ottla_row_number"
WHOLE_BATCH: Final = 0
"""The task number of a progress row, which is for all tasks."""


class RowsLost(RuntimeError):
    """The database has lost staged rows of a task: it was restarted during the batch."""


@dataclass(frozen=True, slots=True)
class SinkPlan:
    options: SinkOptions
    columns: tuple[tuple[str, str], ...]
    """Names, and the types that they have in the table."""
    run: str
    """Names this write among all others, when it has no name of its own."""


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The rows of one task, where the driver finds them."""

    table: str | None
    """None: there were no rows."""
    rows: int
    task: int
    app_id: str | None
    version: int | None


def sink_plan(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkPlan:
    """Checked against the table, once, before any task runs."""
    options = sink_options(given)
    if overwrite:
        raise BadOption("rows are added and updated; mode('overwrite') and complete output are not there")
    check_columns(options, schema.names)
    names = [name for name in schema.names if name != options.deleted]
    with psycopg.connect(options.url, autocommit=True) as db:
        types = _types(db, options.table, options.key)
        _make_progress(db)
    unknown = [name for name in names if name not in types]
    if unknown:
        raise BadOption(f"the table {'.'.join(options.table)} has no column {unknown[0]}; it has {', '.join(types)}")
    columns = tuple((name, types[name]) for name in names)
    return SinkPlan(options, columns, uuid.uuid4().hex)


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


class _TableWriter(MessageCommitter):
    """What batch and stream have in common."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def _commit(self, messages: Messages) -> None:
        store(self._plan, _staged(messages))

    def _abort(self, messages: Messages) -> None:
        with psycopg.connect(self._plan.options.url) as db:
            _drop(db, [part.table for part in _staged(messages) if part.table])


def _staged(messages: Messages) -> list[Staged]:
    return sorted((message for message in messages if isinstance(message, Staged)), key=lambda part: part.task)


@short_tracebacks
class PostgresStreamWriter(_TableWriter, DataSourceStreamArrowWriter):
    @settling
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = current_task()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise BadOption("Spark does not say which query and batch this is")
        return stage(self._plan, self._plan.options.app_id or query, int(batch), context.partitionId(), iterator)


@short_tracebacks
class PostgresWriter(_TableWriter, DataSourceArrowWriter):
    @settling
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = current_task()
        options = self._plan.options
        if options.app_id is None and context.getLocalProperty(QUERY_ID) is not None and not options.key:
            # Two writes of one foreachBatch look the same from here, so the ids of the batch cannot name them.
            raise BadOption("a write in foreachBatch needs a key, or txnAppId and txnVersion, to be repeatable")
        return stage(self._plan, options.app_id, options.version, context.partitionId(), iterator)

    def give_up(self) -> None:
        """Staged rows of an aborted batch: the next stored batch drops them."""

    def follow(self) -> None:
        """Staging tables of earlier batches do not disturb."""


# In a task.


def stage(
    plan: SinkPlan, app_id: str | None, version: int | None, task: int, batches: Iterator[pa.RecordBatch]
) -> Staged:
    """Copy one task's rows, numbered, into a table of their own."""
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return Staged(None, 0, task, app_id, version)
    schema = first.schema.append(pa.field(ORDER, pa.int64()))
    count = 0

    def numbered() -> Iterator[pa.RecordBatch]:
        nonlocal count
        batch: pa.RecordBatch | None = first
        while batch is not None:
            order = pa.array(range(count, count + batch.num_rows), pa.int64())
            count += batch.num_rows
            yield pa.RecordBatch.from_arrays([*batch.columns, order], schema=schema)
            batch = next(batches, None)

    table = f"{_prefix(plan, app_id)}_{task}_{uuid.uuid4().hex[:12]}"  # attempts of one task may overlap
    with dbapi.connect(plan.options.url) as db, db.cursor() as cursor:
        cursor.adbc_ingest(table, pa.RecordBatchReader.from_batches(schema, []), mode="create")
        cursor.execute(f'alter table "{table}" set unlogged')
        cursor.adbc_ingest(table, pa.RecordBatchReader.from_batches(schema, numbered()), mode="append")
        db.commit()
    return Staged(table, count, task, app_id, version)


def _prefix(plan: SinkPlan, app_id: str | None) -> str:
    """The common prefix of the staging tables of one writer."""
    return f"{STAGED}_{hashlib.sha256((app_id or plan.run).encode()).hexdigest()[:16]}"


# In the driver.


def store(plan: SinkPlan, parts: Sequence[Staged]) -> bool:
    """All rows of a batch, in one transaction of the database. False: they were stored before."""
    if not parts:
        return False
    app_id, version = parts[0].app_id, parts[0].version
    with psycopg.connect(plan.options.url) as db:
        stored = app_id is not None and version is not None and _stored_before(db, app_id, version)
        if not stored:
            full = [part for part in parts if part.table is not None]
            for part in full:
                _check_whole(db, part)
            for statement in statements(plan, full) if full else ():
                db.execute(statement)
            if app_id is not None and version is not None:
                _move_on(db, app_id, version, sum(part.rows for part in parts))
        _drop(db, _left(db, _prefix(plan, app_id)))
    return not stored


def _stored_before(db: psycopg.Connection[Any], app_id: str, version: int) -> bool:
    """Whether this write, or one after it, was stored. The lock lasts until the end of the transaction."""
    db.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"{PROGRESS}/{app_id}",))
    found = db.execute(
        f"select 1 from {PROGRESS} where app = %s and task = %s and version >= %s", (app_id, WHOLE_BATCH, version)
    )
    return found.fetchone() is not None


def _move_on(db: psycopg.Connection[Any], app_id: str, version: int, rows: int) -> None:
    db.execute(
        f"insert into {PROGRESS} (app, task, version, rows) values (%s, %s, %s, %s) "
        "on conflict (app, task) do update set version = excluded.version, rows = excluded.rows, at = now()",
        (app_id, WHOLE_BATCH, version, rows),
    )


def _check_whole(db: psycopg.Connection[Any], part: Staged) -> None:
    counted = db.execute(sql.SQL("select count(*) from {}").format(sql.Identifier(str(part.table)))).fetchone()
    left = counted[0] if counted else 0
    if left != part.rows:
        raise RowsLost(f"task {part.task} copied {part.rows} rows, of which {left} are left; run the batch again")


def _left(db: psycopg.Connection[Any], prefix: str) -> list[str]:
    """The tables of all tasks of a writer, of this batch and of attempts that came to nothing."""
    found = db.execute("select relname from pg_class where relkind = 'r' and starts_with(relname, %s)", (prefix,))
    return [name for (name,) in found]


def _drop(db: psycopg.Connection[Any], tables: Sequence[str]) -> None:
    for table in tables:
        db.execute(sql.SQL("drop table if exists {}").format(sql.Identifier(table)))


def statements(plan: SinkPlan, parts: Sequence[Staged]) -> list[sql.Composed]:
    """From the tasks' tables into the one that is meant."""
    table = sql.Identifier(*plan.options.table)
    names = sql.SQL(", ").join(sql.Identifier(name) for name, _ in plan.columns)
    typed = sql.SQL(", ").join(sql.SQL("{}::" + kind).format(sql.Identifier(name)) for name, kind in plan.columns)
    rows = sql.SQL(" union all ").join(
        sql.SQL("select *, {} as {} from {}").format(part.task, sql.Identifier(TASK), sql.Identifier(str(part.table)))
        for part in parts
    )
    staged = sql.SQL("({}) as staged").format(rows)
    task, order = sql.Identifier(TASK), sql.Identifier(ORDER)
    if not plan.options.key:
        query = sql.SQL("insert into {} ({}) select {} from {} order by {}, {}")
        return [query.format(table, names, typed, staged, task, order)]
    key = sql.SQL(", ").join(sql.Identifier(name) for name in plan.options.key)
    last = sql.SQL("(select distinct on ({0}) * from {1} order by {0}, {2} desc, {3} desc) as last").format(
        key, staged, task, order
    )
    kept: sql.Composable = sql.SQL("")
    made: list[sql.Composed] = []
    if plan.options.deleted is not None:
        gone = sql.Identifier(plan.options.deleted)
        kept = sql.SQL(" where {} is not true").format(gone)
        kinds = dict(plan.columns)
        same = sql.SQL(" and ").join(
            sql.SQL("t.{0} = last.{0}::" + kinds[name]).format(sql.Identifier(name)) for name in plan.options.key
        )
        query = sql.SQL("delete from {} as t using {} where last.{} and {}")
        made.append(query.format(table, last, gone, same))
    others = [name for name, _ in plan.columns if name not in plan.options.key]
    assigned = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others)
    action = sql.SQL("do update set {}").format(assigned) if others else sql.SQL("do nothing")
    # In the order of the key, so that writers with keys in common lock their rows in the same order.
    query = sql.SQL("insert into {} ({}) select {} from {}{} order by {} on conflict ({}) {}")
    made.append(query.format(table, names, typed, last, kept, key, key, action))
    return made
