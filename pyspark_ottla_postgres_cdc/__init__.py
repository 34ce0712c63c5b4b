"""Where Spark looks for the data source `ottla-postgres-cdc`: a module `pyspark_*` with a `DefaultSource`."""

from __future__ import annotations

from ottla.spark.connectors import unavailable

try:
    from ottla.spark.connectors.postgres_cdc import PostgresCdcDataSource as DefaultSource
except ModuleNotFoundError as missing:
    DefaultSource = unavailable("ottla-postgres-cdc", missing.name or "psycopg")

__all__ = ["DefaultSource"]
