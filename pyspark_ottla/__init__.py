"""Where Spark looks for the data source `ottla`: any module `pyspark_*` with a `DefaultSource` is found by itself.

All such modules are imported when the first data source is looked for, and one that fails hides the others. So what is
missing here is reported to those who use it.
"""

from __future__ import annotations

from typing import Any

import pyspark

DefaultSource: Any
try:
    from ottla.spark.source import OttlaDataSource
except ImportError as problem:
    from ottla.spark.connectors import unavailable

    needed = f"PySpark 4.2 or newer, and this is {pyspark.__version__} ({problem})"
    DefaultSource = unavailable("ottla", ImportError(f"format('ottla') needs {needed}"))
else:
    DefaultSource = OttlaDataSource

__all__ = ["DefaultSource"]
