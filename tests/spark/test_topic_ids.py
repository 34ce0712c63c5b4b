"""A recreated topic is another topic, also if it is long enough, and failOnDataLoss decides."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

import pyarrow as pa

from ottla import blocking
from ottla.client.admin import NewTopic
from ottla.client.errors import UnknownTopic
from ottla.local.waiting import wait_for
from ottla.spark import clients
from ottla.spark.offset_lookup import OffsetLookup
from ottla.spark.options import read_options
from ottla.spark.range_reader import DataLost
from ottla.spark.source import OttlaReader, OttlaStreamReader
from tests.spark.conftest import Create

pytestmark = pytest.mark.timeout(300)
At = dict[str, Any]


@pytest.fixture
def topic(broker, create: Create) -> str:
    name = create(2)
    write(broker, name, range(20))
    return name


def write(broker, topic: str, numbers: range) -> None:
    rows = {"value": [str(number) for number in numbers], "to": [number % 2 for number in numbers]}
    with blocking.Producer(broker.bootstrap) as producer:
        producer.send_arrow(topic, pa.table(rows), partition="to").result()


def delete(broker, topic: str) -> None:
    with blocking.Admin(broker.bootstrap) as admin:
        admin.delete_topics([topic])
        wait_for(lambda: topic not in {each.name for each in admin.list_topics()}, "the end of the topic")


def recreate(broker, topic: str, numbers: range) -> None:
    delete(broker, topic)
    make(broker, topic, numbers)


def make(broker, topic: str, numbers: range) -> None:
    with blocking.Admin(broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 2)])
    write(broker, topic, numbers)


def at(topic: str, *offsets: int) -> At:
    return {topic: {str(partition): offset for partition, offset in enumerate(offsets)}}


class Query:
    """A stream as Spark drives it: what it has read, and where it is."""

    def __init__(self, broker, topic: str, **options: Any) -> None:
        topics = {} if "assign" in options else {"subscribe": topic}
        self._given = {"kafka.bootstrap.servers": broker.bootstrap, **topics, **options}
        self.at = at(topic, 0, 0)
        self.seen: list[int] = []
        self.restart()

    def restart(self) -> None:
        """In other processes."""
        for kept in clients._idle.values():
            kept.stop()
        clients._idle.clear()
        self.forget()

    def read(self, start: At, end: At) -> list[int]:
        batches = [batch for part in self._reader.partitions(start, end) for batch in self._reader.read(part)]
        return sorted(int(value) for batch in batches for value in batch.column("value").to_pylist())

    def forget(self) -> None:
        """A restart of the query in processes that go on."""
        given = {name.lower(): str(value) for name, value in self._given.items()}
        self._reader = OttlaStreamReader(read_options(given, streaming=True))

    def plan(self) -> list[Any]:
        return list(self._reader.partitions(self.at, self.end()))

    def read_part(self, part: Any) -> list[int]:
        return [int(value) for batch in self._reader.read(part) for value in batch.column("value").to_pylist()]

    def available_now(self) -> None:
        self._reader.prepareForTriggerAvailableNow()

    def end(self) -> At:
        return self._reader.latestOffset(self.at, self._reader.getDefaultReadLimit())

    def first(self) -> At:
        return self._reader.initialOffset()

    def run(self) -> None:
        """Until there is nothing new."""
        while (end := self.end()) != self.at:
            self.seen += self.read(self.at, end)
            self.at = end


@pytest.mark.parametrize("length", [6, 20, 50], ids=["shorter", "as long", "longer"])
def test_while_a_query_runs(broker, topic, length):
    careful, tolerant = Query(broker, topic), Query(broker, topic, failOnDataLoss="false")
    careful.run()
    tolerant.run()
    recreate(broker, topic, range(100, 100 + length))
    for _ in range(2):
        with pytest.raises(DataLost, match="deleted and recreated"):
            careful.run()
    tolerant.run()
    assert sorted(tolerant.seen) == [*range(20), *range(100, 100 + length)]
    write(broker, topic, range(200, 240))
    tolerant.run()
    assert sorted(tolerant.seen) == [*range(20), *range(100, 100 + length), *range(200, 240)]


@pytest.mark.parametrize("named", ["subscribe", "assign"])
def test_a_query_continues_without_a_deleted_topic_and_reads_it_when_it_is_recreated(broker, topic, named):
    how = {"assign": json.dumps({topic: [0, 1]})} if named == "assign" else {}
    careful, tolerant = Query(broker, topic, **how), Query(broker, topic, failOnDataLoss="false", **how)
    careful.run()
    tolerant.run()
    delete(broker, topic)
    for _ in range(2):
        with pytest.raises(DataLost, match=f"topic {topic} is gone, which was read up to .* failOnDataLoss"):
            careful.run()
    tolerant.run()
    tolerant.run()
    assert tolerant.at == {}
    tolerant.restart()
    tolerant.run()
    make(broker, topic, range(100, 150))
    tolerant.run()
    assert sorted(tolerant.seen) == [*range(20), *range(100, 150)]


@pytest.mark.parametrize("kept", ["memory", "file"])
def test_a_topic_that_comes_back_later_is_read_once(broker, topic, kept, tmp_path, caplog):
    where = {"checkpointLocation": tmp_path.as_uri()} if kept == "file" else {}
    query = Query(broker, topic, failOnDataLoss="false", **where)
    query.run()
    delete(broker, topic)
    query.run()
    make(broker, topic, range(100, 150))
    query.run()
    write(broker, topic, range(200, 210))
    query.run()
    assert sorted(query.seen) == [*range(20), *range(100, 150), *range(200, 210)]
    assert "but the log has" not in caplog.text


def test_a_topic_recreated_during_the_offset_lookup_is_read_once(broker, topic, monkeypatch):
    careful, tolerant = Query(broker, topic), Query(broker, topic, failOnDataLoss="false")
    careful.run()
    tolerant.run()
    ends = OffsetLookup.ends
    numbers = [range(100, 150), range(200, 270)]

    def late(cluster: OffsetLookup, partitions: Any) -> Any:
        monkeypatch.setattr(OffsetLookup, "ends", ends)
        recreate(broker, topic, numbers[0])
        time.sleep(0.1)
        return ends(cluster, partitions)

    monkeypatch.setattr(OffsetLookup, "ends", late)
    with pytest.raises(DataLost, match="deleted and recreated"):
        careful.end()
    tolerant.run()
    del numbers[0]
    monkeypatch.setattr(OffsetLookup, "ends", late)
    tolerant.run()
    assert sorted(tolerant.seen) == [*range(20), *range(100, 150), *range(200, 270)]


def test_a_worker_with_old_metadata_does_not_report_a_recreated_topic_as_lost(broker, topic):
    Query(broker, topic).run()
    kept = dict(clients._idle)
    clients._idle.clear()  # so that the next one does not stop them
    recreate(broker, topic, range(100, 150))
    query = Query(broker, topic)
    clients._idle.update(kept)
    query.run()
    assert sorted(query.seen) == [*range(100, 150)]


def test_the_other_topics_of_a_query_are_read_when_one_is_deleted(broker, topic, create):
    other = create(2)
    query = Query(broker, f"{topic},{other}", failOnDataLoss="false")
    query.at = at(topic, 0, 0) | at(other, 0, 0)
    write(broker, other, range(50, 60))
    query.run()
    delete(broker, topic)
    write(broker, other, range(60, 70))
    query.run()
    assert sorted(query.seen) == [*range(20), *range(50, 70)]
    assert query.at == at(other, 10, 10)


def test_a_topic_that_is_deleted_between_plan_and_read(broker, topic):
    careful, tolerant = Query(broker, topic), Query(broker, topic, failOnDataLoss="false")
    ends = careful.end(), tolerant.end()
    delete(broker, topic)
    with pytest.raises(DataLost, match=f"topic {topic} is gone"):
        careful.read(careful.at, ends[0])
    assert tolerant.read(tolerant.at, ends[1]) == []


def test_a_topic_that_was_never_there_is_no_lost_data(broker, fresh_name):
    query = Query(broker, fresh_name(), failOnDataLoss="false")
    with pytest.raises(UnknownTopic):
        query.first()


@pytest.mark.parametrize("length", [20, 50], ids=["as long", "longer"])
@pytest.mark.parametrize("kept", ["file", "group"])
def test_while_a_query_is_stopped(broker, topic, kept, length, tmp_path):
    away = {"groupId": f"{topic}-seen", "checkpointLocation": "s3a://bucket/cp"}
    where = {"checkpointLocation": tmp_path.as_uri()} if kept == "file" else away
    query = Query(broker, topic, failOnDataLoss="false", **where)
    query.run()
    recreate(broker, topic, range(100, 100 + length))
    careful = Query(broker, topic, **where)
    careful.at = query.at
    for _ in range(2):
        with pytest.raises(DataLost, match="deleted and recreated"):
            careful.run()
        careful.restart()
    query.restart()
    query.run()
    assert sorted(query.seen) == [*range(20), *range(100, 100 + length)]


@pytest.mark.parametrize("kept", ["file", "group"])
def test_queries_of_one_group_keep_their_ids_apart(broker, topic, kept, tmp_path):
    """Two sinks of one source that has a groupId, at different offsets."""
    checkpoints = [tmp_path / name if kept == "file" else f"s3a://bucket/{name}" for name in ("one", "other")]
    one, other = (
        Query(broker, topic, groupId=f"{topic}-seen", checkpointLocation=checkpoint, failOnDataLoss="false")
        for checkpoint in checkpoints
    )
    one.run()
    write(broker, topic, range(20, 30))
    other.run()
    recreate(broker, topic, range(100, 150))
    for query in (other, one):
        query.restart()
        query.run()
    assert sorted(one.seen) == [*range(20), *range(100, 150)]
    assert sorted(other.seen) == [*range(30), *range(100, 150)]


def test_topics_that_one_query_joins_keep_their_ids_apart(broker, topic, create):
    where = {"groupId": f"{topic}-seen", "checkpointLocation": "s3a://bucket/cp", "failOnDataLoss": "false"}
    joined = create(2)
    one, other = Query(broker, topic, **where), Query(broker, joined, **where)
    for query in (one, other):
        query.run()
        query.restart()
        query.run()
    recreate(broker, topic, range(100, 150))
    one.run()
    other._reader._topic_ids._save_at = 0.0  # an hour is over
    other.run()
    one.restart()
    one.run()
    assert sorted(one.seen) == [*range(20), *range(100, 150)]


@pytest.mark.parametrize("kept", ["file", "group"])
def test_a_checkpoint_without_read_records_reports_no_loss(broker, topic, kept, tmp_path):
    where = {"checkpointLocation": tmp_path if kept == "file" else "s3a://bucket/cp", "groupId": f"{topic}-seen"}
    Query(broker, topic, **where).run()
    recreate(broker, topic, range(100, 150))
    restarted = Query(broker, topic, startingOffsets="earliest", **where)
    restarted.at = restarted.first()
    restarted.run()
    assert sorted(restarted.seen) == [*range(100, 150)]


@pytest.mark.parametrize("where", [{}, {"groupId": "shared"}], ids=["nothing", "a group alone"])
def test_without_stored_topic_ids_only_a_shorter_topic_is_noticed(broker, topic, where):
    query = Query(broker, topic, **where)
    query.run()
    recreate(broker, topic, range(100, 150))
    query.restart()
    query.run()
    assert sorted(query.seen) == [*range(20), *range(120, 150)]


def test_a_batch_that_is_run_again_reads_the_new_topic_from_its_beginning_again(broker, topic, tmp_path):
    query = Query(broker, topic, failOnDataLoss="false", checkpointLocation=tmp_path, maxOffsetsPerTrigger=20)
    query.run()
    recreate(broker, topic, range(100, 150))
    end = query.end()
    first = query.read(query.at, end)
    assert len(first) >= 18
    assert min(first) == 100
    query.restart()  # the driver was killed
    assert query.read(query.at, end) == first
    query.run()
    assert sorted(query.seen) == [*range(20), *range(100, 150)]


def test_an_interrupted_batch_detects_a_topic_recreated_meanwhile(broker, topic, tmp_path):
    query = Query(broker, topic, checkpointLocation=tmp_path)
    query.run()
    write(broker, topic, range(20, 40))
    end = query.end()
    recreate(broker, topic, range(100, 150))
    query.restart()
    with pytest.raises(DataLost, match="deleted and recreated"):
        query.read(query.at, end)


@pytest.mark.parametrize("before", [0, 15, 40, 60], ids=["empty", "shorter than read", "than planned", "longer"])
@pytest.mark.parametrize("first", [False, True], ids=["a later batch", "the first batch"])
@pytest.mark.parametrize("same_process", [False, True], ids=["again", "in the same session"])
def test_a_planned_batch_of_a_recreated_topic_is_lost_and_the_next_one_starts_at_the_new_topic(
    broker, topic, tmp_path, caplog, before, first, same_process
):
    options = {"checkpointLocation": tmp_path, "startingOffsets": "earliest", "kafkaConsumer.pollTimeoutMs": 5000}
    query, careful = (Query(broker, topic, failOnDataLoss=lost, **options) for lost in ("false", "true"))
    query.at = query.first()
    if not first:
        query.run()
        write(broker, topic, range(20, 50))
    end = query.end()
    recreate(broker, topic, range(100, 100 + before))
    for each in (careful, query):
        each.at = query.at
        if same_process:
            each.forget()
        else:
            each.restart()
        if first:
            each.first()
    with pytest.raises(DataLost, match="deleted and recreated"):
        careful.read(query.at, end)
    caplog.clear()
    assert query.read(query.at, end) == []
    query.at = end
    write(broker, topic, range(100 + before, 140 + before))
    query.run()
    write(broker, topic, range(140 + before, 150 + before))
    query.run()
    assert sorted(each for each in query.seen if each >= 100) == [*range(100, 150 + before)]
    reported = [each.message for each in caplog.records if "recreated" in each.message]
    assert len(reported) == 1
    assert f"; {20 if first else 30} offsets of the old one" in reported[0]


@pytest.mark.parametrize("length", [0, 25, 40, 60])
@pytest.mark.parametrize("begun", [False, True], ids=["with new workers", "with workers that knew the old one"])
def test_a_task_never_reads_records_of_a_recreated_topic_for_a_planned_range(broker, topic, tmp_path, length, begun):
    at = {"failOnDataLoss": "false", "checkpointLocation": tmp_path}
    query, careful = Query(broker, topic, **at), Query(broker, topic)
    query.run()
    careful.run()
    write(broker, topic, range(20, 50))
    planned = [(each, each.at, each.end(), each.plan()) for each in (query, careful)]
    if begun:
        for each, _, _, parts in planned:
            for part in parts:  # so that workers know the old topic
                each.read_part(part)
    recreate(broker, topic, range(100, 100 + length))
    with pytest.raises(DataLost, match="deleted and recreated; 15 offsets of the old one's partition"):
        careful.read_part(planned[1][3][0])
    got = [value for part in planned[0][3] for value in query.read_part(part)]
    assert got == []
    query.at = planned[0][2]
    query.run()
    write(broker, topic, range(100 + length, 120 + length))
    query.run()
    assert sorted(each for each in query.seen if each >= 100) == [*range(100, 120 + length)]


def test_available_now_reads_the_topic_that_exists_at_planning(broker, topic, tmp_path):
    query = Query(broker, topic, failOnDataLoss="false", checkpointLocation=tmp_path)
    query.run()
    write(broker, topic, range(20, 50))
    query.available_now()
    recreate(broker, topic, range(100, 106))
    query.run()
    assert sorted(query.seen) == [*range(20), *range(100, 106)]


def test_a_batch_is_not_read_from_a_topic_recreated_meanwhile(broker, topic):
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    reader = OttlaReader(read_options(given, streaming=False))
    parts = reader.partitions()
    recreate(broker, topic, range(100, 150))
    with pytest.raises(DataLost, match="deleted and recreated"):
        list(reader.read(parts[0]))


def test_a_log_that_stays_shorter_than_planned_is_lost_data_and_no_endless_wait(broker, topic):
    short = {"kafkaConsumer.pollTimeoutMs": 1500}
    with pytest.raises(DataLost, match="offsets 10 to 30 are to be read, but it ends at 10"):
        Query(broker, topic, **short).read(at(topic, 0, 0), at(topic, 30, 0))
    query = Query(broker, topic, failOnDataLoss="false", **short)
    assert query.read(at(topic, 0, 0), at(topic, 30, 0)) == [*range(0, 20, 2)]


def test_a_damaged_file_counts_as_missing(broker, topic, tmp_path: Path):
    query = Query(broker, topic, checkpointLocation=tmp_path)
    query.run()
    [kept] = (tmp_path / "ottla").iterdir()
    for damage in ("", "[1]", '{"t": 5}', "nonsense"):
        kept.write_text(damage)
        query.restart()
        query.run()
        assert len(query.seen) == 20
