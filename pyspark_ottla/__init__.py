"""Where Spark looks for the data source `ottla`: any module `pyspark_*` with a `DefaultSource` is found by itself."""

from __future__ import annotations

from ottla.spark.source import OttlaDataSource


class DefaultSource(OttlaDataSource):
    """`format("ottla")`."""


__all__ = ["DefaultSource"]
