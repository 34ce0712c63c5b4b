"""Parquet in whole epochs: readable at any time, replaced when a batch comes again, owned by one checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from ottla.spark.connectors.parquet import ParquetEpochs

pytestmark = pytest.mark.timeout(300)


def run(spark: SparkSession, source: Path, target: Path, checkpoint: Path) -> None:
    stream = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(str(source))
    writer = stream.writeStream.foreachBatch(ParquetEpochs(target.as_uri(), rows_per_file=2))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def values(target: Path) -> list[str]:
    return sorted(ds.dataset(target, partitioning="hive").to_table()["value"].to_pylist())


def test_epochs_are_whole_and_a_batch_that_comes_again_replaces_its_own(spark, tmp_path):
    source, target, checkpoint = tmp_path / "source", tmp_path / "target", tmp_path / "checkpoint"
    source.mkdir()
    (source / "1.txt").write_text("a\nb\nc\n")
    run(spark, source, target, checkpoint)
    (source / "2.txt").write_text("d\n")
    run(spark, source, target, checkpoint)
    assert values(target) == ["a", "b", "c", "d"]
    assert len(list((target / "epoch=0").glob("*.parquet"))) == 2  # two rows a file

    # The driver was killed after the rename, before Spark's commit; another task had left half a file aside.
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    (target / "_staging" / "epoch=1").mkdir(parents=True, exist_ok=True)
    (target / "_staging" / "epoch=1" / "part-half.parquet").write_bytes(b"PAR1")
    assert values(target) == ["a", "b", "c", "d"]
    (source / "3.txt").write_text("e\n")
    run(spark, source, target, checkpoint)
    assert values(target) == ["a", "b", "c", "d", "e"]


def test_another_checkpoint_may_not_write_into_the_same_directory(spark, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    (source / "1.txt").write_text("a\n")
    run(spark, source, target, tmp_path / "first")
    with pytest.raises(Exception, match="holds the epochs of another checkpoint"):
        run(spark, source, target, tmp_path / "second")
    assert values(target) == ["a"]
