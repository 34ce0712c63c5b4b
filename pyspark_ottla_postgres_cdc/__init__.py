"""Where Spark looks for the data source `ottla-postgres-cdc`: a module `pyspark_*` with a `DefaultSource`."""

from __future__ import annotations

from typing import Any

from ottla.spark.connectors import without_module

DefaultSource: Any
try:
    from ottla.spark.connectors.postgres_cdc import PostgresCdcDataSource
except ModuleNotFoundError as missing:
    DefaultSource = without_module("ottla-postgres-cdc", missing)
else:
    DefaultSource = PostgresCdcDataSource

__all__ = ["DefaultSource"]
