"""A broker that is away for a while, at every moment of a batch: the batch takes longer, and is exact.

The batch is made of the calls that Spark makes, in one process: the planner's, a task that reads, two that write, the
driver that commits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs PySpark: make test installs it")

import pyarrow as pa

from ottla import blocking
from ottla.client.admin import NewTopic
from ottla.local.processes import BrokerProcess
from ottla.spark import clients, exactly_once
from ottla.spark.exactly_once import WriteIdentity
from ottla.spark.options import WriteOptions, read_options
from ottla.spark.sink import WritePlan
from ottla.spark.source import OttlaStreamReader
from tests.harness.cluster import Brokers
from tests.spark.test_sink import fill, numbers, once

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

AWAY_S = 3.0
ENDED_S = 60.0
"""What is committed is seen when its end has reached all partitions: also that of the broker that was away."""
ROWS = 100
MOMENTS = [
    "before the first question",
    "before the end is asked for",
    "before it is cut into tasks",
    "before the task reads",
    "before a task takes its transactional id",
    "while a task writes",
    "before a task leaves its marker",
    "between two tasks",
    "before the decision",
    "before the commits",
]

Meanwhile = Callable[[str], None]


class Outage:
    """Kills a broker at one moment, and starts it again after a while."""

    def __init__(self) -> None:
        self._back: threading.Timer | None = None

    def begin(self, broker: BrokerProcess) -> None:
        broker.kill()
        self._back = threading.Timer(AWAY_S, broker.start)
        self._back.start()

    def over(self) -> None:
        if self._back is not None:
            self._back.join()


def run_batch(bootstrap: str, number: int, meanwhile: Meanwhile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is new in topic `source` into topic `sink`, as batch `number`."""
    meanwhile("before the first question")
    at = {"kafka.bootstrap.servers": bootstrap, "subscribe": "source", "startingOffsets": "earliest"}
    reader = OttlaStreamReader(read_options({name.lower(): value for name, value in at.items()}, streaming=True))
    start = {"source": {"0": number * ROWS}}
    meanwhile("before the end is asked for")
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    meanwhile("before it is cut into tasks")
    [part] = reader.partitions(start, end)
    meanwhile("before the task reads")
    rows = pa.Table.from_batches(reader.read(part)).select(["key", "value"])
    assert rows.num_rows == ROWS
    plan = WritePlan(WriteOptions(kafka={"bootstrap.servers": bootstrap}, topic="sink"), ("key", "value"))
    identity = WriteIdentity("outages", number)

    def given(task: int) -> Iterator[pa.RecordBatch]:
        half = ROWS // 2
        for first in range(0, half, half // 2):
            yield from rows.slice(task * half + first, half // 2).to_batches()
            meanwhile("while a task writes")

    send_offsets = blocking.Producer.send_offsets_to_transaction

    def send_marker(*arguments: object) -> None:
        meanwhile("before a task leaves its marker")
        send_offsets(*arguments)  # type: ignore[arg-type]

    meanwhile("before a task takes its transactional id")
    with monkeypatch.context() as patch:
        patch.setattr(blocking.Producer, "send_offsets_to_transaction", send_marker)
        parts = [exactly_once.write(plan, identity, 0, given(0))]
        meanwhile("between two tasks")
        parts.append(exactly_once.write(plan, identity, 1, given(1)))
    meanwhile("before the decision")
    exactly_once.decide(plan, identity, parts)
    meanwhile("before the commits")
    exactly_once.commit(plan, identity, parts)


def forget_connections() -> None:
    """A worker that was just started has none."""
    for client in [*clients._idle.values(), *(kept.producer for kept in clients._transactional.values())]:
        client.stop()
    clients._idle.clear()
    clients._transactional.clear()


def run_all(
    bootstrap: str, brokers: Callable[[int], BrokerProcess], monkeypatch: pytest.MonkeyPatch, *, fresh: bool
) -> None:
    """With workers that were just started for each batch, or with those of the batch before."""
    for number, moment in enumerate(MOMENTS):
        fill(bootstrap, "source", ROWS, first=number * ROWS)
        outage = Outage()
        left = [moment]

        def meanwhile(now: str, left: list[str] = left, outage: Outage = outage, number: int = number) -> None:
            if now in left:
                left.remove(now)
                outage.begin(brokers(number))

        if fresh:
            forget_connections()
        try:
            run_batch(bootstrap, number, meanwhile, monkeypatch)
        finally:
            outage.over()
        assert not left, f"there was no moment {moment}"
    all_of_it = once(len(MOMENTS) * ROWS)
    deadline = time.monotonic() + ENDED_S
    while (found := numbers(bootstrap, "sink")) != all_of_it and time.monotonic() < deadline:
        assert found <= all_of_it
        time.sleep(0.5)
    assert found == all_of_it


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.broker_may_log(".*")
def test_the_only_broker_may_be_away_at_every_moment(fresh: bool, start_broker, monkeypatch):
    broker = start_broker()
    with blocking.Admin(broker.bootstrap) as admin:
        admin.create_topics([NewTopic("source", 1), NewTopic("sink", 2)])
    run_all(broker.bootstrap, lambda _: broker, monkeypatch, fresh=fresh)


@pytest.mark.parametrize("fresh", [True, False])
def test_one_of_three_brokers_may_be_away_at_every_moment(fresh: bool, tmp_path: Path, monkeypatch):
    brokers = Brokers(tmp_path)
    try:
        for topic, partitions in (("source", 1), ("sink", 3)):
            brokers.topic(topic, partitions, min_insync_replicas="2")
        run_all(brokers.bootstrap, lambda number: brokers[number % 3 + 1], monkeypatch, fresh=fresh)
    finally:
        forget_connections()
        brokers.close()
