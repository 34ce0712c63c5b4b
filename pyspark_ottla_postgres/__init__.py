"""Where Spark looks for the data source `ottla-postgres`: a module `pyspark_*` with a `DefaultSource`."""

from __future__ import annotations

from typing import Any

from ottla.spark.connectors import without_module

DefaultSource: Any
try:
    from ottla.spark.connectors.postgres import PostgresDataSource
except ModuleNotFoundError as missing:
    DefaultSource = without_module("ottla-postgres", missing)
else:
    DefaultSource = PostgresDataSource

__all__ = ["DefaultSource"]
