"""Where Spark looks for the data source `ottla-postgres`: a module `pyspark_*` with a `DefaultSource`."""

from __future__ import annotations

from ottla.spark.connectors import unavailable

try:
    from ottla.spark.connectors.postgres import PostgresDataSource as DefaultSource
except ModuleNotFoundError as missing:
    DefaultSource = unavailable("ottla-postgres", missing.name or "psycopg")

__all__ = ["DefaultSource"]
