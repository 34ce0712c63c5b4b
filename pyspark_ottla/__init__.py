"""Where Spark looks for the data source `ottla`: any module `pyspark_*` with a `DefaultSource` is found by itself.

All such modules are imported when the first data source is looked for, and one that fails hides the others. So what is
missing here is told by those who use it.
"""

from __future__ import annotations

from typing import Any

import pyspark
from pyspark.sql.datasource import DataSource

try:
    from ottla.spark.source import OttlaDataSource as _Source
except ImportError as problem:
    _missing = f"format('ottla') needs PySpark 4.2 or newer, and this is {pyspark.__version__} ({problem})"

    class _Source(DataSource):  # type: ignore[no-redef]
        def __init__(self, options: Any) -> None:
            raise ImportError(_missing)

        @classmethod
        def name(cls) -> str:
            return "ottla"


class DefaultSource(_Source):
    """`format("ottla")`."""


__all__ = ["DefaultSource"]
