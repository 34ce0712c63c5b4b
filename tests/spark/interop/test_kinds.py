"""The common kinds of streaming programs, each run twice on one broker: with Spark's own connector and with ours.

What comes out is the same, row by row and, where batches are told, batch by batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

from ottla import blocking
from ottla.client.admin import NewTopic
from ottla.spark import BatchSink
from tests.spark.conftest import FOREVER, Create
from tests.spark.test_sink import committed

pytestmark = pytest.mark.timeout(600)

FORMS = ("kafka", "ottla")
DAY = "2026-11-17T"
EVENTS = [
    ("1", "ann", "10:01:00"), ("2", "bob", "10:02:00"), ("2", "bob", "10:02:00"), ("3", "ann", "10:04:30"),
    ("4", "ann", "10:11:00"), ("5", "bob", "10:12:00"), ("6", "eve", "10:28:00"), ("7", "ann", "10:29:00"),
    ("8", "bob", "10:03:00"), ("9", "eve", "10:55:00"), ("10", "eve", "11:40:00"), ("11", "zed", "13:00:00"),
]  # fmt: skip
"""Id, user and time; 8 is late, and the last ones let everything before them come to an end."""
PAYMENTS = [("1", "10:03:00"), ("3", "10:30:00"), ("4", "10:12:00"), ("6", "10:29:00"), ("99", "13:00:00")]
ROWS_PER_BATCH = 5
Run = Callable[[str], Any]


@pytest.fixture
def topics(broker, create: Create) -> tuple[str, str]:
    events, payments = create(1), create(1)
    with blocking.Producer(broker.bootstrap) as producer:
        for number, user, at in EVENTS:
            value = json.dumps({"id": number, "user": user, "at": f"{DAY}{at}Z"}).encode()
            producer.send(events, key=user.encode(), value=value, headers=[("user", user.encode()), ("user", b"")])
        for number, at in PAYMENTS:
            producer.send(payments, value=json.dumps({"id": number, "paid": f"{DAY}{at}Z"}).encode())
        producer.flush()
    return events, payments


class Programs:
    """What the programs have in common."""

    def __init__(self, spark: Any, bootstrap: str, storage: Path) -> None:
        self.spark = spark
        self.at = {"kafka.bootstrap.servers": bootstrap}
        self._storage = storage
        self._count = 0

    def read(self, form: str, topic: str, columns: str, **options: Any) -> Any:
        given = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": ROWS_PER_BATCH, **options}
        raw = self.spark.readStream.format(form).options(**self.at, **given).load()
        return raw.selectExpr(f"from_json(cast(value as string), '{columns}') as v", "*").select("v.*", "timestamp")

    def events(self, form: str, topic: str, delay: str | None = "10 minutes") -> Any:
        frame = self.read(form, topic, "id string, user string, at timestamp")
        return frame.withWatermark("at", delay) if delay else frame

    def collect(self, frame: Any, mode: str = "append", checkpoint: str | None = None) -> list[Any]:
        """All that a query gives until it has read what there is, with the batch that it came in."""
        self._count += 1
        found: list[Any] = []
        where = self._storage / (checkpoint or f"{self._count}")
        each = lambda rows, number: found.extend((number, *map(str, row)) for row in rows.collect())  # noqa: E731
        writer = frame.writeStream.outputMode(mode).foreachBatch(each).option("checkpointLocation", str(where))
        writer.trigger(availableNow=True).start().awaitTermination()
        return sorted(found)


@pytest.fixture
def programs(spark, broker, tmp_path) -> Programs:
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    return Programs(spark, broker.bootstrap, tmp_path)


def same(run: Run) -> Any:
    """What both connectors give; something has to come of it."""
    given = {form: run(form) for form in FORMS}
    assert given["kafka"]
    assert given["ottla"] == given["kafka"]
    return given["ottla"]


@pytest.mark.parametrize("mode", ["update", "append", "complete"])
def test_windows(mode: str, programs, topics):
    from pyspark.sql import functions as f

    def run(form: str) -> Any:
        counted = programs.events(form, topics[0]).groupBy(f.window("at", "10 minutes", "5 minutes"), "user").count()
        return programs.collect(counted, mode)

    same(run)


def test_words_are_counted_by_sql(programs, topics):
    def run(form: str) -> Any:
        programs.events(form, topics[0], None).createOrReplaceTempView("events")
        return programs.collect(programs.spark.sql("select user, count(*) n from events group by user"), "update")

    assert max(same(run))[0] == (len(EVENTS) - 1) // ROWS_PER_BATCH  # as many batches as there are


@pytest.mark.parametrize("kind", ["inner", "left_outer"])
def test_stream_stream_joins(kind: str, programs, topics):
    from pyspark.sql import functions as f

    def run(form: str) -> Any:
        left = programs.events(form, topics[0]).alias("e")
        right = programs.read(form, topics[1], "id string, paid timestamp").withWatermark("paid", "10 minutes")
        within = f.expr("e.id = p.id and p.paid >= e.at and p.paid <= e.at + interval 10 minutes")
        joined = left.join(right.alias("p"), within, kind).selectExpr("e.id", "e.user", "p.paid")
        return [row[1:] for row in programs.collect(joined)]

    same(run)


def test_stream_static_joins(programs, topics):
    def run(form: str) -> Any:
        names = programs.spark.createDataFrame([("ann", "Ann"), ("bob", "Bob")], "user string, name string")
        return programs.collect(programs.events(form, topics[0]).join(names, "user", "left").select("id", "name"))

    same(run)


def test_sessions(programs, topics):
    from pyspark.sql import functions as f

    same(
        lambda form: programs.collect(
            programs.events(form, topics[0]).groupBy(f.session_window("at", "5 minutes"), "user").count()
        )
    )


@pytest.mark.parametrize("within", [True, False])
def test_deduplication(within: bool, programs, topics):
    def run(form: str) -> Any:
        events = programs.events(form, topics[0])
        once = events.dropDuplicatesWithinWatermark(["id"]) if within else events.dropDuplicates(["id", "at"])
        return programs.collect(once.select("id", "user"))

    assert len([row for row in same(run) if row[1] == "2"]) == 1


def test_two_sinks_for_each_batch(programs, topics, broker, create: Create, tmp_path):
    def run(form: str) -> Any:
        one, other = create(1), create(1)
        targets = {topic: {**programs.at, "topic": topic} for topic in (one, other)}
        ours = {topic: BatchSink("ottla", {**given, "txnAppId": topic}) for topic, given in targets.items()}

        def write(rows: Any, topic: str, number: int) -> None:
            if form == "kafka":
                rows.write.format("kafka").options(**targets[topic]).save()
            else:
                ours[topic](rows, number)

        def both(rows: Any, number: int) -> None:
            rows.persist()
            write(rows.selectExpr("user as key", "id as value"), one, number)
            write(rows.where("user = 'ann'").selectExpr("user as key", "id as value"), other, number)
            rows.unpersist()

        writer = programs.events(form, topics[0]).writeStream.foreachBatch(both)
        writer = writer.option("checkpointLocation", str(tmp_path / f"two-{form}")).trigger(availableNow=True)
        writer.start().awaitTermination()
        return [committed(broker.bootstrap, topic) for topic in (one, other)]

    assert [len(each) for each in same(run)] == [12, 4]


def test_apply_in_pandas_with_state(programs, topics):
    import pandas as pd  # type: ignore[import-untyped]
    from pyspark.sql.streaming.state import GroupStateTimeout

    def count(key: tuple[str], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        total = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
        state.update((total,))
        yield pd.DataFrame({"user": [key[0]], "total": [total]})

    def run(form: str) -> Any:
        grouped = programs.events(form, topics[0], None).groupBy("user")
        counted = grouped.applyInPandasWithState(
            count, "user string, total long", "total long", "update", GroupStateTimeout.NoTimeout
        )
        return programs.collect(counted, "update")

    same(run)


def test_transform_with_state(programs, topics):
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Count(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._total = handle.getValueState("total", "total long")

        def handleInputRows(self, key: Any, rows: Iterator[Row], timers: Any) -> Iterator[Row]:
            total = (self._total.get()[0] if self._total.exists() else 0) + len(list(rows))
            self._total.update((total,))
            yield Row(user=key[0], total=total)

        def close(self) -> None:
            pass

    def run(form: str) -> Any:
        grouped = programs.events(form, topics[0], None).groupBy("user")
        counted = grouped.transformWithState(Count(), "user string, total long", "Update", "none")
        return programs.collect(counted, "update")

    name = "spark.sql.streaming.stateStore.providerClass"
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    programs.spark.conf.set(name, provider)
    try:
        same(run)
    finally:
        programs.spark.conf.unset(name)


def test_backfill_by_time(programs, broker, create: Create):
    topic = create(1, **FOREVER)
    with blocking.Producer(broker.bootstrap) as producer:
        for number in range(10):
            producer.send(topic, value=str(number).encode(), timestamp_ms=1_000_000 + number)
        producer.flush()
    span = {"startingTimestamp": 1_000_002, "endingTimestamp": 1_000_007}
    given = {"startingOffsetsByTimestamp": json.dumps({topic: {"0": 1_000_004}})}

    def run(form: str) -> Any:
        read = lambda: programs.spark.read.format(form).options(**programs.at, subscribe=topic)  # noqa: E731
        return [
            sorted(int(bytes(row.value)) for row in read().options(**options).load().collect())
            for options in (span, given)
        ]

    assert same(run) == [[2, 3, 4, 5, 6], [4, 5, 6, 7, 8, 9]]


def test_patterns_find_new_topics(programs, broker, fresh_name):
    def run(form: str) -> Any:
        prefix = fresh_name()
        with blocking.Admin(broker.bootstrap) as admin:
            admin.create_topics([NewTopic(f"{prefix}.a", 1)])
        found: list[Any] = []
        for name, values in (("a", "12"), ("b", "345")):
            with blocking.Admin(broker.bootstrap) as admin:
                if name == "b":
                    admin.create_topics([NewTopic(f"{prefix}.b", 2)])
            with blocking.Producer(broker.bootstrap) as producer:
                for value in values:
                    producer.send(f"{prefix}.{name}", value=value.encode(), partition=0)
                producer.flush()
            raw = programs.spark.readStream.format(form).options(**programs.at, startingOffsets="earliest")
            frame = raw.option("subscribePattern", re.escape(prefix) + r"\..*").load()
            reported = frame.selectExpr("substr(topic, -1) as t", "partition", "offset", "cast(value as string) as v")
            found.append(programs.collect(reported, checkpoint=f"pattern-{form}"))
        return found

    assert [len(each) for each in same(run)] == [2, 3]


def test_headers_are_read_and_written(programs, topics, broker, create: Create):
    def run(form: str) -> Any:
        sink = create(1)
        raw = programs.spark.read.format(form).options(**programs.at, subscribe=topics[0], includeHeaders="true").load()
        rows = raw.select("key", "value", "headers")
        rows.write.format(form).mode("append").options(**programs.at, topic=sink, includeHeaders="true").save()
        return [sorted(map(str, rows.collect())), committed(broker.bootstrap, sink), rows.schema.simpleString()]

    assert same(run)[1][0][3] == (("user", b"ann"), ("user", b""))


def test_assigned_partitions_from_given_offsets(programs, topics):
    def run(form: str) -> Any:
        options = {"assign": json.dumps({topics[0]: [0]}), "startingOffsets": json.dumps({topics[0]: {"0": 7}})}
        raw = programs.spark.readStream.format(form).options(**programs.at, **options, minPartitions="3").load()
        return programs.collect(raw.selectExpr("offset", "timestampType", "cast(key as string) as k"))

    assert [row[1] for row in same(run)] == ["10", "11", "7", "8", "9"]
