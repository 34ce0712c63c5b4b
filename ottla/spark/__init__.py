"""Spark reads and writes topics through PySpark: the data source `ottla`, found with no registration.

    spark.readStream.format("ottla").option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "orders")

Options, columns and offsets are those of Spark's Kafka connector, so one word changes, and a checkpoint can be moved.
Nothing is imported here before it is used: a pipeline's files are checked without Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.spark.batch_sink import BatchSink
    from ottla.spark.connectors.parquet import ParquetEpochs
    from ottla.spark.progress import GroupProgress
    from ottla.spark.source import OttlaDataSource
    from ottla.spark.streams import prepare

__all__ = ["BatchSink", "GroupProgress", "OttlaDataSource", "ParquetEpochs", "prepare"]

_HOMES = {
    "BatchSink": "batch_sink",
    "GroupProgress": "progress",
    "OttlaDataSource": "source",
    "ParquetEpochs": "connectors.parquet",
    "prepare": "streams",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"ottla.spark.{home}"), name)
