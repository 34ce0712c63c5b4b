"""The connectors in a real Spark, on a real PostgreSQL: found by their names, exact, and clear about what is wrong."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")
pytest.importorskip("psycopg", reason="needs psycopg: make test installs it")

import psycopg
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from ottla.spark import BatchSink
from ottla.spark.connectors.postgres_cdc import CdcStreamReader
from ottla.spark.connectors.postgres_options import capture_options
from ottla.spark.connectors.postgres_sink import RowsLost, SinkPlan, Staged, sink_plan, stage, store
from tests.spark.connectors.test_capture import run

pytestmark = pytest.mark.timeout(300)


def rows(database: str, query: str) -> list[Any]:
    with psycopg.connect(database, autocommit=True) as db:
        return db.execute(query).fetchall()


def captured(spark: SparkSession, database: str, slot: str, **options: str) -> DataFrame:
    stream = spark.readStream.format("ottla-postgres-cdc").option("url", database).option("slot", slot)
    return stream.options(tables="t", topicPrefix="db", **options).load()


def slot_of(database: str) -> str:
    return "spark_" + database.rsplit("_", 1)[1]


def run_once(stream: DataFrame, sink: str, checkpoint: Path, **options: str) -> Any:
    writer = stream.writeStream.format(sink).option("checkpointLocation", str(checkpoint)).options(**options)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def test_a_table_is_read_with_its_types(spark, database):
    run(
        database,
        "create table t (id int primary key, name text, price numeric(10,2), born date, at timestamptz, ok bool, "
        "tags text[], extra jsonb)",
        "insert into t values (1, 'a', 12.50, '1949-06-22', '2026-01-01 12:00+00', true, '{x,y}', '{\"k\": 1}')",
        "insert into t (id) values (2)",
    )
    table = spark.read.format("ottla-postgres").options(url=database, table="t").load()
    types = {field.name: field.dataType.simpleString() for field in table.schema}
    assert types["price"] == "decimal(10,2)"
    assert types["at"] == "timestamp"
    first, second = table.orderBy("id").collect()
    assert first["price"] == Decimal("12.50")
    assert first["tags"] == ["x", "y"]
    assert json.loads(first["extra"]) == {"k": 1}
    assert second["name"] is None


def test_counts_in_update_mode_reach_a_table_once(spark, database, tmp_path):
    run(database, "create table counts (letter text primary key, n bigint, batches int default 0)")
    run(
        database,
        "create function counted() returns trigger as $$ begin new.batches = old.batches + 1; return new; end $$ "
        "language plpgsql",
        "create trigger counted before update on counts for each row execute function counted()",
    )
    source = tmp_path / "source"
    source.mkdir()
    sink = BatchSink("ottla-postgres", {"url": database, "table": "counts", "key": "letter"})

    def update() -> None:
        lines = spark.readStream.schema("letter string").option("maxFilesPerTrigger", 1).text(str(source))
        writer = lines.groupBy("letter").agg(count("*").alias("n")).writeStream.outputMode("update")
        writer = writer.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "cp"))
        writer.trigger(availableNow=True).start().awaitTermination()

    (source / "1.txt").write_text("a\na\nb\n")
    update()
    (source / "2.txt").write_text("a\nc\n")
    update()
    reported = "select letter, n, batches from counts order by letter"
    assert rows(database, reported) == [("a", 3, 1), ("b", 1, 0), ("c", 1, 0)]
    for name in ("1", ".1.crc"):  # as if the driver had died after it stored the last batch
        (tmp_path / "cp" / "commits" / name).unlink(missing_ok=True)
    (source / "3.txt").write_text("b\n")
    update()
    assert rows(database, reported) == [("a", 3, 1), ("b", 2, 1), ("c", 1, 0)]


def test_options_are_refused_by_name(spark, database):
    with pytest.raises(Exception, match="did you mean table"):
        spark.read.format("ottla-postgres").options(url=database, tabel="t").load()


def test_new_rows_are_read_by_a_growing_column_and_a_batch_that_comes_again_is_stored_once(spark, database, tmp_path):
    run(database, "create table t (id int primary key, v text)", "create table copied (id int, v text)")
    run(database, "insert into t select g, 'x' from generate_series(1, 10) g")
    checkpoint = tmp_path / "checkpoint"

    def copy() -> int:
        source = spark.readStream.format("ottla-postgres").options(
            url=database, table="t", incrementingColumn="id", maxRowsPerTrigger="4"
        )
        query = run_once(source.load(), "ottla-postgres", checkpoint, url=database, table="copied")
        return max(progress["batchId"] for progress in query.recentProgress)

    copy()
    run(database, "insert into t values (11, 'y')")
    last = copy()
    assert [row[0] for row in rows(database, "select id from copied order by id")] == list(range(1, 12))

    # As if the driver had died after the database's commit, and before Spark's.
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    run(database, "insert into t values (12, 'z')")
    copy()
    assert [row[0] for row in rows(database, "select id from copied order by id")] == list(range(1, 13))


def test_changes_reach_a_table_by_key(spark, database, tmp_path):
    run(
        database,
        "create table t (id int primary key, name text)",
        "create table mirror (id int primary key, name text)",
        "insert into t select g, 'n' || g from generate_series(1, 100) g",
    )
    checkpoint, slot = tmp_path / "checkpoint", slot_of(database)

    def mirror() -> None:
        changes = captured(spark, database, slot).where("value is not null")
        picked = changes.selectExpr(
            "cast(get_json_object(key, '$.id') as int) as id",
            "get_json_object(value, '$.after.name') as name",
            "op = 'd' as gone",
        )
        run_once(picked, "ottla-postgres", checkpoint, url=database, table="mirror", key="id", deletedColumn="gone")

    mirror()
    assert rows(database, "select count(*) from mirror") == [(100,)]
    run(
        database,
        "update t set name = 'changed' where id <= 10",
        "update t set name = 'twice' where id = 10",
        "delete from t where id > 90",
        "insert into t values (200, 'late')",
    )
    mirror()
    same = "select count(*) from (table t except table mirror) x"
    assert rows(database, same) == [(0,)]
    assert rows(database, "select count(*) from mirror") == [(91,)]


def test_progress_shows_how_much_of_the_log_is_retained(spark, database, tmp_path):
    run(database, "create table t (id int primary key)", "insert into t values (1)")
    query = run_once(captured(spark, database, slot_of(database)), "noop", tmp_path / "checkpoint")
    (source,) = query.lastProgress["sources"]
    latest = source["latestOffset"]
    latest = json.loads(latest) if isinstance(latest, str) else latest
    assert "retainedWalBytes" in latest


def test_only_a_snapshot_leaves_no_slot(spark, database, tmp_path):
    run(database, "create table t (id int primary key)", "insert into t select generate_series(1, 7)")
    run(database, "create table out (key text, value text)")
    stream = captured(spark, database, slot_of(database), snapshot="only").select("key", "value")
    for _ in range(2):
        run_once(stream, "ottla-postgres", tmp_path / "checkpoint", url=database, table="out")
    assert rows(database, "select count(*) from out") == [(7,)]
    assert rows(database, "select count(*) from pg_replication_slots where database = current_database()") == [(0,)]


@pytest.mark.parametrize("snapshot", ["initial", "only"])
def test_a_snapshot_that_is_read_again_after_a_crash_is_identical(database, snapshot):
    run(database, "create table t (id int primary key, v text)")
    run(database, "insert into t select g, 'x' from generate_series(1, 9) g")
    options = capture_options({"url": database, "tables": "t", "slot": slot_of(database), "snapshot": snapshot})

    def read(reader: CdcStreamReader, end: dict[str, str]) -> list[Any]:
        parts = reader.partitions(reader.initialOffset(), end)
        return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]

    first = CdcStreamReader(options)
    end = first.latestOffset(first.initialOffset(), first.getDefaultReadLimit())
    reported = read(first, end)
    assert len(reported) == 9
    first.stop()
    again = CdcStreamReader(options)
    checkpointed = json.loads(json.dumps(end))
    assert read(again, checkpointed) == reported
    again.commit(checkpointed)
    assert again.latestOffset(checkpointed, again.getDefaultReadLimit()) == end  # nothing new, so no batch


def test_a_key_that_is_not_unique_is_refused(spark, database):
    run(database, "create table t (id int)")
    with pytest.raises(Exception, match="the key id is not unique in t"):
        spark.range(3).selectExpr("cast(id as int) id").write.format("ottla-postgres").mode("append").options(
            url=database, table="t", key="id"
        ).save()


def test_two_writes_of_one_batch_are_distinguished_by_their_names(spark, database, tmp_path):
    run(database, "create table t (id int primary key)", "insert into t select generate_series(1, 5)")
    run(database, "create table a (key text)", "create table b (key text)")

    def both(batch: DataFrame, number: int) -> None:
        for table in ("a", "b"):
            batch.select("key").write.format("ottla-postgres").mode("append").options(
                url=database, table=table, txnAppId=f"both-{table}", txnVersion=str(number)
            ).save()

    stream = captured(spark, database, slot_of(database))
    writer = stream.writeStream.foreachBatch(both).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    both_again = spark.createDataFrame([(f"{{{i}}}",) for i in range(5)], "key string").coalesce(1)
    both(both_again, 0)
    assert rows(database, "select count(*) from a") == rows(database, "select count(*) from b") == [(5,)]


def numbers_plan(database: str) -> SinkPlan:
    schema = StructType([StructField("id", LongType())])
    return sink_plan({"url": database, "table": "t", "txnAppId": "w", "txnVersion": "7"}, schema, overwrite=False)


def staged(plan: SinkPlan, count: int, tasks: int) -> list[Staged]:
    """Numbers from 0, shared out among so many tasks."""
    ids = [pa.array(range(task, count, tasks), pa.int64()) for task in range(tasks)]
    shares = [pa.RecordBatch.from_arrays([each], names=["id"]) for each in ids]
    app_id, version = plan.options.app_id, plan.options.version
    return [stage(plan, app_id, version, task, iter([share])) for task, share in enumerate(shares)]


def leftovers(database: str) -> Any:
    return rows(database, "select count(*) from pg_class where relkind = 'r' and relname like 'ottla_staged%'")[0][0]


def test_a_batch_that_comes_again_with_its_rows_shared_out_otherwise_is_stored_once(database):
    run(database, "create table t (id bigint)")
    plan = numbers_plan(database)
    staged(plan, 90, 3)  # and then the driver died
    assert leftovers(database) == 3
    assert store(plan, staged(plan, 90, 2))
    assert not store(plan, staged(plan, 90, 4))
    assert rows(database, "select count(*), count(distinct id) from t") == [(90, 90)]
    assert leftovers(database) == 0
    assert rows(database, "select version, rows from ottla_progress") == [(7, 90)]


def test_a_fenced_driver_stores_nothing(database):
    run(database, "create table t (id bigint)")
    plan = numbers_plan(database)
    late = staged(plan, 90, 3)
    assert store(plan, staged(plan, 90, 2))
    assert not store(plan, late)
    assert rows(database, "select count(*) from t") == [(90,)]


def test_rows_that_the_database_lost_between_task_and_driver_are_missed(database):
    run(database, "create table t (id bigint)")
    plan = numbers_plan(database)
    parts = staged(plan, 90, 2)
    run(database, f"truncate {parts[1].table}")  # as a restart does with tables that are not logged
    with pytest.raises(RowsLost, match="task 1 copied 45 rows"):
        store(plan, parts)
    assert rows(database, "select count(*) from t") == [(0,)]


def test_the_last_row_of_a_key_wins_whichever_task_has_it(database):
    run(database, "create table t (id int primary key, v text)")
    schema = StructType([StructField("id", IntegerType()), StructField("v", StringType())])
    plan = sink_plan({"url": database, "table": "t", "key": "id"}, schema, overwrite=False)

    def share(*pairs: tuple[int, str]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(
            [{"id": number, "v": text} for number, text in pairs],
            schema=pa.schema([("id", pa.int32()), ("v", pa.string())]),
        )

    parts = [stage(plan, None, None, 0, iter([share((1, "a"), (2, "a"), (1, "b"))]))]
    parts.append(stage(plan, None, None, 1, iter([share((2, "c"), (3, "c"))])))
    parts.append(stage(plan, None, None, 2, iter([])))
    store(plan, parts)
    assert rows(database, "select id, v from t order by id") == [(1, "b"), (2, "c"), (3, "c")]
