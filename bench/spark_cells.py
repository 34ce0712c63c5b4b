"""Cell of Spark: topics into Spark and Spark into topics, with Ottla's data source and Spark's own connector."""

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
    """Empty if PySpark is not installed."""
    if find_spec("pyspark") is None:
        return {}
    import pyarrow as pa

    from ottla import blocking

    rows = settings.history * ROWS_PER_HISTORY
    topic, sink = fresh_topic(peer, PARTITIONS), fresh_topic(peer, PARTITIONS)
    table = pa.table({"key": [b"%d" % row for row in range(50_000)], "value": [bytes(100)] * 50_000})
    with blocking.Producer(peer.bootstrap) as producer:
        for _ in range(rows // 50_000):
            producer.send_arrow(topic, table, key="key")
    found: dict[str, float] = {}
    for kind in ("plain", "pipeline"):  # a session each, and a process for it
        command = [sys.executable, "-m", "bench.spark_load", kind, peer.bootstrap, topic, sink, str(rows)]
        done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=True)
        found |= json.loads(done.stdout.splitlines()[-1])
    drop(peer, topic, sink)
    return found


def _streams(prefix: str, where: str) -> tuple[Metric, ...]:
    """The measurements of each of the two sessions."""
    names = {
        "ottla_batch": "A micro-batch",
        "connector_batch": "A micro-batch, Spark's connector",
        "ottla_trickle": "A trickle, record to sink, at least once",
        "connector_trickle": "A trickle, record to sink, Spark's connector",
        "once_trickle": "A trickle, record to sink, exactly once",
    }
    return tuple(
        Metric(f"{prefix}{key}{part}_ms", f"{label}, {figure}, {where}", "ms", Better.LOWER)
        for key, label in names.items()
        for part, figure in (("", "median"), ("_p95", "p95"))
    )


SPARK_CELLS = (
    Cell(
        "spark",
        f"PySpark on two cores beside the broker, five million records of 100 B on {PARTITIONS} partitions: from a "
        "topic into nothing, seven columns and two; from Spark into a topic, at least once, of 100 B and a tenth as "
        "many of 1 KB; micro-batches of 500 rows into nothing; and from one topic into another, a record every "
        "100 ms, how long after it was sent each is in the sink. Spark's own connector does the same in the same "
        "session, in turns, where its jars can be fetched. Streams are measured in a session as PySpark comes, and in "
        "one as `ottla pipeline` makes it.",
        (
            Metric("read_ratio", "Seven columns, against Spark's connector", "times", Better.HIGHER, limit=1.67),
            Metric("read_two_ratio", "Key and value, against its seven columns", "times", Better.HIGHER),
            Metric("write_ratio", "Writing 100 B, against Spark's connector", "times", Better.HIGHER, limit=1.43),
            Metric("write_1k_ratio", "Writing 1 KB, against Spark's connector", "times", Better.HIGHER, limit=1.0),
            Metric("batch_ratio", "A micro-batch, against Spark's connector", "times", Better.LOWER, limit=1.2),
            Metric("ottla_read_rows_s", "Seven columns", "rows/s", Better.HIGHER),
            Metric("ottla_read_two_rows_s", "Key and value", "rows/s", Better.HIGHER),
            Metric("ottla_write_rows_s", "Writing 100 B", "rows/s", Better.HIGHER),
            Metric("ottla_write_1k_rows_s", "Writing 1 KB", "rows/s", Better.HIGHER),
            Metric("connector_read_rows_s", "Seven columns, Spark's connector", "rows/s", Better.HIGHER),
            Metric("connector_write_rows_s", "Writing 100 B, Spark's connector", "rows/s", Better.HIGHER),
            Metric("connector_write_1k_rows_s", "Writing 1 KB, Spark's connector", "rows/s", Better.HIGHER),
            *_streams("", "as PySpark comes"),
            Metric(
                "pipeline_batch_ratio",
                "A micro-batch, against Spark's connector, a pipeline's session",
                "times",
                Better.LOWER,
            ),
            *_streams("pipeline_", "a pipeline's session"),
        ),
        _spark,
        peers=("ottla",),
        warms=False,
        runs_max=1,
    ),
)
