"""Several streams in one Spark program.

Spark 4 keeps one map of environment variables for all streams of a Python data source. Each stream that starts puts the
same variables into it, in its own thread and without a lock (`PythonStreamingSourceRunner`). Two that start together
can break the map: then no task of the program can be serialized any more, and every query fails with `Illegal size 5 of
collection, expected 6`. If the map has these variables before the first stream starts, streams only change values.
"""

from __future__ import annotations

import logging
import tempfile
from typing import Any, Final

log = logging.getLogger("ottla.spark")

SOURCES: Final = ("ottla", "ottla-postgres-cdc")
VARIABLES: Final = {
    "SPARK_LOCAL_DIRS": tempfile.gettempdir(),
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""With Spark's defaults. Each stream sets its own values."""


def prepare(spark: Any) -> None:
    """Call it once, before the first of several streams starts. Pipelines do it. It changes nothing on Spark Connect,
    where only the server could, and with a Spark that has no such map."""
    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        for name in SOURCES:
            if manager.dataSourceExists(name):
                shared = manager.lookupDataSource(name).dataSourceCls().envVars()
                for variable, value in VARIABLES.items():
                    shared.putIfAbsent(variable, value)
    except Exception:
        log.info("streams that start together are not protected from each other", exc_info=True)
