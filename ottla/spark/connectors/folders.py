"""Output directories: whole epochs are renamed into them, through Hadoop's classes or through pyarrow.

With Spark Connect there is no JVM at hand; then pyarrow's filesystems (file:, hdfs:, s3:, gs:) do the same from the
process on the server that runs `foreachBatch`.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame

from ottla.spark.options import BadOption

JARS: Final = {
    "s3a": "org.apache.hadoop:hadoop-aws:{hadoop}",
    "abfs": "org.apache.hadoop:hadoop-azure:{hadoop}",
    "abfss": "org.apache.hadoop:hadoop-azure:{hadoop}",
    "gs": "com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.26",
}
"""What Spark's package does not bring along, by the scheme of an address."""


class Folder(Protocol):
    """One directory; names are paths below it."""

    def names(self) -> list[str]:
        """What is in it; nothing, if it is not there."""

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
