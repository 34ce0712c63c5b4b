"""Databases as data sources of Spark: `ottla-postgres` and `ottla-postgres-cdc`, found with no registration.

A connector for another database is a `pyspark.sql.datasource.DataSource` like these, in a module called `pyspark_*`.
docs/pipelines.md says what it has to guarantee for exactly-once pipelines.
"""

from __future__ import annotations

from typing import Any


def unavailable(format_name: str, problem: ImportError) -> type[Any]:
    """A data source that reports a missing package when it is used."""
    from pyspark.sql.datasource import DataSource

    class Unavailable(DataSource):
        def __init__(self, options: Any) -> None:
            raise problem

        @classmethod
        def name(cls) -> str:
            return format_name

    return Unavailable


def without_module(format_name: str, missing: ModuleNotFoundError) -> type[Any]:
    text = f"{format_name} needs the module {missing.name or 'psycopg'}: pip install 'ottla[postgres]'"
    return unavailable(format_name, ModuleNotFoundError(text))
