"""Parquet on any filesystem that Hadoop knows, whole epochs at a time: for `writeStream.foreachBatch`.

    stream.writeStream.foreachBatch(ParquetEpochs("hdfs://namenode/actors")).option("checkpointLocation", …).start()

Spark's own file sink is exact only for readers of its `_spark_metadata`; others see files that a killed task left. Here
every epoch (micro-batch) is written into a hidden directory and renamed to `epoch=N/` when it is complete, which is
one step of the filesystem. A batch that is run again replaces its directory. So at any time the directories hold whole
epochs, and any reader may read them: `pyarrow.dataset.dataset(path, partitioning="hive")`.

Epochs are counted by the checkpoint, so a directory belongs to one checkpoint (the file `_ottla_query` says which): a
query with another one would count from zero again and replace what is not its own, and is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

from ottla.spark.options import BadOption

OWNER: Final = "_ottla_query"
STAGING: Final = "_staging"
QUERY_ID: Final = "sql.streaming.queryId"
JARS: Final = {
    "s3a": "org.apache.hadoop:hadoop-aws:{hadoop}",
    "abfs": "org.apache.hadoop:hadoop-azure:{hadoop}",
    "abfss": "org.apache.hadoop:hadoop-azure:{hadoop}",
    "gs": "com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.26",
}
"""What Spark's package does not bring along, by the scheme of an address."""


@dataclass(frozen=True)
class ParquetEpochs:
    path: str
    rows_per_file: int = 1_000_000
    files: int | None = None
    """At most so many for an epoch; None: one for each task."""

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        _Folder(batch, self.path).claim(str(batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID)))
        self.store(batch, f"epoch={epoch}")

    def store(self, batch: DataFrame, name: str) -> None:
        """All of it as one directory, which is there when it is complete."""
        if self.files is not None:
            batch = batch.coalesce(self.files)
        staged = f"{self.path}/{STAGING}/{name}"
        batch.write.mode("overwrite").option("maxRecordsPerFile", self.rows_per_file).parquet(staged)
        _Folder(batch, self.path).replace(staged, f"{self.path}/{name}")


class _Folder:
    """One directory, through Hadoop's classes in Spark's own process."""

    def __init__(self, batch: DataFrame, path: str) -> None:
        session: Any = batch.sparkSession
        self._hadoop = session._jvm.org.apache.hadoop
        self._root = self._path(path)
        try:
            self._fs = self._root.getFileSystem(session._jsc.hadoopConfiguration())
        except Exception as problem:
            scheme = path.split(":", 1)[0]
            if scheme not in JARS:
                raise
            jar = JARS[scheme].format(hadoop=self._hadoop.util.VersionInfo.getVersion())
            raise BadOption(f"{scheme}: is not built in; set spark.jars.packages to {jar}") from problem

    def _path(self, text: str) -> Any:
        return self._hadoop.fs.Path(text)

    def claim(self, query: str) -> None:
        mark = self._hadoop.fs.Path(self._root, OWNER)
        if not self._fs.exists(mark):
            stream = self._fs.create(mark, True)
            stream.write(query.encode())
            stream.close()
            return
        stream = self._fs.open(mark)
        owner = bytes(stream.readAllBytes()).decode()
        stream.close()
        if owner and owner != query:
            raise BadOption(
                f"{self._root.toString()} holds the epochs of another checkpoint (query {owner}); this one (query "
                f"{query}) counts anew and would replace them: give it another path"
            )

    def replace(self, staged: str, final: str) -> None:
        target = self._path(final)
        if self._fs.exists(target):
            self._fs.delete(target, True)
        if not self._fs.rename(self._path(staged), target):
            raise OSError(f"{staged} cannot be renamed to {final}")
