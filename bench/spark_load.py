"""What the Spark cell measures, in a process of its own, because a session cannot be had twice:

    python -m bench.spark_load plain|pipeline BOOTSTRAP TOPIC SINK ROWS

`plain`: a session as PySpark comes: reads, writes, micro-batches, a trickle. `pipeline`: one as `ottla pipeline` makes
it: micro-batches and the trickle. Prints one JSON object. Spark's own connector is measured beside ours, in the same
session and in turns, where its jars can be fetched.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench import spark_jars
from bench.maven import Unavailable

CORES = 2
BATCH_ROWS = 500
BATCHES = 45
LEFT_OUT = 15
"""Of these: the first ones, in which Spark compiles and workers start."""
TURNS = 2
RATE_TURNS = 3
TRICKLE_S = 20.0
TRICKLE_PAUSE_S = 0.1
LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "2g"}


def connector_jars() -> dict[str, str]:
    try:
        jars = [str(jar) for jar in spark_jars.fetch().glob("*.jar") if "minicluster" not in jar.name]
    except Unavailable as reason:
        print(f"without Spark's own connector: {reason}", file=sys.stderr)
        return {}
    return {"spark.jars": ",".join(jars)}


def session() -> Any:
    """A session with the defaults of PySpark."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("bench")
    settings = {"spark.ui.enabled": "false", **LOOPBACK, **connector_jars()}
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


@contextmanager
def pipeline_session(folder: Path) -> Iterator[Any]:
    """A session of `ottla pipeline`, with the same number of cores."""
    from ottla.spark.pipeline.spark_session import checkpoint_settings
    from ottla.spark.pipeline.spark_session import session as made

    settings = {**checkpoint_settings(str(folder)), **connector_jars(), "spark.master": f"local[{CORES}]"}
    with made("bench", folder / "spark.log", None, {**settings, "spark.driver.memory": "2g"}) as spark:
        yield spark


def forms_of(spark: Any) -> dict[str, str]:
    return {"ottla": "ottla", "connector": "kafka"} if spark.conf.get("spark.jars", "") else {"ottla": "ottla"}


def rates(rows: int, works: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Rows per second of each work, the best of several runs: the first ones warm the JVM, which all share."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(RATE_TURNS):
        for name, work in works.items():
            begun = time.monotonic()
            work()
            times[name].append(time.monotonic() - begun)
    return {name: rows / min(took) for name, took in times.items()}


class Job:
    """The same work with one of the two sources and sinks."""

    def __init__(self, spark: Any, form: str, bootstrap: str) -> None:
        self._spark = spark
        self._form = form
        self._bootstrap = bootstrap
        self._at = {"kafka.bootstrap.servers": bootstrap}

    def read(self, topic: str, **options: str) -> None:
        frame = self._spark.read.format(self._form).options(**self._at, subscribe=topic, **options).load()
        frame.write.format("noop").mode("overwrite").save()

    def write(self, topic: str, rows: int, value_bytes: int) -> None:
        values = f"lpad(id, {value_bytes}, 'x') value"
        frame = self._spark.range(0, rows, 1, CORES).selectExpr("cast(id as string) key", values)
        writer = frame.write.format(self._form).options(**self._at, topic=topic)
        (writer.mode("append") if self._form == "ottla" else writer).save()

    def batches_ms(self, topic: str) -> list[float]:
        """Duration of micro-batches of so many rows, from a topic with many more."""
        reader = self._spark.readStream.format(self._form).options(
            **self._at, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=str(BATCH_ROWS)
        )
        with tempfile.TemporaryDirectory() as checkpoint:
            query = reader.load().writeStream.format("noop").option("checkpointLocation", checkpoint).start()
            while len(query.recentProgress) < BATCHES and query.isActive:
                time.sleep(0.1)
            query.stop()
            if query.exception() is not None:
                raise query.exception()
            took = [each["durationMs"]["triggerExecution"] for each in query.recentProgress]
        return [float(each) for each in took[LEFT_OUT:]]

    def trickle_ms(self, source: str, sink: str, **options: str) -> list[float]:
        """Latency of a record every 100 ms from one topic into another."""
        reader = self._spark.readStream.format(self._form).options(
            **self._at, subscribe=source, startingOffsets="latest"
        )
        with tempfile.TemporaryDirectory() as checkpoint:
            writer = reader.load().select("value").writeStream.format(self._form)
            query = writer.options(**self._at, **options, topic=sink, checkpointLocation=checkpoint).start()
            try:
                took = Trickle(self._bootstrap, source, sink).run(lambda: query.isActive)
            finally:
                query.stop()
            if query.exception() is not None:
                raise query.exception()
            return took


class Trickle:
    def __init__(self, bootstrap: str, source: str, sink: str) -> None:
        self._bootstrap = bootstrap
        self._source = source
        self._sink = sink
        self._over = threading.Event()

    def _send(self) -> None:
        from ottla import blocking

        with blocking.Producer(self._bootstrap) as producer:
            while not self._over.wait(TRICKLE_PAUSE_S):
                producer.send(self._source, b"%d" % time.time_ns())

    def run(self, active: Callable[[], bool]) -> list[float]:
        from ottla import blocking

        took: list[float] = []
        config = {"auto.offset.reset": "latest", "isolation.level": "read_committed"}
        with blocking.Consumer(self._sink, bootstrap_servers=self._bootstrap, config=config) as consumer:
            consumer.getmany(timeout_ms=1000)
            sender = threading.Thread(target=self._send)
            sender.start()
            first = None
            while active() and (first is None or time.monotonic() < first + 1.5 * TRICKLE_S):
                for records in consumer.getmany(timeout_ms=100).values():
                    first = first or time.monotonic()
                    if time.monotonic() > first + TRICKLE_S / 2:  # warm
                        took += [(time.time_ns() - int(record.value)) / 1e6 for record in records]
            self._over.set()
            sender.join()
        return took


def p95(took: list[float]) -> float:
    return statistics.quantiles(took, n=20)[-1]


def measure_streams(spark: Any, bootstrap: str, topic: str, sink: str) -> dict[str, float]:
    """Micro-batches and the trickle, alternating."""
    forms = forms_of(spark)
    jobs = {name: Job(spark, form, bootstrap) for name, form in forms.items()}
    batches: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(TURNS):
        for name, job in jobs.items():
            batches[name] += job.batches_ms(topic)
    found: dict[str, float] = {}
    for name, took in batches.items():
        found[f"{name}_batch_ms"] = statistics.median(took)
        found[f"{name}_batch_p95_ms"] = p95(took)
    for name, job in jobs.items():
        plain = {"guarantee": "at_least_once"} if name == "ottla" else {}
        trickled = job.trickle_ms(topic, sink, **plain)
        found[f"{name}_trickle_ms"], found[f"{name}_trickle_p95_ms"] = statistics.median(trickled), p95(trickled)
    trickled = jobs["ottla"].trickle_ms(topic, sink)
    found["once_trickle_ms"], found["once_trickle_p95_ms"] = statistics.median(trickled), p95(trickled)
    if "connector" in jobs:
        found["batch_ratio"] = found["ottla_batch_ms"] / found["connector_batch_ms"]
    return found


def measure_plain(bootstrap: str, topic: str, sink: str, rows: int) -> dict[str, float]:
    spark = session()
    found = measure_streams(spark, bootstrap, topic, sink)
    jobs = {name: Job(spark, form, bootstrap) for name, form in forms_of(spark).items()}
    writes = {f"{name}_write_rows_s": partial(job.write, sink, rows, 100) for name, job in jobs.items()}
    large = {f"{name}_write_1k_rows_s": partial(job.write, sink, rows // 10, 1000) for name, job in jobs.items()}
    reads = {f"{name}_read_rows_s": partial(job.read, topic) for name, job in jobs.items()}
    reads["ottla_read_two_rows_s"] = partial(jobs["ottla"].read, topic, columns="key,value")
    found |= rates(rows, writes) | rates(rows // 10, large) | rates(rows, reads)
    if "connector" in jobs:
        found["read_ratio"] = found["ottla_read_rows_s"] / found["connector_read_rows_s"]
        found["read_two_ratio"] = found["ottla_read_two_rows_s"] / found["connector_read_rows_s"]
        found["write_ratio"] = found["ottla_write_rows_s"] / found["connector_write_rows_s"]
        found["write_1k_ratio"] = found["ottla_write_1k_rows_s"] / found["connector_write_1k_rows_s"]
    return found


def measure_pipeline(bootstrap: str, topic: str, sink: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, pipeline_session(Path(folder)) as spark:
        found = measure_streams(spark, bootstrap, topic, sink)
    return {f"pipeline_{name}": value for name, value in found.items()}


def main(kind: str, bootstrap: str, topic: str, sink: str, rows: str) -> dict[str, float]:
    if kind == "pipeline":
        return measure_pipeline(bootstrap, topic, sink)
    return measure_plain(bootstrap, topic, sink, int(rows))


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
