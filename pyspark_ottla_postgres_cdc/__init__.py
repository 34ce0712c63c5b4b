"""Where Spark looks for the data source `ottla-postgres-cdc`: a module `pyspark_*` with a `DefaultSource`."""

from __future__ import annotations

from typing import Any

from ottla.spark.connectors import unavailable

DefaultSource: Any
try:
    from ottla.spark.connectors.postgres_cdc import PostgresCdcDataSource
except ModuleNotFoundError as missing:
    DefaultSource = unavailable("ottla-postgres-cdc", missing.name or "psycopg")
else:
    DefaultSource = PostgresCdcDataSource

__all__ = ["DefaultSource"]
