"""The driver that the soak kills: one topic into another topic, into a table and into Parquet, again and again; and
counts of it, in update mode, into a topic and into a table.

    python -m tests.spark.soaking BOOTSTRAP DATABASE STORAGE MASTER

It reads what there is, and begins again. It ends after a round that began when the file STORAGE/last was there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ottla.spark import BatchSink, prepare
from ottla.spark.connectors.parquet import ParquetEpochs
from tests.spark.copying import session

ROWS_PER_BATCH = 400


def begin(spark: Any, bootstrap: str, database: str, storage: Path) -> list[Any]:
    at = {"kafka.bootstrap.servers": bootstrap}
    numbers = (
        spark.readStream.format("ottla")
        .options(**at, subscribe="source", startingOffsets="earliest", maxOffsetsPerTrigger=ROWS_PER_BATCH)
        .option("kafka.isolation.level", "read_committed")
        .load()
        .selectExpr("key", "value", "cast(cast(value as string) as int) as number")
    )
    counts = numbers.groupBy((numbers.number % 10).alias("digit")).count()
    reported = counts.selectExpr("cast(digit as string) as key", "cast(count as string) as value")
    totals = counts.selectExpr("digit", "count as total")
    writers = {
        "topic": numbers.select("key", "value").writeStream.format("ottla").options(**at, topic="sink"),
        "table": numbers.select("number").writeStream.format("ottla-postgres").options(url=database, table="sink"),
        "files": numbers.select("number").writeStream.foreachBatch(ParquetEpochs((storage / "files").as_uri())),
        "counts": reported.writeStream.outputMode("update").foreachBatch(BatchSink("ottla", {**at, "topic": "counts"})),
        "totals": totals.writeStream.outputMode("update").foreachBatch(
            BatchSink("ottla-postgres", {"url": database, "table": "totals", "key": "digit"})
        ),
    }
    return [
        writer.option("checkpointLocation", str(storage / "checkpoints" / name)).trigger(availableNow=True).start()
        for name, writer in writers.items()
    ]


def main(bootstrap: str, database: str, storage: Path, master: str) -> None:
    spark = session(master, storage)
    prepare(spark)
    last = False
    while not last:
        last = (storage / "last").exists()
        for query in begin(spark, bootstrap, database, storage):
            query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
