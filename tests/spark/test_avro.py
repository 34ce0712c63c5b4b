"""Avro in a topic and out of it again, through Spark and without a jar; values that fit no schema, Avro or JSON."""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")
pytest.importorskip("fastavro", reason="needs fastavro: make test installs it")

import fastavro
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import expr, struct

from ottla.spark.avro import fits_avro, from_avro, spark_type, to_avro
from ottla.spark.options import BadOption
from ottla.spark.pipeline import checks, document
from ottla.spark.pipeline.program import _unfit, program
from tests.serde.test_serde import Registry
from tests.spark.conftest import Create

pytestmark = pytest.mark.timeout(300)

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
        ],
    }
)


def test_rows_are_written_as_avro_and_read_again(spark, broker, create: Create):
    topic = create(1)
    rows = [
        (1, "x", Decimal("12.50"), date(2026, 11, 15), datetime(2026, 11, 15, 12, tzinfo=UTC), ["a", "b"]),
        (2, None, Decimal("-0.01"), date(1970, 1, 1), datetime(2001, 2, 3, 4, 5, 6, 789, tzinfo=UTC), []),
    ]
    kind = "id long, note string, price decimal(10,2), day date, at timestamp, tags array<string>"
    frame = spark.createDataFrame(rows, kind)
    at = {"kafka.bootstrap.servers": broker.bootstrap}
    value = to_avro(struct(*frame.columns), SCHEMA).alias("value")
    frame.select(value).write.format("ottla").options(**at, topic=topic).mode("append").save()
    read = spark.read.format("ottla").options(**at, subscribe=topic).load()
    found = read.select(from_avro("value", SCHEMA).alias("order")).select("order.*")
    assert sorted(found.collect()) == sorted(frame.collect())
    assert found.schema.simpleString() == frame.schema.simpleString()


TIMES = {
    "type": "record",
    "name": "Times",
    "fields": [
        {"name": "millis", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "micros", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "opens", "type": ["null", {"type": "int", "logicalType": "time-millis"}]},
        {"name": "closes", "type": ["null", {"type": "long", "logicalType": "time-micros"}]},
        {"name": "rings", "type": {"type": "array", "items": {"type": "int", "logicalType": "time-millis"}}},
        {"name": "named", "type": {"type": "map", "values": {"type": "int", "logicalType": "time-millis"}}},
        {"name": "local_millis", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "local_micros", "type": ["null", {"type": "long", "logicalType": "local-timestamp-micros"}]},
        {"name": "meaningless", "type": {"type": "long", "logicalType": "date"}},
    ],
}


def test_times_and_local_timestamps_are_read_and_written_as_spark_itself_would(spark):
    its_own = spark._jvm.org.apache.spark.sql.avro.SchemaConverters.toSqlType(
        spark._jvm.org.apache.avro.Schema.Parser().parse(json.dumps(TIMES))
    )
    kind = spark_type(TIMES)
    assert kind.simpleString() == its_own.dataType().simpleString()
    noon, last = time(12, 0, 0, 1000), time(23, 59, 59, 999999)
    local = datetime(2026, 3, 29, 2, 30, 0, 5000)
    rows = [
        (43_200_001, last, 0, noon, [1, 86_399_999], {"noon": 43_200_000}, local, datetime(1969, 1, 1, 0, 0, 0, 7), 7),
        (0, time(0), None, None, [], {}, datetime(1, 1, 1), None, -7),
    ]
    frame = spark.createDataFrame(rows, kind).coalesce(1)
    written = frame.select(to_avro(struct(*frame.columns), json.dumps(TIMES)).alias("value"))
    first = io.BytesIO(bytes(written.first()[0]))
    read: Any = fastavro.schemaless_reader(first, fastavro.parse_schema(TIMES), None)
    assert (read["millis"], read["micros"], read["local_millis"]) == (noon, last, local)
    again = written.select(from_avro("value", json.dumps(TIMES)).alias("times")).select("times.*")
    assert [tuple(row) for row in again.collect()] == rows
    assert again.selectExpr("cast(local_millis as string)").first()[0] == "2026-03-29 02:30:00.005"


def test_values_without_a_spark_type_are_refused():
    with pytest.raises(BadOption, match="a union of"):
        spark_type(["int", "string"])
    with pytest.raises(BadOption, match="'Other'"):
        spark_type({"type": "record", "name": "A", "fields": [{"name": "x", "type": "Other"}]})


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_values_of_a_schema_that_the_registry_does_not_have_are_unreadable(spark, registry):
    frame = spark.createDataFrame([(1, "one")], "id long, note string").coalesce(1)
    framed = to_avro(struct("id", "note"), json.dumps(NOTE), registry=registry.url, subject="notes-value")
    good = bytes(frame.select(framed).first()[0])
    unknown = b"\0" + (4711).to_bytes(4, "big") + good[5:]
    values = spark.createDataFrame([(bytearray(good),), (bytearray(unknown),), (None,)], "value binary").coalesce(1)

    def read(url: str, **mode: str) -> list[Any]:
        fits = fits_avro("value", json.dumps(NOTE), registry=url)
        note = from_avro("value", json.dumps(NOTE), registry=url, **mode)
        return [tuple(row) for row in values.select(note, fits).collect()]

    assert read(registry.url, mode="PERMISSIVE") == [((1, "one"), True), (None, False), (None, True)]
    with pytest.raises(Exception, match="Schema not found"):
        read(registry.url)
    with pytest.raises(Exception, match="does not answer"):
        read("http://127.0.0.1:1", mode="PERMISSIVE")


def test_a_time_of_day_is_a_number_to_a_reader_whose_schema_says_so(spark, registry):
    def schema(millis: Any, micros: Any) -> str:
        fields = [{"name": "millis", "type": millis}, {"name": "micros", "type": micros}]
        return json.dumps({"type": "record", "name": "Both", "fields": fields})

    times = schema({"type": "int", "logicalType": "time-millis"}, {"type": "long", "logicalType": "time-micros"})
    frame = spark.createDataFrame([(1_001, time(0, 0, 1, 1))], "millis int, micros time").coalesce(1)
    framed = to_avro(struct("millis", "micros"), times, registry=registry.url, subject="times-value").alias("value")
    read = from_avro("value", schema("int", "long"), registry=registry.url).alias("both")
    assert tuple(frame.select(framed).select(read).first()[0]) == (1_001, 1_000_001)


PIPELINE = """\
name: orders
storage: file://{storage}
sources:
  orders:
    format: ottla
    options: {{kafka.bootstrap.servers: "{bootstrap}", subscribe: {orders}}}
    dead_letters: {{topic: {bad}}}
schemas:
  orders: {{avro: order.avsc}}
transforms:
  picked: select cast(value.id as string) as key, upper(value.note) as value from orders where value.id > 0
sinks:
  noted:
    from: picked
    format: ottla
    options: {{kafka.bootstrap.servers: "{bootstrap}", topic: {noted}}}
"""
NOTE = {
    "type": "record",
    "name": "Note",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string"}],
}


def test_a_pipeline_reads_avro_and_sends_the_rest_to_dead_letters(spark, broker, create: Create, tmp_path):
    orders, noted, bad = create(1), create(1), create(1)
    (tmp_path / "order.avsc").write_text(json.dumps(NOTE))
    text = PIPELINE.format(storage=tmp_path / "data", bootstrap=broker.bootstrap, orders=orders, noted=noted, bad=bad)
    pipeline = document.parse(text, str(tmp_path / "pipeline.yaml"), {})
    assert checks.problems(pipeline) == []

    at = {"kafka.bootstrap.servers": broker.bootstrap}
    frame = spark.createDataFrame([(0, "zero"), (1, "one"), (2, "two")], "id long, note string")
    good = frame.select(to_avro(struct("id", "note"), json.dumps(NOTE)).alias("value"))
    rubbish = spark.createDataFrame([(bytearray(b"\x02\x7fno"),)], "value binary")
    good.union(rubbish).coalesce(1).write.format("ottla").options(**at, topic=orders).mode("append").save()

    namespace: dict[str, Any] = {"__name__": "ottla_pipeline"}
    exec(compile(program(pipeline), "pipeline", "exec"), namespace)
    for begin in namespace["SINKS"].values():
        begin(spark, available_now=True).awaitTermination()
    written = spark.read.format("ottla").options(**at, subscribe=noted).load().selectExpr("cast(value as string)")
    assert sorted(row[0] for row in written.collect()) == ["ONE", "TWO"]
    dead = spark.read.format("ottla").options(**at, subscribe=bad).load().select("value").collect()
    assert [bytes(row[0]) for row in dead] == [b"\x02\x7fno"]

    strict = text.replace("    dead_letters:", "    # dead_letters:").replace("/data", "/strict")
    pipeline = document.parse(strict, str(tmp_path / "pipeline.yaml"), {})
    exec(compile(program(pipeline), "pipeline", "exec"), namespace)
    [begin] = namespace["SINKS"].values()
    named = f"does not fit the schema of orders: topic {orders}, partition 0, offset 3, value 0x027F6E6F. dead_letters"
    with pytest.raises(StreamingQueryException, match=re.escape(named)):
        begin(spark, available_now=True).awaitTermination()


def test_an_invalid_schema_is_reported_with_its_line(tmp_path):
    text = PIPELINE.format(storage=tmp_path, bootstrap="localhost:9092", orders="a", noted="b", bad="c")
    with pytest.raises(document.BadPipeline, match="cannot be read: No such file"):
        document.parse(text, str(tmp_path / "pipeline.yaml"), {})
    (tmp_path / "order.avsc").write_text('["int"]')
    with pytest.raises(document.BadPipeline, match="is not JSON"):
        document.parse(text, str(tmp_path / "pipeline.yaml"), {})


def test_json_that_does_not_fit_the_schema_is_found(spark):
    fits = ['{"id": 1}', "{}", '{"id": null, "more": 2}', None]
    unfit = ["two oranges", "", "  ", "null", "[]", '{"id": "one"}', '{"id": 1', "\x00"]
    rows = [(None if each is None else bytearray(each.encode()),) for each in fits + unfit]
    column = eval(_unfit(document.Schema("id bigint, price double")), {"expr": expr})
    reported = spark.createDataFrame(rows, "value binary").coalesce(1).select(column).collect()
    assert [row[0] for row in reported] == [False] * len(fits) + [True] * len(unfit)
