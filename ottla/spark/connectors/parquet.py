"""Parquet on any filesystem that Hadoop or pyarrow knows, whole epochs at a time: for `writeStream.foreachBatch`.

    stream.writeStream.foreachBatch(ParquetEpochs("hdfs://namenode/actors")).option("checkpointLocation", …).start()

Spark's own file sink is exact only for readers of its `_spark_metadata`; others see files that a killed task left. Here
every epoch (micro-batch) is written into a hidden directory and renamed to `epoch=N/` when it is complete, which is
one step of the filesystem. A batch that is run again replaces its directory. So at any time the directories hold whole
epochs, and any reader may read them: `pyarrow.dataset.dataset(path, partitioning="hive")`.

Epochs are counted by the checkpoint, so a directory belongs to one checkpoint (the file `_ottla_query` says which): a
query with another one would count from zero again and replace what is not its own, and is refused.

Most readers take the columns of the first file for those of all. When a column is added, a file without rows and with
all columns is put before the others, as `epoch=-1/`, and `_ottla_schema` has them for the next batch to compare with.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from ottla.spark.connectors.folders import Folder, folder_of
from ottla.spark.options import BadOption
from ottla.spark.tracebacks import short_tracebacks
from ottla.spark.writers import query_and_run

OWNER: Final = "_ottla_query"
SCHEMA: Final = "_ottla_schema"
STAGING: Final = "_staging"
EPOCH: Final = "epoch="
COLUMNS: Final = f"{EPOCH}-1"
"""Sorts before all epochs; its file has no rows."""
NULL: Final = "__HIVE_DEFAULT_PARTITION__"


@short_tracebacks
@dataclass(frozen=True)
class ParquetEpochs:
    path: str
    rows_per_file: int = 1_000_000
    files: int | None = None
    """At most so many for an epoch; None: one for each task."""
    partition_by: tuple[str, ...] | list[str] = ()
    """Columns whose values become directories below each epoch: epoch=7/day=2026-11-17/."""
    query: str | None = None
    """A name for the query, where Spark does not say which it is: on Spark Connect."""

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        folder = folder_of(batch, self.path)
        _claim(folder, self.path, self.query or _query_id(batch))
        _check_newest(folder, self.path, epoch)
        self.store(batch, f"{EPOCH}{epoch}")

    def store(self, batch: DataFrame, name: str) -> None:
        """All of it as one directory, which is there when it is complete."""
        missing = [column for column in self.partition_by if column not in batch.columns]
        if missing:
            raise BadOption(f"partition_by names {missing[0]}; the columns are {', '.join(batch.columns)}")
        folder = folder_of(batch, self.path)
        self._keep_columns(batch, folder)
        if self.files is not None:
            batch = batch.coalesce(self.files)
        writer = batch.write.mode("overwrite").option("maxRecordsPerFile", self.rows_per_file)
        writer.parquet(f"{self.path}/{STAGING}/{name}", partitionBy=list(self.partition_by) or None)
        folder.replace(f"{STAGING}/{name}", name)

    def _keep_columns(self, batch: DataFrame, folder: Folder) -> None:
        """Let readers see the columns that earlier epochs do not have."""
        known = _known(batch, folder, self.path)
        all_columns = batch.schema if known is None else _joined(self.path, known, batch.schema)
        if all_columns == known:
            return
        if known is not None:
            stored = [field for field in all_columns.fields if field.name not in self.partition_by]
            staged = f"{STAGING}/{COLUMNS}"
            nothing = batch.sparkSession.createDataFrame([], StructType(stored))
            nothing.coalesce(1).write.mode("overwrite").parquet(f"{self.path}/{staged}")
            folder.delete(COLUMNS)
            folder.replace(staged, "/".join([COLUMNS, *(f"{column}={NULL}" for column in self.partition_by)]))
        folder.write(SCHEMA, all_columns.json())


def _query_id(batch: DataFrame) -> str:
    query, _ = query_and_run(batch)
    if query is None:
        raise BadOption(
            "on Spark Connect nobody says which query a batch belongs to: ParquetEpochs(path, query='orders'), with a "
            "name of its own for each checkpoint"
        )
    return query


def _claim(folder: Folder, path: str, query: str) -> None:
    owner = folder.read(OWNER)
    if not owner:
        folder.write(OWNER, query)
    elif owner != query:
        raise BadOption(
            f"{path} holds the epochs of another checkpoint (query {owner}); this one (query {query}) counts anew and "
            "would replace them: give it another path"
        )


def _check_newest(folder: Folder, path: str, epoch: int) -> None:
    """A batch that is run again is always the last one. One before it comes of a checkpoint that counts anew."""
    numbers = [name.removeprefix(EPOCH) for name in folder.names() if name.startswith(EPOCH)]
    newest = max((int(number) for number in numbers if number.isdecimal()), default=-1)
    if epoch < newest:
        raise BadOption(
            f"{path} has epoch {newest}, and this is batch {epoch}: the checkpoint counts anew and would replace what "
            "is there. Give the query another path, or its own checkpoint"
        )


def _known(batch: DataFrame, folder: Folder, path: str) -> StructType | None:
    """The columns of all epochs so far. Directories of earlier versions are looked into, once."""
    text = folder.read(SCHEMA)
    if text is not None:
        return StructType.fromJson(_parsed(text))
    if not any(name.startswith(EPOCH) for name in folder.names()):
        return None
    read = batch.sparkSession.read.option("mergeSchema", "true").option("basePath", path).parquet(f"{path}/{EPOCH}*")
    return StructType([field for field in read.schema.fields if field.name != EPOCH.rstrip("=")])


def _parsed(text: str) -> dict[str, Any]:
    parsed = json.loads(text)
    assert isinstance(parsed, dict)
    return parsed


def _joined(path: str, known: StructType, new: StructType) -> StructType:
    """Old columns first. One that has changed its type cannot be read together with what is there."""
    types = {field.name: field.dataType for field in known.fields}
    for field in new.fields:
        if field.name in types and types[field.name].simpleString() != field.dataType.simpleString():
            raise BadOption(
                f"{path}: the column {field.name} is {types[field.name].simpleString()} there, and "
                f"{field.dataType.simpleString()} now: give it another name, or the query another path"
            )
    added = [field for field in new.fields if field.name not in types]
    return StructType([*known.fields, *added]) if added else known
