"""A driver of its own, to be killed: captures a table's changes into another table, until it is told to end.

python -m tests.spark.connectors.copying DATABASE SLOT CHECKPOINT [once]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ottla.spark.pipeline.spark_session import session


def main() -> None:
    database, slot, checkpoint = sys.argv[1:4]
    folder = Path(checkpoint).parent
    settings = {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
    with session("copying", folder / "spark.log", "local[2]", settings) as spark:
        stream = spark.readStream.format("ottla-postgres-cdc").options(
            url=database, slot=slot, tables="t", maxChangesPerTrigger="5000" if "once" in sys.argv else "100"
        )
        rows = stream.load().where("value is not null").selectExpr("key", "op", "lsn")
        writer = rows.writeStream.format("ottla-postgres").options(url=database, table="events")
        writer = writer.option("checkpointLocation", checkpoint)
        if "once" in sys.argv:
            writer = writer.trigger(availableNow=True)
        query = writer.start()
        print("started", os.getpid(), flush=True)
        query.awaitTermination()


if __name__ == "__main__":
    main()
