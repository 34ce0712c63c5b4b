"""Where Spark looks for the data source `ottla-postgres`: a module `pyspark_*` with a `DefaultSource`."""

from __future__ import annotations

from typing import Any

from ottla.spark.connectors import unavailable

DefaultSource: Any
try:
    from ottla.spark.connectors.postgres import PostgresDataSource
except ModuleNotFoundError as missing:
    DefaultSource = unavailable("ottla-postgres", missing.name or "psycopg")
else:
    DefaultSource = PostgresDataSource

__all__ = ["DefaultSource"]
