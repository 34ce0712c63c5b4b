"""A program on Spark Connect: one topic into another and into Parquet, both through foreachBatch.

    python -m tests.spark.connecting BOOTSTRAP SOURCE SINK STORAGE

There is no JVM in its process, and the functions for each batch run in a process of the server.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from ottla.spark.connectors.parquet import ParquetEpochs
from ottla.spark.pipeline.spark_session import quick_python


def main(bootstrap: str, source: str, sink: str, storage: Path) -> None:
    from pyspark.sql import SparkSession

    from ottla.spark import BatchSink

    os.environ["PYSPARK_PYTHON"] = str(quick_python(storage))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    at = {"kafka.bootstrap.servers": bootstrap}
    frame = spark.readStream.format("ottla").options(**at, subscribe=source, startingOffsets="earliest").load()
    rows = frame.selectExpr("key", "value", "cast(cast(value as string) as int) % 3 as third")
    sinks: dict[str, Any] = {
        "files": ParquetEpochs((storage / "files").as_uri(), query="files", partition_by=("third",)),
        "topic": BatchSink("ottla", {**at, "topic": sink, "txnAppId": sink}),
    }
    for name, each in sinks.items():
        writer = rows.writeStream.foreachBatch(each).option("checkpointLocation", str(storage / "checkpoints" / name))
        writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
