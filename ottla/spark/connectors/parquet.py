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
from pathlib import PurePosixPath
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from ottla.spark.options import BadOption
from ottla.spark.tracebacks import short_tracebacks
from ottla.spark.writers import QUERY_ID

OWNER: Final = "_ottla_query"
SCHEMA: Final = "_ottla_schema"
STAGING: Final = "_staging"
EPOCH: Final = "epoch="
COLUMNS: Final = f"{EPOCH}-1"
"""Sorts before all epochs; its file has no rows."""
NULL: Final = "__HIVE_DEFAULT_PARTITION__"
JARS: Final = {
    "s3a": "org.apache.hadoop:hadoop-aws:{hadoop}",
    "abfs": "org.apache.hadoop:hadoop-azure:{hadoop}",
    "abfss": "org.apache.hadoop:hadoop-azure:{hadoop}",
    "gs": "com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.26",
}
"""What Spark's package does not bring along, by the scheme of an address."""


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
    try:
        return str(batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID))
    except Exception:  # noqa: BLE001 - which error Spark Connect raises depends on its version
        raise BadOption(
            "on Spark Connect the query of a batch is unknown: ParquetEpochs(path, query='orders'), with a "
            "name of its own for each checkpoint"
        ) from None


def _claim(folder: Folder, path: str, query: str) -> None:
    owner = folder.read(OWNER)
    if not owner:
        folder.write(OWNER, query)
    elif owner != query:
        raise BadOption(
            f"{path} holds the epochs of another checkpoint (query {owner}); this one (query {query}) counts from "
            "0 and would replace them: give it another path"
        )


def _check_newest(folder: Folder, path: str, epoch: int) -> None:
    """A batch that is run again is always the last one. An earlier one means a new checkpoint, which counts from 0."""
    numbers = [name.removeprefix(EPOCH) for name in folder.names() if name.startswith(EPOCH)]
    newest = max((int(number) for number in numbers if number.isdecimal()), default=-1)
    if epoch < newest:
        raise BadOption(
            f"{path} has epoch {newest}, and this is batch {epoch}: the checkpoint counts from 0 and would replace "
            "what is there. Give the query another path, or its own checkpoint"
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
    """Old columns first. A column with another type cannot be read together with the existing files."""
    types = {field.name: field.dataType for field in known.fields}
    for field in new.fields:
        if field.name in types and types[field.name].simpleString() != field.dataType.simpleString():
            raise BadOption(
                f"{path}: the column {field.name} is {types[field.name].simpleString()} there, and "
                f"{field.dataType.simpleString()} now: give it another name, or the query another path"
            )
    added = [field for field in new.fields if field.name not in types]
    return StructType([*known.fields, *added]) if added else known


class Folder(Protocol):
    """The output directory; names are paths below it. With Spark Connect there is no JVM at hand; then pyarrow's
    filesystems (file:, hdfs:, s3:, gs:) do the same as Hadoop's classes, from the server's process that runs
    `foreachBatch`."""

    def names(self) -> list[str]:
        """The content of the file; empty if there is none."""

    def read(self, name: str) -> str | None:
        """A small file; None: it is not there."""

    def write(self, name: str, text: str) -> None: ...

    def replace(self, staged: str, final: str) -> None:
        """Rename a directory or file; what had its new name goes."""

    def delete(self, name: str) -> None: ...


def folder_of(batch: DataFrame, path: str) -> Folder:
    session: Any = batch.sparkSession
    try:
        jvm = session._jvm
        configuration = session._jsc.hadoopConfiguration()
    except Exception:  # noqa: BLE001 - which error Spark Connect raises depends on its version
        return ArrowFolder(path)
    return HadoopFolder(jvm.org.apache.hadoop, configuration, path)


class HadoopFolder:
    def __init__(self, hadoop: Any, configuration: Any, path: str) -> None:
        self._hadoop = hadoop
        self._root = hadoop.fs.Path(path)
        try:
            self._fs = self._root.getFileSystem(configuration)
        except Exception as problem:
            scheme = path.split(":", 1)[0]
            if scheme not in JARS:
                raise
            jar = JARS[scheme].format(hadoop=hadoop.util.VersionInfo.getVersion())
            raise BadOption(f"{scheme}: is not built in; set spark.jars.packages to {jar}") from problem

    def _path(self, name: str) -> Any:
        return self._hadoop.fs.Path(self._root, name)

    def names(self) -> list[str]:
        if not self._fs.exists(self._root):
            return []
        return [str(each.getPath().getName()) for each in self._fs.listStatus(self._root)]

    def read(self, name: str) -> str | None:
        if not self._fs.exists(self._path(name)):
            return None
        stream = self._fs.open(self._path(name))
        text = bytes(stream.readAllBytes()).decode()
        stream.close()
        return text

    def write(self, name: str, text: str) -> None:
        stream = self._fs.create(self._path(name), True)
        stream.write(text.encode())
        stream.close()

    def replace(self, staged: str, final: str) -> None:
        self.delete(final)
        self._fs.mkdirs(self._path(final).getParent())
        if not self._fs.rename(self._path(staged), self._path(final)):
            raise OSError(f"{staged} cannot be renamed to {final}")

    def delete(self, name: str) -> None:
        if self._fs.exists(self._path(name)):
            self._fs.delete(self._path(name), True)


class ArrowFolder:
    def __init__(self, path: str) -> None:
        from pyarrow import fs

        try:
            self._fs, self._root = fs.FileSystem.from_uri(path.replace("s3a://", "s3://", 1))
        except ValueError as problem:
            raise BadOption(f"{path} is on no filesystem that pyarrow knows: {problem}") from None

    def _path(self, name: str) -> str:
        return str(PurePosixPath(self._root) / name)

    def _kind(self, name: str) -> Any:
        return self._fs.get_file_info(self._path(name)).type

    def names(self) -> list[str]:
        from pyarrow import fs

        found = self._fs.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        return [str(each.base_name) for each in found]

    def read(self, name: str) -> str | None:
        from pyarrow import fs

        if self._kind(name) != fs.FileType.File:
            return None
        with self._fs.open_input_stream(self._path(name)) as stream:
            return bytes(stream.read()).decode()

    def write(self, name: str, text: str) -> None:
        self._fs.create_dir(self._root, recursive=True)
        with self._fs.open_output_stream(self._path(name)) as stream:
            stream.write(text.encode())

    def replace(self, staged: str, final: str) -> None:
        self.delete(final)
        self._fs.create_dir(str(PurePosixPath(self._path(final)).parent), recursive=True)
        self._fs.move(self._path(staged), self._path(final))

    def delete(self, name: str) -> None:
        from pyarrow import fs

        kind = self._kind(name)
        if kind == fs.FileType.Directory:
            self._fs.delete_dir(self._path(name))
        elif kind == fs.FileType.File:
            self._fs.delete_file(self._path(name))
