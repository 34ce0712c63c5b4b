"""A driver of its own, to be killed: copies a topic into another, exactly once, until it has read what there is.

python -m tests.spark.copying BOOTSTRAP SOURCE SINK CHECKPOINT MASTER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from ottla.spark.pipeline.spark_session import quick_python

ROWS_PER_BATCH = 1000


def session(master: str, folder: Path, **settings: str) -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = str(quick_python(folder))
    os.environ["PYSPARK_DRIVER_PYTHON"] = os.environ["PYSPARK_PYTHON"]  # for the planner, which Spark starts with this
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(master).appName("copying")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.sql.shuffle.partitions": "2",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        **settings,
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main(bootstrap: str, source: str, sink: str, checkpoint: str, master: str) -> None:
    spark = session(master, Path(checkpoint).parent)
    at = {"kafka.bootstrap.servers": bootstrap}
    reader = spark.readStream.format("ottla").options(
        **at, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=ROWS_PER_BATCH
    )
    writer = reader.load().select("key", "value").writeStream.format("ottla").options(**at, topic=sink)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
