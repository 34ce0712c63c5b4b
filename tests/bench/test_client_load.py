"""Every client of the comparison sends and reads the records it is counted for."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from bench import column_load, frames
from bench.client_load import CLIENTS, PARTITIONS, Job, worker
from bench.connection import Connection, create_topic
from bench.workers import Tally, Worker, run

Make = Callable[..., Worker]


def no_cpu() -> float:
    return 0.0


def tally(make: Make, arguments: tuple[Any, ...], seconds: float) -> Tally:
    """As in a benchmark: from a process that has no threads yet. That of the tests has had clients, and what is forked
    from it may wait for their locks for ever."""
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:
        return alone.submit(_tally, make, arguments, seconds).result()


def _tally(make: Make, arguments: tuple[Any, ...], seconds: float) -> Tally:
    (only,) = run([make(*arguments)], seconds, no_cpu).tallies
    return only


@pytest.fixture
def topic(broker, fresh_name):
    name = fresh_name()
    create_topic(broker.port, name, PARTITIONS)
    return name


def written(broker, topic: str) -> int:
    with Connection(broker.port) as connection:
        answers = (connection.call(frames.fetch(topic, n, wait_ms=0)[0]) for n in range(PARTITIONS))
        return sum(frames.read_fetched(answer, topic, 0).high_watermark for answer in answers)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_reads_its_records(broker, topic, client):
    produce, consume = CLIENTS[client]
    job = Job(broker.bootstrap, topic, bytes(100), 0)
    sent = tally(worker, (produce, job), 0.1)
    assert written(broker, topic) == sent.records + 1  # and the one by which it learnt the way
    taken = tally(worker, (consume, job._replace(records=sent.records)), 30.0)
    assert taken.records == sent.records


@pytest.mark.parametrize("send", [column_load.send, column_load.confluent_send])
@pytest.mark.parametrize("take", [column_load.take, column_load.confluent_take])
def test_tables_are_written_to_a_topic_and_read_again(broker, topic, fresh_name, send, take):
    scratch = fresh_name()
    create_topic(broker.port, scratch, PARTITIONS)
    job = column_load.Job(broker.bootstrap, topic, scratch, 10, column_load.TABLE_ROWS)
    for work in (send, take):
        assert tally(work, (job,), 0.0).records == column_load.TABLE_ROWS
    assert written(broker, topic) == column_load.TABLE_ROWS
