"""Parquet in whole epochs: readable at any time, replaced when a batch comes again, owned by one checkpoint."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession

from ottla.spark.connectors import parquet
from ottla.spark.connectors.parquet import ArrowFolder, ParquetEpochs
from ottla.spark.options import BadOption

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


@pytest.fixture(params=["hadoop", "pyarrow"])
def filesystem(request, monkeypatch):
    """Spark's own process, or pyarrow, as where there is no JVM."""
    if request.param == "pyarrow":
        monkeypatch.setattr(parquet, "folder_of", lambda batch, path: ArrowFolder(path))


def rows(spark: SparkSession, columns: str) -> DataFrame:
    return spark.range(4).selectExpr(*columns.split(","))


def test_a_column_that_is_added_later_is_seen_by_all_readers(spark, tmp_path, filesystem):
    epochs = ParquetEpochs(tmp_path.as_uri(), partition_by=["third"], query="q")
    epochs(rows(spark, "id,id % 3 as third"), 0)
    assert not (tmp_path / "epoch=-1").exists()  # nothing to add to what the first file says
    epochs(rows(spark, "id,id % 3 as third,'x' as added"), 1)
    epochs(rows(spark, "id,id % 3 as third"), 2)  # and is gone again
    table = ds.dataset(tmp_path, partitioning="hive").to_table()
    assert Counter(table["added"].to_pylist()) == {"x": 4, None: 8}
    assert sorted(table["id"].to_pylist()) == sorted([0, 1, 2, 3] * 3)
    read = spark.read.parquet(str(tmp_path))
    assert {"id", "added", "third", "epoch"} == set(read.columns)
    assert read.where("added = 'x' and third = 0").count() == 2


def test_a_column_of_another_type_is_refused(spark, tmp_path, filesystem):
    epochs = ParquetEpochs(tmp_path.as_uri(), query="q")
    epochs(rows(spark, "id"), 0)
    with pytest.raises(BadOption, match="the column id is bigint there, and string now"):
        epochs(rows(spark, "cast(id as string) as id"), 1)
    with pytest.raises(BadOption, match="partition_by names day; the columns are id"):
        ParquetEpochs(tmp_path.as_uri(), partition_by=["day"], query="q")(rows(spark, "id"), 1)


def test_a_new_checkpoint_replaces_no_epochs_of_an_older_one(spark, tmp_path, filesystem):
    epochs = ParquetEpochs(tmp_path.as_uri(), query="q")
    for epoch in (0, 1, 1):
        epochs(rows(spark, "id"), epoch)
    with pytest.raises(BadOption, match="has epoch 1, and this is batch 0"):
        epochs(rows(spark, "id"), 0)
    with pytest.raises(BadOption, match="holds the epochs of another checkpoint"):
        ParquetEpochs(tmp_path.as_uri(), query="other")(rows(spark, "id"), 2)
    assert sorted(ds.dataset(tmp_path, partitioning="hive").to_table()["id"].to_pylist()) == sorted([0, 1, 2, 3] * 2)
