"""Prefetch: small batches are read by the planner, with the same rows; tasks read the others."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import chain
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

from ottla import blocking
from ottla.client.errors import TimedOut
from ottla.client.values import TopicPartition
from ottla.spark import prefetch, source
from ottla.spark.prefetch import PrefetchingStreamReader
from ottla.spark.range_reader import DataLost
from ottla.spark.source import OttlaDataSource, OttlaStreamReader
from tests.spark.conftest import REPOSITORY, Create
from tests.spark.test_source import run

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def topic(broker, create: Create) -> str:
    name = create(4)
    write(broker, name, range(100))
    return name


def write(broker, topic: str, numbers: range) -> None:
    rows = {"value": [str(number) for number in numbers], "to": [number % 4 for number in numbers]}
    with blocking.Producer(broker.bootstrap) as producer:
        producer.send_arrow(topic, pa.table(rows), partition="to").result()


def reader_of(broker, topic: str, **options: Any) -> Any:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, **options}
    made = OttlaDataSource({name.lower(): str(value) for name, value in given.items()})
    return made.streamReader(made.schema())


def at(topic: str, *offsets: int) -> dict[str, dict[str, int]]:
    return {topic: {str(partition): offset for partition, offset in enumerate(offsets)}}


def numbers(batches) -> list[int]:
    return sorted(int(value) for batch in batches for value in batch.column("value").to_pylist())


def test_a_small_batch_is_one_task_whose_rows_come_with_the_plan(broker, topic):
    reader = reader_of(broker, topic)
    assert isinstance(reader, PrefetchingStreamReader)
    start = at(topic, 0, 0, 0, 5)
    end = reader.latestOffset(start, ReadAllAvailable())
    [part] = reader.partitions(start, end)
    expected = sorted(set(range(100)) - set(range(3, 23, 4)))
    assert numbers(reader.getCache(start, end)) == expected
    assert reader.getCache(start, end) is None, "the rows are handed over once"
    assert numbers(reader.read(part)) == expected, "a task can read what Spark has lost"
    reader.commit(end)
    reader.stop()


@pytest.mark.parametrize(
    ("options", "tasks"), [({"prefetchMaxRecords": 99}, 4), ({"prefetchMaxRecords": 0}, 4), ({"minPartitions": 8}, 8)]
)
def test_a_larger_batch_and_a_batch_of_several_tasks_are_not_prefetched(broker, topic, options, tasks):
    reader = reader_of(broker, topic, **options)
    start, end = at(topic, 0, 0, 0, 0), at(topic, 25, 25, 25, 25)
    parts = reader.partitions(start, end)
    assert len(parts) == tasks
    if isinstance(reader, PrefetchingStreamReader):
        assert reader.getCache(start, end) is None
    assert numbers(chain(*map(reader.read, parts))) == list(range(100))


def test_rows_of_too_many_bytes_are_left_to_the_one_task(broker, topic, monkeypatch):
    monkeypatch.setattr(prefetch, "BYTES_MAX", 500)
    reader = reader_of(broker, topic)
    start, end = at(topic, 0, 0, 0, 0), at(topic, 25, 25, 25, 25)
    [part] = reader.partitions(start, end)
    assert reader.getCache(start, end) is None
    assert numbers(reader.read(part)) == list(range(100))


def test_rows_not_prefetched_in_time_are_read_by_the_task_and_lost_records_end_the_query(broker, topic, monkeypatch):
    reader = reader_of(broker, topic)
    start, end = at(topic, 0, 0, 0, 0), at(topic, 25, 25, 25, 25)

    def nothing(*_: object) -> Any:
        raise TimedOut("nothing came")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(source, "read", nothing)
        assert len(reader.partitions(start, end)) == 1
        assert reader.getCache(start, end) is None
    with blocking.Admin(broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 1): 10})
    with pytest.raises(DataLost):
        reader.partitions(start, end)


def test_without_the_private_class_of_pyspark_tasks_read_everything(broker, topic):
    """In a process of its own, where PySpark does not have it."""
    program = f"""
from pyspark.sql import datasource_internal
del datasource_internal._SimpleStreamReaderWrapper
from ottla.spark.source import OttlaDataSource, OttlaStreamReader
made = OttlaDataSource({{"kafka.bootstrap.servers": {broker.bootstrap!r}, "subscribe": {topic!r}}})
reader = made.streamReader(made.schema())
assert type(reader) is OttlaStreamReader
parts = reader.partitions({at(topic, 0, 0, 0, 0)!r}, {at(topic, 25, 25, 25, 25)!r})
print(len(parts), sum(batch.num_rows for part in parts for batch in reader.read(part)))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["4", "100"], done.stderr


def test_a_stream_of_small_and_large_batches_has_every_row_once(spark, broker, topic, tmp_path):
    def stream(**options: Any):
        at_broker = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        return spark.readStream.format("ottla").options(**at_broker, **options).load()

    seen, query = run(stream(maxOffsetsPerTrigger=40), tmp_path / "cp")
    assert [len(seen[number]) for number in sorted(seen)] == [40, 40, 20]
    assert json.loads(query.lastProgress["sources"][0]["endOffset"]) == at(topic, 25, 25, 25, 25)
    write(broker, topic, range(100, 3100))
    more, _ = run(stream(maxOffsetsPerTrigger=2000, groupId=f"{topic}-seen"), tmp_path / "cp")
    assert [len(more[number]) for number in sorted(more)] == [2000, 1000]
    assert sorted(chain(*seen.values(), *more.values())) == list(range(3100))
    without, _ = run(stream(prefetchMaxRecords=0), tmp_path / "other")
    assert sorted(chain(*without.values())) == list(range(3100))


def test_tasks_use_the_wrapped_reader(broker, topic):
    plain = reader_of(broker, topic, prefetchMaxRecords=0)
    assert type(plain) is OttlaStreamReader
    given = {"maxOffsetsPerTrigger": 7}
    wrapped = reader_of(broker, topic, **given)
    limited = reader_of(broker, topic, prefetchMaxRecords=0, **given)
    assert wrapped.getDefaultReadLimit() == limited.getDefaultReadLimit()
    assert wrapped.initialOffset() == plain.initialOffset()
