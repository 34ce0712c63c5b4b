"""The requests of a micro-batch, and the work of its workers: nothing is repeated from the previous batch."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from ottla import blocking
from ottla.blocking.thread import LoopThread
from ottla.cluster.ensemble import HOST
from ottla.local.cluster import LocalCluster
from ottla.local.proxy import ClusterProxies
from ottla.spark import clients, exactly_once, workers
from ottla.spark.exactly_once import NotRepeatable, TaskCommit, WriteIdentity
from ottla.spark.fencing import DECISIONS_PREFIX
from ottla.spark.options import WriteOptions
from ottla.spark.sink import OttlaStreamWriter, OttlaWriter, WritePlan
from ottla.spark.source import OttlaDataSource
from ottla.wire.apis import APIS
from tests.conftest import ExternalBroker, Served
from tests.spark.conftest import Create
from tests.spark.test_fencing import plan_of, rows
from tests.spark.test_prefetch import reader_of
from tests.spark.test_sink import numbers, once

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def watched(tmp_path_factory) -> Iterator[tuple[Served, list[str]]]:
    """A broker behind a proxy, and the names of all requests that have passed."""
    seen: list[str] = []
    thread = LoopThread("proxy")
    with LocalCluster(tmp_path_factory.mktemp("watched"), 1) as cluster:
        note = lambda frame: seen.append(APIS[int.from_bytes(frame[:2], "big")].name)  # noqa: E731
        proxies = ClusterProxies(cluster, thread, clients=True, intercept=note)
        cluster.start()
        yield ExternalBroker(f"{HOST}:{proxies.ports[1]}"), seen
    proxies.close()
    thread.close()


@pytest.fixture
def broker(watched: tuple[Served, list[str]]) -> Served:
    return watched[0]


@pytest.fixture
def asked(watched: tuple[Served, list[str]]) -> Callable[[], list[str]]:
    """What has been asked since the last call, by the names of the requests. A new connection asks for ApiVersions."""
    seen = watched[1]
    seen.clear()

    def taken() -> list[str]:
        was = seen.copy()
        seen.clear()
        return was

    return taken


def written(plan: WritePlan, app_id: str, version: int, *tasks: tuple[int, ...]) -> list[TaskCommit]:
    identity = WriteIdentity(app_id, version)
    return [exactly_once.write(plan, identity, task, rows(*each)) for task, each in enumerate(tasks)]


def test_a_micro_batch_repeats_no_request_of_the_previous_one(broker, create: Create, asked):
    source, sink = create(4), create(1)
    plan = plan_of(broker, sink, app_id=sink)
    reader = reader_of(broker, source)
    begun = {source: dict.fromkeys(("0", "1", "2", "3"), 0)}
    for version in range(3):
        with blocking.Producer(broker.bootstrap) as producer:
            for partition in range(4):
                producer.send_and_wait(source, b"%d" % version, partition=partition)
        asked()
        ended = reader.latestOffset(begun, ReadAllAvailable())
        planning = asked()
        reader.partitions(begun, ended)
        reading = asked()
        parts = written(plan, sink, version, (version,))
        writing = asked()
        exactly_once.commit(plan, WriteIdentity(sink, version), parts)
        committing = asked()
        begun = ended
    assert planning == ["Metadata", "ListOffsets"]
    assert set(reading) == {"Fetch"}
    assert len(reading) <= 4, "a range needs one Fetch, and none waits at its end"
    assert writing == ["InitProducerId", "OffsetFetch", "Produce", "TxnOffsetCommit"]
    assert committing == ["TxnOffsetCommit", "EndTxn", "EndTxn"]
    assert numbers(broker.bootstrap, sink) == once(3)


def test_a_task_that_finds_the_batch_decided_on_still_looks_for_its_marker(broker, create: Create):
    topic = create(1)
    plan = plan_of(broker, topic, app_id=topic)
    for version in range(2):
        parts = written(plan, topic, version, (2 * version,), (2 * version + 1,))
        exactly_once.decide(plan, WriteIdentity(topic, version), parts)
        exactly_once.end(plan, [part.transaction for part in parts if part.transaction], committed=True)
    again = written(plan, topic, 1, (2,), (3,))
    assert [part.transaction for part in again] == [None, None]
    exactly_once.commit(plan, WriteIdentity(topic, 1), again)
    exactly_once.commit(plan, WriteIdentity(topic, 2), written(plan, topic, 2, (4,)))
    assert numbers(broker.bootstrap, topic) == once(5)


def test_a_fenced_driver_reads_the_decision_of_the_other_one(broker, create: Create):
    topic = create(1)
    plan = plan_of(broker, topic, app_id=topic)
    exactly_once.commit(plan, WriteIdentity(topic, 0), written(plan, topic, 0, (0,)))
    with blocking.Producer(broker.bootstrap, transactional_id=DECISIONS_PREFIX + topic):
        pass  # another driver was here, and has decided nothing
    exactly_once.commit(plan, WriteIdentity(topic, 1), written(plan, topic, 1, (1,)))

    mine = dict(clients._transactional)
    clients._transactional.clear()  # as in another process
    decided = WriteIdentity(topic, 2)
    other = written(plan, topic, 2, (2,), (3,))
    exactly_once.decide(plan, decided, other)
    others = dict(clients._transactional)
    clients._transactional |= mine
    try:
        with pytest.raises(NotRepeatable, match="by 2 tasks"):
            exactly_once.commit(plan, decided, [other[0]])
        exactly_once.commit(plan, decided, written(plan, topic, 2, (2,), (3,)))
    finally:
        for kept in others.values():
            kept.producer.stop()
    assert numbers(broker.bootstrap, topic) == once(4)


def test_the_number_of_cached_producers_is_limited(broker, create: Create):
    topic = create(1)
    plan = plan_of(broker, topic, app_id=topic)
    tasks = [(number,) for number in range(clients.TRANSACTIONAL_MAX + 3)]
    for version in range(2):
        exactly_once.commit(plan, WriteIdentity(topic, version), written(plan, topic, version, *tasks))
    assert len(clients._transactional) == clients.TRANSACTIONAL_MAX
    assert sum(numbers(broker.bootstrap, topic).values()) == 2 * len(tasks)


def test_a_worker_does_not_scan_its_imported_modules_after_each_use(monkeypatch):
    frozen: list[None] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(None))
    options = WriteOptions(kafka={"bootstrap.servers": "127.0.0.1:1"}, topic="t", promise="at_least_once")
    plan = WritePlan(options, ("value",))
    monkeypatch.setattr(workers, "_uses", 0)
    pickle.dumps(OttlaWriter(plan))
    assert not frozen, "a batch's writer may be made in a program that is not ours"
    pickle.dumps(OttlaStreamWriter(plan))
    assert len(frozen) == 1
    with pytest.raises(AssertionError, match="writers write in tasks"):
        OttlaWriter(plan).write(iter(()))
    assert len(frozen) == 2
    monkeypatch.setattr(workers, "_uses", 0)
    for batch in range(5):
        OttlaStreamWriter(plan).commit([], batch)
    assert len(frozen) == 4, "in the first uses of a process"


def test_after_its_first_uses_a_worker_has_little_left_to_look_through(spark, broker, create: Create, tmp_path):
    """In the workers of Spark itself: what has been imported by then depends on its version."""
    topic, seen = create(1), tmp_path / "seen"

    class CountingWriter(OttlaWriter):
        def write(self, iterator: Any) -> Any:
            with seen.open("a") as file:
                file.write(f"{os.getpid()} {len(gc.get_objects())}\n")
            return OttlaWriter.write(self, iterator)

    class Counting(OttlaDataSource):
        @classmethod
        def name(cls) -> str:
            return "counting"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            made: Any = OttlaDataSource.writer(self, schema, overwrite)
            return CountingWriter(made._plan)

    spark.dataSource.register(Counting)
    for version in range(5):
        writer = spark.range(0, 1, 1, 1).selectExpr("cast(id as string) value").write.format("counting").mode("append")
        writer = writer.option("kafka.bootstrap.servers", broker.bootstrap)
        writer.options(topic=topic, txnAppId=topic, txnVersion=str(version)).save()
    uses = [tuple(map(int, line.split())) for line in seen.read_text().splitlines()]
    (_, first), (_, last) = uses[0], uses[-1]
    assert {worker for worker, _ in uses} == {uses[0][0]}, "Spark uses a worker again"
    assert last < 5_000 < first, uses
