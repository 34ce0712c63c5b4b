"""DataFrames written to topics: which columns go where, and that nothing is written twice or not at all."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

import pyarrow as pa

from ottla import blocking
from ottla.client.values import TopicPartition
from ottla.spark import exactly_once, fencing
from ottla.spark.exactly_once import NotRepeatable, WriteIdentity
from ottla.spark.options import WriteOptions
from ottla.spark.sink import OttlaWriter, WritePlan
from tests.spark.conftest import Create

pytestmark = pytest.mark.timeout(300)


def committed(bootstrap: str, topic: str) -> list[tuple[int, bytes | None, bytes | None, tuple]]:
    """Partition, key, value and headers of every record that counts."""
    config = {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    with blocking.Consumer(topic, bootstrap_servers=bootstrap, config=config) as consumer:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for(topic)]
        ends = consumer.end_offsets(partitions)
        found = []
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            for records in consumer.getmany(timeout_ms=1000, max_records=10_000).values():
                found += [(each.partition, each.key, each.value, tuple(each.headers)) for each in records]
    return found


def numbers(bootstrap: str, topic: str) -> Counter:
    return Counter(int(value or b"-1") for _, _, value, _ in committed(bootstrap, topic))


def once(count: int) -> Counter:
    return Counter(range(count))


@pytest.fixture
def write(broker):
    def write(frame, topic: str | None = None, **options: Any) -> None:
        given = {"topic": topic} | options if topic else options
        writer = frame.write.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap)
        writer.options(**given).mode("append").save()

    return write


@pytest.fixture
def stream(spark, broker):
    """A query from one topic to another that ends when it has read everything there is."""

    def stream(source: str, sink: str, checkpoint: Path, *, offsets_max: int = 1000, **options: Any):
        at = {"kafka.bootstrap.servers": broker.bootstrap}
        frame = spark.readStream.format("ottla").options(
            **at, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=offsets_max
        )
        writer = frame.load().select("key", "value").writeStream.format("ottla").options(**at, topic=sink, **options)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    return stream


def fill(bootstrap: str, topic: str, count: int, first: int = 0) -> None:
    keys = [str(number) for number in range(first, first + count)]
    with blocking.Producer(bootstrap) as producer:
        producer.send_arrow(topic, pa.table({"key": keys, "value": keys}), key="key").result()


def test_columns_go_where_their_names_say(spark, write, broker, create: Create):
    one, other = create(2), create(2)
    rows = [
        (one, "k", "text", 1, [("h", bytearray(b"1"))]),
        (other, None, None, 0, None),
        (one, None, "x", None, []),
    ]
    headers = "array<struct<key:string,value:binary>>"
    schema = f"topic string, key string, value string, partition int, headers {headers}"
    write(spark.createDataFrame(rows, schema).coalesce(1))
    found = committed(broker.bootstrap, one)
    assert (1, b"k", b"text", (("h", b"1"),)) in found
    assert {each[2] for each in found} == {b"text", b"x"}
    assert committed(broker.bootstrap, other) == [(0, None, None, ())]


def test_what_cannot_be_written_is_refused_by_name(spark, write, broker, create: Create):
    topic = create(1)
    text = spark.range(1).selectExpr("cast(id as string) value")
    for frame, options, said in (
        (spark.range(1), {"topic": topic}, "a column 'value'"),
        (spark.range(1).selectExpr("id as value"), {"topic": topic}, "column 'value' is bigint"),
        (text, {}, "the option topic, or a column"),
        (text, {"topic": topic, "txnAppId": "a"}, "txnVersion is missing"),
        (text, {"topic": topic, "guarantee": "exactly_once"}, "needs txnAppId and txnVersion"),
        (text, {"topic": topic, "kafka.acks": "5"}, "acks is 5"),
    ):
        with pytest.raises(Exception, match=r".") as refused:
            write(frame, **options)
        assert said in str(refused.value)
    with pytest.raises(Exception, match="appended to, not overwritten"):
        text.write.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap).option("topic", topic).mode(
            "overwrite"
        ).save()
    assert committed(broker.bootstrap, topic) == []


def test_a_write_with_an_identity_is_done_once(spark, write, broker, create: Create):
    topic = create(2)
    frame = spark.range(0, 1000, numPartitions=3).selectExpr("cast(id as string) key", "cast(id as string) value")
    for _ in range(2):
        write(frame, topic, txnAppId=topic, txnVersion=0)
    assert numbers(broker.bootstrap, topic) == once(1000)
    for otherwise in (frame.coalesce(1), frame.repartition(7)):
        with pytest.raises(Exception, match="shares its rows out otherwise"):
            write(otherwise, topic, txnAppId=topic, txnVersion=0)
    assert numbers(broker.bootstrap, topic) == once(1000)
    write(frame, topic, txnAppId=topic, txnVersion=1)
    assert numbers(broker.bootstrap, topic) == once(1000) + once(1000)


def shared_out(count: int, tasks: int) -> list[pa.RecordBatch]:
    """As Spark shares a range out."""
    bounds = [count * task // tasks for task in range(tasks + 1)]
    texts = [[str(number) for number in range(*each)] for each in pairwise(bounds)]
    return [pa.RecordBatch.from_pydict({"key": each, "value": each}) for each in texts]


@pytest.mark.parametrize("killed", ["before the decision", "after the decision", "between two commits"])
def test_a_driver_killed_during_its_commit_writes_no_row_twice_with_any_number_of_tasks(
    killed: str, spark, write, broker, create: Create
):
    topic = create(2)
    identity = WriteIdentity(topic, 0)
    plan = WritePlan(WriteOptions({"bootstrap.servers": broker.bootstrap}, topic), ("key", "value"))
    parts = [exactly_once.write(plan, identity, task, iter([rows])) for task, rows in enumerate(shared_out(900, 3))]
    if killed != "before the decision":
        exactly_once.decide(plan, identity, parts)
    if killed == "between two commits":
        assert parts[1].transaction is not None
        exactly_once.end(plan, [parts[1].transaction], committed=True)
    frame = spark.range(0, 900, numPartitions=3).selectExpr("cast(id as string) key", "cast(id as string) value")
    if killed != "before the decision":
        # Other tasks, other rows in as many tasks, and as many rows in as many tasks: none of it may write anything.
        others = (frame.repartition(2), frame.repartition(3), frame.selectExpr("key", "reverse(value) || '0' as value"))
        for otherwise in others:
            with pytest.raises(Exception, match="Run it as it was"):
                write(otherwise, topic, txnAppId=topic, txnVersion=0)
        written = numbers(broker.bootstrap, topic)
        assert written == (Counter(range(300, 600)) if killed == "between two commits" else Counter())
        write(frame, topic, txnAppId=topic, txnVersion=0)
    else:
        write(frame.repartition(2), topic, txnAppId=topic, txnVersion=0)  # nothing counted yet: any way will do
        exactly_once.abort(plan, parts)
    assert numbers(broker.bootstrap, topic) == once(900)


def written(plan: WritePlan, identity: WriteIdentity, count: int, tasks: int) -> list[exactly_once.TaskCommit]:
    """By all tasks, and not committed yet."""
    return [
        exactly_once.write(plan, identity, task, iter([rows])) for task, rows in enumerate(shared_out(count, tasks))
    ]


def test_a_query_named_like_a_task_of_another_query_does_not_disturb_it(broker, create: Create):
    topic = create(2)
    plan = WritePlan(WriteOptions({"bootstrap.servers": broker.bootstrap}, topic), ("key", "value"))
    for version in range(2):
        orders, named_alike = WriteIdentity(topic, version), WriteIdentity(f"{topic}-1", version)
        parts = written(plan, orders, 300, tasks=2)
        exactly_once.commit(plan, named_alike, written(plan, named_alike, 300, tasks=2))
        exactly_once.commit(plan, orders, parts)
    assert numbers(broker.bootstrap, topic) == once(300) + once(300) + once(300) + once(300)


def test_commit_decisions_of_an_earlier_version_count(broker, create: Create, monkeypatch):
    topic = create(2)
    plan = WritePlan(WriteOptions({"bootstrap.servers": broker.bootstrap}, topic), ("key", "value"))
    query = WriteIdentity(f"{topic}-1", 0)
    with monkeypatch.context() as earlier:
        earlier.setattr(exactly_once, "DECISIONS_PREFIX", fencing.PREFIX)
        exactly_once.decide(plan, query, written(plan, query, 300, tasks=3))  # and was killed
    with pytest.raises(NotRepeatable):
        exactly_once.commit(plan, query, written(plan, query, 300, tasks=2))
    exactly_once.commit(plan, query, written(plan, query, 300, tasks=3))
    assert numbers(broker.bootstrap, topic) == once(300)
    # Its decision stands where task 1 of another query leaves its marker, and is none.
    other = WriteIdentity(topic, 0)
    exactly_once.commit(plan, other, written(plan, other, 300, tasks=2))
    assert numbers(broker.bootstrap, topic) == once(300) + once(300)


def test_a_query_of_an_earlier_version_continues_with_its_next_batch(broker, create: Create, monkeypatch):
    topic = create(2)
    plan = WritePlan(WriteOptions({"bootstrap.servers": broker.bootstrap}, topic), ("key", "value"))
    with monkeypatch.context() as earlier:
        earlier.setattr(exactly_once, "DECISIONS_PREFIX", fencing.PREFIX)
        exactly_once.commit(plan, WriteIdentity(topic, 0), written(plan, WriteIdentity(topic, 0), 300, tasks=2))
    for version in (1, 2):
        query = WriteIdentity(topic, version)
        exactly_once.commit(plan, query, written(plan, query, 300, tasks=2))
    assert numbers(broker.bootstrap, topic) == once(300) + once(300) + once(300)


def test_tasks_that_were_idle_for_long_write_again_and_those_of_a_zombie_do_not(spark, write, broker, create: Create):
    topic = create(2)
    frame = spark.range(0, 90, numPartitions=3).selectExpr("cast(id as string) key", "cast(id as string) value")
    write(frame, topic, txnAppId=topic, txnVersion=0)
    write(frame.coalesce(1), topic, txnAppId=topic, txnVersion=1)
    with blocking.Admin(broker.bootstrap) as admin:
        admin.delete_groups([f"ottla-sink-{topic}-1", f"ottla-sink-{topic}-2"])  # as if they had expired meanwhile
    plan = WritePlan(WriteOptions({"bootstrap.servers": broker.bootstrap}, topic), ("key", "value"))
    late = [exactly_once.write(plan, WriteIdentity(topic, 2), 0, iter(shared_out(90, 1)))]
    write(frame, topic, txnAppId=topic, txnVersion=2)
    with pytest.raises(NotRepeatable):
        exactly_once.commit(plan, WriteIdentity(topic, 2), late)
    assert numbers(broker.bootstrap, topic) == once(90) + once(90) + once(90)


def test_a_stream_that_is_run_again_from_an_older_checkpoint_writes_nothing_twice(
    stream, broker, create: Create, tmp_path
):
    source, sink = create(3), create(2)
    fill(broker.bootstrap, source, 2500)
    checkpoint = tmp_path / "cp"
    stream(source, sink, checkpoint)
    assert numbers(broker.bootstrap, sink) == once(2500)
    # As if the driver had died after its tasks wrote the last batch, and before it noted that.
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    fill(broker.bootstrap, source, 500, first=2500)
    stream(source, sink, checkpoint)
    assert numbers(broker.bootstrap, sink) == once(3000)


def test_missing_markers_stop_the_stream_unless_txn_missing_marker_is_write(stream, broker, create: Create, tmp_path):
    source, sink = create(1), create(1)
    fill(broker.bootstrap, source, 100)
    stream(source, sink, tmp_path / "cp", txnAppId=sink)
    with blocking.Admin(broker.bootstrap) as admin:
        admin.delete_groups([f"ottla-sink-{sink}-0", f"ottla-decisions-{sink}"])
    fill(broker.bootstrap, source, 100, first=100)
    with pytest.raises(Exception, match="txnMissingMarker"):
        stream(source, sink, tmp_path / "cp", txnAppId=sink)
    assert numbers(broker.bootstrap, sink) == once(100)
    stream(source, sink, tmp_path / "cp", txnAppId=sink, txnMissingMarker="write")
    assert numbers(broker.bootstrap, sink) == once(200)


def test_two_topics_in_one_batch_need_names_of_their_own(spark, write, broker, create: Create, tmp_path):
    source, one, other = create(2), create(2), create(2)
    fill(broker.bootstrap, source, 300)

    def run(each: Any, checkpoint: Path) -> None:
        at = {"kafka.bootstrap.servers": broker.bootstrap}
        frame = spark.readStream.format("ottla").options(**at, subscribe=source, startingOffsets="earliest").load()
        writer = frame.select("key", "value").writeStream.foreachBatch(each)
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="inside foreachBatch needs txnAppId"):
        run(lambda batch, number: write(batch, one), tmp_path / "unnamed")

    def both(batch: Any, number: int) -> None:
        write(batch, one, txnAppId=one, txnVersion=number)
        write(batch, other, txnAppId=other, txnVersion=number)
        write(batch, other, txnAppId=other, txnVersion=number)  # as if the batch were run again

    run(both, tmp_path / "named")
    assert numbers(broker.bootstrap, one) == once(300)
    assert numbers(broker.bootstrap, other) == once(300)


def test_at_least_once_does_without_transactions(stream, broker, create: Create, tmp_path):
    source, sink = create(2), create(2)
    fill(broker.bootstrap, source, 500)
    stream(source, sink, tmp_path / "cp", guarantee="at_least_once")
    assert numbers(broker.bootstrap, sink) == once(500)
    with blocking.Admin(broker.bootstrap) as admin:
        groups = [each.group_id for each in admin.list_groups()]
    assert [group for group in groups if sink in group] == []


def test_a_task_sends_its_rows_in_order_while_spark_makes_more(broker, create: Create):
    topic = create(1)
    plan = WritePlan(WriteOptions(kafka={"bootstrap.servers": broker.bootstrap}, topic=topic), ("value",))
    made: list[int] = []

    def batches(count: int):
        for first in range(0, 100 * count, 100):
            made.append(first)
            yield pa.record_batch({"value": [str(number) for number in range(first, first + 100)]})

    written = OttlaWriter(plan)._write(batches(20), None, None)  # type: ignore[arg-type]
    assert written.rows == 2000
    assert [int(value or b"") for _, _, value, _ in committed(broker.bootstrap, topic)] == list(range(2000))

    def broken():
        yield from batches(2)
        raise KeyError("the query")

    with pytest.raises(KeyError, match="the query"):
        OttlaWriter(plan)._write(broken(), None, None)  # type: ignore[arg-type]
    too_large = pa.record_batch({"value": ["x" * 3_000_000]})
    with pytest.raises(Exception, match="max_request_size"):
        OttlaWriter(plan)._write(iter([too_large] * 5), None, None)  # type: ignore[arg-type]


def test_the_content_of_a_task_is_identified_by_counts_and_sums_without_order():
    rows = pa.record_batch({"key": ["a", None, "ccc"], "value": [b"xyz", b"", b"\xff"]})
    whole = exactly_once.TaskContent().plus(rows)
    assert whole == (3, 8, sum(b"a" + b"ccc" + b"xyz" + b"\xff"))
    turned = exactly_once.TaskContent().plus(rows.slice(1)).plus(rows.slice(0, 1))
    assert turned == whole
    assert exactly_once.TaskContent().plus(rows.slice(0, 0)) == (0, 0, 0)
