"""The cells of columns: Arrow tables into topics and out of them, by Ottla's client and by confluent-kafka's."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from bench.cell import Better, Cell, Metric, Settings, drop, fresh_topic
from bench.peers import Peer

RECORD = 100
PARTITIONS = 4
TABLE_ROWS = 50_000


def _rate(rows: int, work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return rows / (time.monotonic() - begun)


def _columns(peer: Peer, settings: Settings) -> dict[str, float]:
    import pyarrow as pa

    from ottla import TopicPartition, blocking

    rows = settings.history
    payload = random.Random(1).randbytes(RECORD)
    table = pa.table({"key": [b"%d" % row for row in range(TABLE_ROWS)], "value": [payload] * TABLE_ROWS})
    topic = fresh_topic(peer, PARTITIONS)

    def send() -> None:
        with blocking.Producer(peer.bootstrap_servers) as producer:
            sent = [producer.send_arrow(topic, table, key="key") for _ in range(rows // TABLE_ROWS)]
            assert sum(each.result() for each in sent) == rows

    def take(columns: list[str] | None) -> None:
        config = {"auto.offset.reset": "earliest", "max.partition.fetch.bytes": 8 << 20}
        with blocking.Consumer(topic, bootstrap_servers=peer.bootstrap_servers, config=config) as consumer:
            ends = consumer.end_offsets([TopicPartition(topic, number) for number in range(PARTITIONS)])
            batches: list[pa.RecordBatch] = []
            while sum(batch.num_rows for batch in batches) < sum(ends.values()):
                for some in consumer.getmany_arrow(timeout_ms=1000, columns=columns).values():
                    batches += some
            assert pa.Table.from_batches(batches).num_rows == rows

    found = {"send_arrow_rows_s": _rate(rows, send)}
    found["take_arrow_rows_s"] = _rate(rows, lambda: take(None))
    found["take_two_rows_s"] = _rate(rows, lambda: take(["key", "value"]))
    found["confluent_rows_s"] = _rate(rows, lambda: _with_confluent(peer, topic, rows))
    found["to_confluent"] = found["take_arrow_rows_s"] / found["confluent_rows_s"]
    drop(peer, topic)
    return found


def _with_confluent(peer: Peer, topic: str, rows: int) -> None:
    """The same seven columns, by the fastest that its Python interface offers."""
    import pyarrow as pa
    from confluent_kafka import Consumer

    settings = {"bootstrap.servers": peer.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    consumer.subscribe([topic])
    batches = []
    left = rows
    while left:
        messages = consumer.consume(10_000, 1.0)
        times = [message.timestamp() for message in messages]
        batches.append(
            pa.RecordBatch.from_pydict(
                {
                    "key": [message.key() for message in messages],
                    "value": [message.value() for message in messages],
                    "topic": [message.topic() for message in messages],
                    "partition": [message.partition() for message in messages],
                    "offset": [message.offset() for message in messages],
                    "timestamp": [when for _, when in times],
                    "timestampType": [kind for kind, _ in times],
                }
            )
        )
        left -= len(messages)
    consumer.close()
    assert pa.Table.from_batches([batch for batch in batches if batch.num_rows]).num_rows == rows


COLUMN_CELLS = (
    Cell(
        "columns",
        f"One process, Arrow tables of {TABLE_ROWS:,} rows with a key and {RECORD} B of value into a topic of "
        f"{PARTITIONS} partitions, then all of it into one Arrow table: seven columns, key and value only, and seven "
        "columns from confluent-kafka's messages.",
        (
            Metric("to_confluent", "Seven columns, against confluent-kafka", "times", Better.HIGHER),
            Metric("send_arrow_rows_s", "Tables into a topic", "rows/s", Better.HIGHER),
            Metric("take_arrow_rows_s", "Seven columns out of it", "rows/s", Better.HIGHER),
            Metric("take_two_rows_s", "Two columns out of it", "rows/s", Better.HIGHER),
            Metric("confluent_rows_s", "Seven columns through confluent-kafka", "rows/s", Better.HIGHER),
        ),
        _columns,
        peers=("ottla", "kafka"),
    ),
)
