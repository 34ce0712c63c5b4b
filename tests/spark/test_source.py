"""Topics as Spark reads them, in batches and streams, from a real broker."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

import pyarrow as pa

from ottla import blocking
from ottla.client.values import TopicPartition
from ottla.spark.options import BadOption, read_options
from ottla.spark.source import OttlaStreamReader, RangesPartition
from tests.spark.conftest import FOREVER, Create

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def source(spark, broker):
    def source(stream: bool = False, **options: Any):
        reader = spark.readStream if stream else spark.read
        named = {name.replace("_", "."): str(value) for name, value in options.items()}
        return reader.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap).options(**named).load()

    return source


@pytest.fixture
def fill(broker):
    """Write rows with these numbers as values, and as keys; a number's partition is its remainder."""

    def fill(topic: str, numbers: range, partitions: int = 2, timestamps: int | None = None) -> None:
        table = {
            "key": [f"k{number}" for number in numbers],
            "value": [str(number) for number in numbers],
            "to": [number % partitions for number in numbers],
            "at": pa.array([(timestamps or 0) + number for number in numbers], pa.int64()),
        }
        with blocking.Producer(broker.bootstrap) as producer:
            names = {"timestamp": "at"} if timestamps is not None else {}
            producer.send_arrow(topic, pa.table(table), key="key", partition="to", **names).result()

    return fill


def values(frame) -> list[int]:
    return sorted(int(row[0]) for row in frame.selectExpr("cast(value as string)").collect())


def run(frame, checkpoint: Path, **trigger: Any):
    """A query that ends when it has read what there is; its values, by batch."""
    seen: dict[int, list[int]] = {}
    query = (
        frame.writeStream.foreachBatch(lambda batch, number: seen.__setitem__(number, values(batch)))
        .option("checkpointLocation", str(checkpoint))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )
    query.awaitTermination()
    return seen, query


def test_a_batch_has_the_columns_of_the_connector(source, fill, create: Create, spark):
    topic = create(2, **FOREVER)
    fill(topic, range(100), timestamps=1_700_000_000_000)
    frame = source(subscribe=topic)
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    assert values(frame) == list(range(100))
    row = frame.where("cast(value as string) = '7'").selectExpr("*", "unix_millis(timestamp) as ms").first()
    assert (bytes(row.key), row.topic, row.partition, row.offset, row.timestampType, row.ms) == (
        b"k7", topic, 1, 3, 0, 1_700_000_000_007,
    )  # fmt: skip
    frame.createOrReplaceTempView("numbers")
    assert spark.sql("select count(*), max(offset) from numbers where partition = 0").first() == (50, 49)
    assert source(subscribe=topic, columns="offset,value").columns == ["offset", "value"]


def test_a_batch_reads_between_the_offsets_or_times_that_are_named(source, fill, create: Create):
    topic = create(2, **FOREVER)
    fill(topic, range(20), timestamps=1000)
    between = {"startingOffsets": json.dumps({topic: {"0": 2, "1": -2}}),
               "endingOffsets": json.dumps({topic: {"0": 5, "1": 3}})}  # fmt: skip
    assert values(source(subscribe=topic, **between)) == [1, 3, 4, 5, 6, 8]
    assert values(source(subscribe=topic, startingTimestamp=1004, endingTimestamp=1008)) == [4, 5, 6, 7]
    assert values(source(assign=json.dumps({topic: [1]}), minPartitions=4)) == list(range(1, 20, 2))
    assert source(assign=json.dumps({topic: [1]}), minPartitions=4).rdd.getNumPartitions() == 4
    assert values(source(subscribePattern=topic[:-2] + "..")) == list(range(20))
    with pytest.raises(Exception, match="nothing as young as 9999"):
        source(subscribe=topic, startingTimestamp=9999).count()
    with pytest.raises(Exception, match="1 is missing"):
        source(subscribe=topic, startingOffsets=json.dumps({topic: {"0": 2}})).count()


def test_headers_are_read_when_asked_for(source, broker, create: Create):
    topic = create(1)
    with blocking.Producer(broker.bootstrap) as producer:
        producer.send(topic, b"with", headers=[("a", b"1"), ("a", None)])
        producer.send(topic, b"without")
    reported = [row.headers for row in source(subscribe=topic, includeHeaders="true").orderBy("offset").collect()]
    assert reported == [[("a", bytearray(b"1")), ("a", None)], None]


def test_uncommitted_records_are_not_read(source, broker, create: Create):
    topic = create(1)
    with blocking.Producer(broker.bootstrap, transactional_id=topic) as producer:
        with producer.transaction():
            producer.send(topic, b"1")
        producer.begin_transaction()
        producer.send(topic, b"2").result()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"3")
    assert values(source(subscribe=topic, kafka_isolation_level="read_committed")) == [1, 3]
    assert values(source(subscribe=topic)) == [1, 2, 3]


def test_an_available_now_stream_reads_in_portions_and_continues_at_its_checkpoint(
    source, fill, broker, create: Create, tmp_path
):
    topic = create(2)
    fill(topic, range(100))
    frame = source(True, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=40, groupId=f"{topic}-seen")
    seen, query = run(frame, tmp_path / "cp")
    assert [len(seen[number]) for number in sorted(seen)] == [40, 40, 20]
    assert sorted(chain(*seen.values())) == list(range(100))
    assert json.loads(query.lastProgress["sources"][0]["endOffset"]) == {topic: {"0": 50, "1": 50}}
    with blocking.Admin(broker.bootstrap) as admin:
        assert {lag.lag for lag in admin.group_lag(f"{topic}-seen").values()} == {0}
        admin.create_partitions(topic, 3)
    fill(topic, range(100, 130), partitions=3)
    seen, _ = run(frame, tmp_path / "cp")
    assert sorted(chain(*seen.values())) == list(range(100, 130))


@pytest.mark.parametrize("tasks", [{}, {"minPartitions": "4"}, {"maxRecordsPerPartition": "3"}], ids=str)
def test_a_new_partition_whose_log_begins_late_is_read_in_portions(tasks, fill, broker, create: Create):
    topic = create(1)
    fill(topic, range(10), partitions=1)
    late = TopicPartition(topic, 1)
    with blocking.Admin(broker.bootstrap) as admin:
        admin.create_partitions(topic, 2)
        fill(topic, range(1, 201, 2))
        admin.delete_records({late: 70})
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "maxOffsetsPerTrigger": "10", **tasks}
    reader = OttlaStreamReader(read_options(given, streaming=True))
    at: dict[str, Any] = {topic: {"0": 10}}
    batches: list[list[int]] = []
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        rows = chain(*(reader.read(part) for part in reader.partitions(at, end)))
        batches.append(sorted(int(value) for batch in rows for value in batch.column("value").to_pylist()))
        at = end
    assert list(chain(*batches)) == list(range(141, 201, 2))
    assert [len(batch) for batch in batches] == [10, 10, 10]


def test_partitions_added_while_a_stream_runs_are_read(fill, broker, create: Create):
    """The planner and the workers have known the topic with fewer."""
    topic = create(2)
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    reader = OttlaStreamReader(read_options(given, streaming=True))
    at: dict[str, Any] = {topic: {"0": 0, "1": 0}}
    seen: list[int] = []
    for partitions in (2, 4, 8):
        with blocking.Admin(broker.bootstrap) as admin:
            if partitions > 2:
                admin.create_partitions(topic, partitions)
        fill(topic, range(partitions * 10, partitions * 20), partitions=partitions)
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        for batch in chain(*(reader.read(part) for part in reader.partitions(at, end))):
            seen += [int(value) for value in batch.column("value").to_pylist()]
        at = end
    assert len(at[topic]) == 8
    assert sorted(seen) == [*range(20, 40), *range(40, 80), *range(80, 160)]


def test_an_assigned_partition_that_is_not_there_is_named_at_once(broker, create: Create):
    topic = create(2)
    given = {"kafka.bootstrap.servers": broker.bootstrap, "assign": json.dumps({topic: [1, 2]})}
    with pytest.raises(BadOption, match=f"{topic}-2, which is not there"):
        OttlaStreamReader(read_options(given, streaming=True)).initialOffset()


def test_a_stream_waits_for_enough_but_not_for_ever(source, fill, create: Create, tmp_path):
    topic = create(2)
    fill(topic, range(10))
    waiting = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 1000}
    seen: list[int] = []
    query = (
        source(True, subscribe=topic, maxTriggerDelay="2s", **waiting)
        .writeStream.foreachBatch(lambda batch, _: seen.extend(values(batch)))
        .option("checkpointLocation", str(tmp_path / "cp"))
        .start()
    )
    try:
        query.processAllAvailable()
        for _ in range(600):
            if seen:
                break
            query.awaitTermination(0.1)
        assert sorted(seen) == list(range(10))
    finally:
        query.stop()
    # availableNow does not wait.
    seen_now, _ = run(source(True, subscribe=topic, **waiting), tmp_path / "other")
    assert sum(map(len, seen_now.values())) == 10


def test_lost_records_fail_the_query_unless_fail_on_data_loss_is_off(source, fill, broker, create: Create, tmp_path):
    topic = create(1)
    fill(topic, range(10), partitions=1)
    frame = source(True, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=5)
    first, _ = run(frame, tmp_path / "cp")
    assert sum(map(len, first.values())) == 10
    fill(topic, range(10, 30), partitions=1)
    with blocking.Admin(broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 20})
    with pytest.raises(Exception, match="failOnDataLoss"):
        run(source(True, subscribe=topic), tmp_path / "cp")
    seen, _ = run(source(True, subscribe=topic, failOnDataLoss="false"), tmp_path / "cp")
    assert sorted(chain(*seen.values())) == list(range(20, 30))


def test_mistakes_are_reported_before_anything_is_read(source, create: Create):
    topic = create(1)
    for options, said in (
        ({"subscrib": topic}, "did you mean subscribe"),
        ({"subscribe": topic, "columns": "colour"}, "columns are some of"),
        ({"subscribe": topic, "kafka_fetch_max_byte": "1"}, "did you mean 'kafka.fetch.max.bytes'?"),
        ({"subscribe": topic + "-missing"}, "there is no such topic"),
    ):
        with pytest.raises(Exception, match=r".") as refused:
            source(**options).count()
        assert said in str(refused.value)


def reader_at_the_end(broker, topic: str, **options: str) -> OttlaStreamReader:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, **options}
    return OttlaStreamReader(read_options(given, streaming=True))


def test_a_stream_that_starts_at_latest_keeps_its_first_offsets(fill, broker, create: Create):
    """Spark asks where a query begins twice for its first batch, and records may come in between."""
    topic = create(2)
    fill(topic, range(10))
    reader = reader_at_the_end(broker, topic)
    start = reader.initialOffset()
    fill(topic, range(10, 20))
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    fill(topic, range(20, 30))
    assert reader.initialOffset() == start == end == {topic: {"0": 5, "1": 5}}
    assert reader.partitions(start, end) == []
    later = reader.latestOffset(end, reader.getDefaultReadLimit())
    assert later == {topic: {"0": 15, "1": 15}}
    parts = [part for part in reader.partitions(end, later) if isinstance(part, RangesPartition)]
    ranges = [each for part in parts for each in part.ranges]
    assert [(each.start, each.end) for each in ranges] == [(5, 15)] * 2


def test_a_first_batch_that_began_at_the_end_is_run_again_as_it_was(fill, broker, create: Create):
    """The checkpoint of a query that was killed in its first batch has where that batch ends, and nothing else."""
    topic = create(2)
    fill(topic, range(10))
    before = reader_at_the_end(broker, topic)
    end = before.latestOffset(before.initialOffset(), before.getDefaultReadLimit())
    fill(topic, range(10, 20))
    again = reader_at_the_end(broker, topic)
    assert again.partitions(again.initialOffset(), end) == []
    assert again.latestOffset(end, again.getDefaultReadLimit()) == {topic: {"0": 10, "1": 10}}


def test_a_first_batch_reads_partitions_whose_beginning_is_known_at_once(fill, broker, create: Create):
    topic = create(2)
    fill(topic, range(10))
    starting = json.dumps({topic: {"0": 2, "1": -1}})
    reader = reader_at_the_end(broker, topic, startingOffsets=starting)
    start = reader.initialOffset()
    fill(topic, range(10, 20))
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == {topic: {"0": 10, "1": 5}}


def test_available_now_never_ends_before_the_offset_of_a_stream_that_starts_at_latest(fill, broker, create: Create):
    topic = create(2)
    fill(topic, range(10))
    reader = reader_at_the_end(broker, topic)
    reader.prepareForTriggerAvailableNow()
    fill(topic, range(10, 20))
    start = reader.initialOffset()
    for _ in range(2):
        assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
