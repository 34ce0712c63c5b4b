"""Avro in a topic and out of it again, through Spark and without a jar."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test-spark installs it")
pytest.importorskip("fastavro", reason="needs fastavro: make test-spark installs it")

from pyspark.sql.functions import struct

from ottla.spark.avro import from_avro, spark_type, to_avro
from ottla.spark.options import BadOption
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


def test_what_spark_has_no_type_for_is_refused():
    with pytest.raises(BadOption, match="a union of"):
        spark_type(["int", "string"])
    with pytest.raises(BadOption, match="'Other'"):
        spark_type({"type": "record", "name": "A", "fields": [{"name": "x", "type": "Other"}]})
