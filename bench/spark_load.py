"""What the Spark cell measures, in a process of its own, because a session cannot be had twice:

    python -m bench.spark_load BOOTSTRAP TOPIC SINK ROWS

Prints one JSON object. Spark's own connector is measured beside ours where its jars can be fetched.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from bench import spark_jars
from bench.maven import Unavailable

CORES = 2
BATCHES = 12


def session() -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("bench")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
    }
    try:
        jars = [str(jar) for jar in spark_jars.fetch().glob("*.jar") if "minicluster" not in jar.name]
        settings["spark.jars"] = ",".join(jars)
    except Unavailable as reason:
        print(f"without Spark's own connector: {reason}", file=sys.stderr)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def has_connector(spark: Any) -> bool:
    return bool(spark.conf.get("spark.jars", ""))


def seconds(work: Callable[[], object]) -> float:
    """The better of two: the first warms what it uses."""
    times = []
    for _ in range(2):
        begun = time.monotonic()
        work()
        times.append(time.monotonic() - begun)
    return min(times)


class Job:
    """The same work by one of the two sources and sinks."""

    def __init__(self, spark: Any, form: str, bootstrap: str) -> None:
        self._spark = spark
        self._form = form
        self._at = {"kafka.bootstrap.servers": bootstrap}

    def read(self, topic: str, **options: str) -> None:
        frame = self._spark.read.format(self._form).options(**self._at, subscribe=topic, **options).load()
        frame.write.format("noop").mode("overwrite").save()

    def write(self, topic: str, rows: int) -> None:
        frame = self._spark.range(0, rows, 1, CORES).selectExpr("cast(id as string) key", "lpad(id, 100, 'x') value")
        writer = frame.write.format(self._form).options(**self._at, topic=topic)
        (writer.mode("append") if self._form == "ottla" else writer).save()

    def overhead_ms(self, topic: str, rows: int) -> float:
        """What a micro-batch of a few records takes, the first ones left out."""
        reader = self._spark.readStream.format(self._form).options(
            **self._at, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=str(max(1, rows // 10_000))
        )
        with tempfile.TemporaryDirectory() as checkpoint:
            query = reader.load().writeStream.format("noop").option("checkpointLocation", checkpoint).start()
            while len(query.recentProgress) < BATCHES:
                time.sleep(0.1)
            query.stop()
            took = [each["durationMs"]["triggerExecution"] for each in query.recentProgress]
        return float(statistics.median(took[BATCHES // 3 :]))


def main(bootstrap: str, topic: str, sink: str, rows: int) -> dict[str, float]:
    spark = session()
    found: dict[str, float] = {}
    forms = {"ottla": "ottla", "connector": "kafka"} if has_connector(spark) else {"ottla": "ottla"}
    for name, form in forms.items():
        job = Job(spark, form, bootstrap)
        found[f"{name}_write_rows_s"] = rows / seconds(lambda job=job: job.write(sink, rows))  # type: ignore[misc]
        found[f"{name}_read_rows_s"] = rows / seconds(lambda job=job: job.read(topic))  # type: ignore[misc]
        found[f"{name}_batch_ms"] = job.overhead_ms(topic, rows)
    two = seconds(lambda: Job(spark, "ottla", bootstrap).read(topic, columns="key,value"))
    found["ottla_read_two_rows_s"] = rows / two
    if "connector" in forms:
        found["read_ratio"] = found["ottla_read_rows_s"] / found["connector_read_rows_s"]
        found["read_two_ratio"] = found["ottla_read_two_rows_s"] / found["connector_read_rows_s"]
        found["write_ratio"] = found["ottla_write_rows_s"] / found["connector_write_rows_s"]
    return found


if __name__ == "__main__":
    result = main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
    print(json.dumps(result))
