"""The cell of Spark: topics into Spark and Spark into topics, by our data source and by Spark's own connector."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

from bench.cell import Better, Cell, Metric, Settings, drop, fresh_topic
from bench.peers import REPOSITORY, Peer

PARTITIONS = 4
ROWS_PER_HISTORY = 5
"""So many times the records of the cells about history: five million."""
TIMEOUT_S = 1800


def _spark(peer: Peer, settings: Settings) -> dict[str, float]:
    """Nothing, where PySpark is not installed."""
    if find_spec("pyspark") is None:
        return {}
    import pyarrow as pa

    from ottla import blocking

    rows = settings.history * ROWS_PER_HISTORY
    topic, sink = fresh_topic(peer, PARTITIONS), fresh_topic(peer, PARTITIONS)
    table = pa.table({"key": [b"%d" % row for row in range(50_000)], "value": [bytes(100)] * 50_000})
    with blocking.Producer(peer.bootstrap_servers) as producer:
        for _ in range(rows // 50_000):
            producer.send_arrow(topic, table, key="key")
    command = [sys.executable, "-m", "bench.spark_load", peer.bootstrap_servers, topic, sink, str(rows)]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=True)
    drop(peer, topic, sink)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


SPARK_CELLS = (
    Cell(
        "spark",
        f"PySpark on two cores beside the broker, five million records of 100 B on {PARTITIONS} partitions: from a "
        "topic into nothing, seven columns and two; from Spark into a topic, at least once; and what a micro-batch "
        "of a few records takes. Spark's own connector does the same in that session, where its jars can be fetched.",
        (
            Metric("read_ratio", "Seven columns, against Spark's connector", "times", Better.HIGHER),
            Metric("read_two_ratio", "Key and value, against its seven columns", "times", Better.HIGHER),
            Metric("write_ratio", "Writing, against Spark's connector", "times", Better.HIGHER),
            Metric("ottla_read_rows_s", "Seven columns", "rows/s", Better.HIGHER),
            Metric("ottla_read_two_rows_s", "Key and value", "rows/s", Better.HIGHER),
            Metric("ottla_write_rows_s", "Writing", "rows/s", Better.HIGHER),
            Metric("ottla_batch_ms", "A micro-batch", "ms", Better.LOWER),
            Metric("connector_read_rows_s", "Seven columns, Spark's connector", "rows/s", Better.HIGHER),
            Metric("connector_write_rows_s", "Writing, Spark's connector", "rows/s", Better.HIGHER),
            Metric("connector_batch_ms", "A micro-batch, Spark's connector", "ms", Better.LOWER),
        ),
        _spark,
        peers=("ottla",),
        warms=False,
        runs_max=1,
    ),
)
