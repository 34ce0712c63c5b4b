"""Spark's own Kafka connector beside ours: both on Ottla, ours on Apache Kafka, one checkpoint for both."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

import pyarrow.dataset as ds

from ottla import blocking
from ottla.client.admin import NewTopic
from ottla.spark.connectors.parquet import ParquetEpochs
from tests.spark.conftest import Create
from tests.spark.test_sink import fill, numbers, once

pytestmark = pytest.mark.timeout(300)


def run(spark: Any, form: str, bootstrap: str, source: str, checkpoint: Path, write: Any) -> None:
    """What there is of a topic, read by this connector, into a writer."""
    at = {"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "300"}
    frame = spark.readStream.format(form).options(**at, subscribe=source).load().select("key", "value")
    query = write(frame.writeStream).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def into(form: str, bootstrap: str, topic: str) -> Any:
    return lambda writer: writer.format(form).option("kafka.bootstrap.servers", bootstrap).option("topic", topic)


def test_sparks_own_connector_reads_and_writes_ottla(spark, broker, create: Create, tmp_path):
    source, sink = create(2), create(2)
    at = {"kafka.bootstrap.servers": broker.bootstrap}
    frame = spark.range(500).selectExpr("cast(id as string) key", "cast(id as string) value")
    frame.write.format("kafka").options(**at, topic=source).save()
    run(spark, "kafka", broker.bootstrap, source, tmp_path / "cp", into("kafka", broker.bootstrap, sink))
    assert numbers(broker.bootstrap, sink) == once(500)
    read = [spark.read.format(form).options(**at, subscribe=sink).load() for form in ("kafka", "ottla")]
    assert read[0].schema == read[1].schema
    assert sorted(read[0].collect()) == sorted(read[1].collect())


@pytest.mark.parametrize(("first", "then"), [("kafka", "ottla"), ("ottla", "kafka")])
def test_a_checkpoint_continues_with_the_other_connector(
    first: str, then: str, spark, broker, create: Create, tmp_path
):
    source = create(2)
    seen: Counter[int] = Counter()

    def collect(writer: Any) -> Any:
        return writer.foreachBatch(lambda rows, _: seen.update(int(bytes(row.value)) for row in rows.collect()))

    fill(broker.bootstrap, source, 700)
    run(spark, first, broker.bootstrap, source, tmp_path / "cp", collect)
    assert seen == once(700)
    fill(broker.bootstrap, source, 500, first=700)
    run(spark, then, broker.bootstrap, source, tmp_path / "cp", collect)
    assert seen == once(1200)
    fill(broker.bootstrap, source, 100, first=1200)
    run(spark, first, broker.bootstrap, source, tmp_path / "cp", collect)
    assert seen == once(1300)


def test_our_source_and_sink_work_with_apache_kafka(spark, kafka: str, tmp_path):
    with blocking.Admin(kafka) as admin:
        admin.create_topics([NewTopic("source", 2), NewTopic("sink", 2)])
    fill(kafka, "source", 1000)
    run(spark, "ottla", kafka, "source", tmp_path / "cp", into("ottla", kafka, "sink"))
    assert numbers(kafka, "sink") == once(1000)
    # As if the driver had died after its tasks wrote the last batch, and before it noted that.
    last = max((tmp_path / "cp" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink(missing_ok=True)
    fill(kafka, "source", 300, first=1000)
    run(spark, "ottla", kafka, "source", tmp_path / "cp", into("ottla", kafka, "sink"))
    assert numbers(kafka, "sink") == once(1300)


def test_a_real_hdfs_takes_whole_epochs_of_parquet(spark, broker, create: Create, hdfs: str, tmp_path):
    source = create(2)
    fill(broker.bootstrap, source, 800)
    epochs = ParquetEpochs(f"{hdfs}/numbers")
    for first in (800, 1000):
        write = lambda writer: writer.foreachBatch(epochs)  # noqa: E731
        run(spark, "ottla", broker.bootstrap, source, tmp_path / "cp", write)
        fill(broker.bootstrap, source, 200, first=first)
    (tmp_path / "cp" / "commits" / "3").unlink()  # the last batch comes again, and replaces its directory
    (tmp_path / "cp" / "commits" / ".3.crc").unlink(missing_ok=True)
    run(spark, "ottla", broker.bootstrap, source, tmp_path / "cp", lambda writer: writer.foreachBatch(epochs))
    copied = tmp_path / "copied"
    hadoop = spark._jvm.org.apache.hadoop.fs
    path = hadoop.Path(f"{hdfs}/numbers")
    path.getFileSystem(spark._jsc.hadoopConfiguration()).copyToLocalFile(path, hadoop.Path(copied.as_uri()))
    values = ds.dataset(copied, partitioning="hive").to_table()["value"].to_pylist()
    assert Counter(map(int, values)) == once(1200)
