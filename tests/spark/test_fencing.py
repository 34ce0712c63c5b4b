"""Open transactions of an interrupted batch do not block readers."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

import pyarrow as pa

from ottla import blocking
from ottla.spark import exactly_once, fencing
from ottla.spark.exactly_once import TaskCommit, WriteIdentity
from ottla.spark.fencing import fence_left_over
from ottla.spark.options import WriteOptions
from ottla.spark.sink import OttlaStreamWriter, OttlaWriter, WritePlan
from tests.spark.conftest import Create
from tests.spark.test_sink import committed, fill, numbers, once

pytestmark = pytest.mark.timeout(300)


def plan_of(broker, topic: str, **options) -> WritePlan:
    return WritePlan(WriteOptions(kafka={"bootstrap.servers": broker.bootstrap}, topic=topic, **options), ("value",))


def rows(*numbers: int):
    return iter(pa.table({"value": [str(number) for number in numbers]}).to_batches())


def break_off(plan: WritePlan, app_id: str, tasks: int, version: int = 0) -> list[TaskCommit]:
    """A batch whose driver dies when all tasks are done."""
    identity = WriteIdentity(app_id, version)
    return [exactly_once.write(plan, identity, task, rows(1000 + task)) for task in range(tasks)]


def ongoing(broker, app_id: str) -> list[str]:
    with blocking.Admin(broker.bootstrap) as admin:
        names = [each.transactional_id for each in admin.list_transactions(["Ongoing"])]
    return sorted(name for name in names if app_id in name)


def checkpoint_of(tmp_path: Path, app_id: str, batch: int) -> str:
    """As Spark leaves it when a batch is broken off."""
    for folder, newest in (("offsets", batch), ("commits", batch - 1)):
        (tmp_path / folder).mkdir(exist_ok=True)
        for number in range(newest + 1):
            (tmp_path / folder / str(number)).touch()
    (tmp_path / "metadata").write_text(json.dumps({"id": app_id}))
    return tmp_path.as_uri()


def test_open_transactions_of_this_writer_are_fenced_and_no_others(broker, create: Create):
    topic = create(1)
    plan = plan_of(broker, topic)
    for app_id in (topic, f"{topic}-1"):
        break_off(plan, app_id, 3)
    with blocking.Producer(broker.bootstrap) as producer:
        producer.send_and_wait(topic, b"1")
    assert committed(broker.bootstrap, topic) == [], "it is hidden behind what is open"
    assert fence_left_over(plan.options.kafka, topic, 1) == [f"ottla-sink-{topic}-{task}" for task in (1, 2)]
    assert fence_left_over(plan.options.kafka, topic) == [f"ottla-sink-{topic}-0"]
    assert ongoing(broker, topic) == [f"ottla-sink-{topic}-1-{task}" for task in range(3)]
    fence_left_over(plan.options.kafka, f"{topic}-1")
    assert [each[2] for each in committed(broker.bootstrap, topic)] == [b"1"]


def test_a_decision_that_was_being_written_is_fenced_too(broker, create: Create):
    topic = create(1)
    plan = plan_of(broker, topic)
    with blocking.Producer(broker.bootstrap, transactional_id=f"ottla-decisions-{topic}") as producer:
        producer.begin_transaction()
        producer.send(topic, b"x").result()
        assert fence_left_over(plan.options.kafka, topic) == [f"ottla-decisions-{topic}"]
        assert ongoing(broker, topic) == []
        with pytest.raises(Exception, match=r"fenced|epoch"):
            producer.commit_transaction()


def test_a_writer_that_is_sent_to_its_tasks_fences_what_an_earlier_run_left(broker, create: Create, tmp_path):
    topic = create(1)
    stream = plan_of(broker, topic, checkpoint=checkpoint_of(tmp_path, topic, 3))
    break_off(stream, topic, 3)
    pickle.dumps(OttlaStreamWriter(stream))
    assert ongoing(broker, topic) == []
    break_off(stream, topic, 2)
    batch = plan_of(broker, topic, app_id=topic, version=0)
    pickle.dumps(OttlaWriter(batch))
    assert ongoing(broker, topic) == []
    pickle.dumps(OttlaStreamWriter(plan_of(broker, topic, promise="at_least_once", checkpoint=tmp_path.as_uri())))


def test_batches_without_an_error_are_not_checked_again(broker, create: Create, tmp_path, monkeypatch):
    looked: list[str] = []
    monkeypatch.setattr(fencing, "fence_left_over", lambda _, app_id: looked.append(app_id))
    topic = create(1)
    for batch in (4, 5, 6, 6, 7):  # the sixth is run again
        pickle.dumps(OttlaStreamWriter(plan_of(broker, topic, checkpoint=checkpoint_of(tmp_path, topic, batch))))
    assert len(looked) == 2


def test_without_a_readable_checkpoint_the_commit_aborts_transactions_that_the_run_did_not_use(broker, create: Create):
    topic = create(1)
    plan = plan_of(broker, topic, checkpoint="hdfs://nowhere/checkpoint")
    break_off(plan, topic, 4)
    identity = WriteIdentity(topic, 0)
    parts = [exactly_once.write(plan, identity, task, rows(task)) for task in range(2)]
    assert len(ongoing(broker, topic)) == 4
    exactly_once.commit(plan, identity, parts)
    assert ongoing(broker, topic) == []
    assert numbers(broker.bootstrap, topic) == once(2)


def test_a_query_that_is_started_again_with_fewer_tasks_leaves_nothing_open(spark, broker, create: Create, tmp_path):
    source, sink = create(4), create(1)
    at = {"kafka.bootstrap.servers": broker.bootstrap}

    def run(value: str = "value") -> None:
        frame = spark.readStream.format("ottla").options(**at, subscribe=source, startingOffsets="earliest").load()
        writer = frame.selectExpr(f"{value} as value").writeStream.format("ottla").options(**at, topic=sink)
        writer.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start().awaitTermination()

    fill(broker.bootstrap, source, 10)
    run()
    query = json.loads((tmp_path / "cp" / "metadata").read_text())["id"]
    fill(broker.bootstrap, source, 10, first=11)
    with pytest.raises(Exception, match="broken off"):
        run("cast(raise_error('broken off') as binary)")
    break_off(plan_of(broker, sink), query, 5, version=1)  # as if it had been later, and with five tasks
    with blocking.Producer(broker.bootstrap) as producer:
        producer.send_and_wait(sink, b"10")
    assert len(ongoing(broker, query)) == 5
    assert numbers(broker.bootstrap, sink) == once(10)
    run()  # one task: the batch is small
    assert ongoing(broker, query) == []
    assert numbers(broker.bootstrap, sink) == once(21)
