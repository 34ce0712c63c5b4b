"""Load with Arrow tables into topics and out of them: Ottla's client, and the fastest way with confluent-kafka.

Each runs in its own process, which imports only what it needs and has moved a few rows before. The measured time begins
with a new client, and ends when all rows are acknowledged, or are in one Arrow table.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from bench.connection import Broken
from bench.workers import Start, Tally, Worker

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_ROWS = 50_000
PARTITIONS = 4
CONSUME_AT_ONCE = 10_000
SILENCE_S = 10.0


class Job(NamedTuple):
    bootstrap_servers: str
    topic: str
    scratch: str
    """Another topic, to get warm on."""
    record_size: int
    rows: int


Work: TypeAlias = "Callable[[pa.Table, str, int], int]"
"""Given a table to send again and again, a topic and a number of rows, returns how many rows it moved."""


def _worker(job: Job, work: Work, *, warm_topic: str, warm_rows: int) -> Worker:

    def timed(start: Start) -> Tally:
        import pyarrow as pa

        gc.enable()  # a client is measured here, not what is served to it
        value = random.Random(1).randbytes(job.record_size)
        keys = [b"%d" % row for row in range(TABLE_ROWS)]
        table = pa.table({"key": keys, "value": [value] * TABLE_ROWS})
        work(table, warm_topic, warm_rows)
        start()
        begin = time.monotonic()
        rows = work(table, job.topic, job.rows)
        if rows != job.rows:
            raise Broken(f"{rows} rows of {job.rows}")
        return Tally(begin=begin, end=time.monotonic(), requests=rows, records=rows)

    return timed


def send(job: Job) -> Worker:
    def work(table: pa.Table, topic: str, rows: int) -> int:
        from ottla import blocking

        with blocking.Producer(job.bootstrap_servers) as producer:
            sent = [producer.send_arrow(topic, table, key="key") for _ in range(rows // TABLE_ROWS)]
            return sum(each.result() for each in sent)

    return _worker(job, work, warm_topic=job.scratch, warm_rows=TABLE_ROWS)


def take(job: Job, columns: list[str] | None = None) -> Worker:
    """Read all seven columns, or some."""

    def work(_: pa.Table, topic: str, rows: int) -> int:
        import pyarrow as pa

        from ottla import blocking

        config = {"auto.offset.reset": "earliest", "max.partition.fetch.bytes": 8 << 20}
        with blocking.Consumer(topic, bootstrap_servers=job.bootstrap_servers, config=config) as consumer:
            batches: list[pa.RecordBatch] = []
            taken = 0
            while taken < rows:
                for some in consumer.getmany_arrow(timeout_ms=1000, columns=columns).values():
                    batches += some
                    taken += sum(batch.num_rows for batch in some)
            return int(pa.Table.from_batches(batches).num_rows)

    return _worker(job, work, warm_topic=job.topic, warm_rows=1)


def confluent_send(job: Job) -> Worker:
    def work(table: pa.Table, topic: str, rows: int) -> int:
        from confluent_kafka import Producer

        delivered = 0

        def count(error: object, _: object) -> None:
            nonlocal delivered
            delivered += error is None

        producer = Producer({"bootstrap.servers": job.bootstrap_servers, "enable.idempotence": True})
        for _ in range(rows // TABLE_ROWS):
            keys, values = table.column("key").to_pylist(), table.column("value").to_pylist()
            for key, value in zip(keys, values, strict=True):
                while True:
                    try:
                        producer.produce(topic, value, key, on_delivery=count)
                        break
                    except BufferError:
                        producer.poll(0.01)
            producer.poll(0)
        producer.flush(SILENCE_S)
        return delivered

    return _worker(job, work, warm_topic=job.scratch, warm_rows=TABLE_ROWS)


def confluent_take(job: Job) -> Worker:
    def work(_: pa.Table, topic: str, rows: int) -> int:
        import pyarrow as pa
        from confluent_kafka import Consumer, TopicPartition

        config = {"bootstrap.servers": job.bootstrap_servers, "group.id": topic, "enable.auto.commit": False}
        consumer = Consumer(config)
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        batches = []
        left = rows
        while left > 0:
            messages = consumer.consume(CONSUME_AT_ONCE, 1.0)
            times = [message.timestamp() for message in messages]
            columns = {
                "key": [message.key() for message in messages],
                "value": [message.value() for message in messages],
                "topic": [message.topic() for message in messages],
                "partition": [message.partition() for message in messages],
                "offset": [message.offset() for message in messages],
                "timestamp": [when for _, when in times],
                "timestampType": [kind for kind, _ in times],
            }
            if messages:
                batches.append(pa.RecordBatch.from_pydict(columns))
            left -= len(messages)
        consumer.close()
        return int(pa.Table.from_batches(batches).num_rows)

    return _worker(job, work, warm_topic=job.topic, warm_rows=1)
