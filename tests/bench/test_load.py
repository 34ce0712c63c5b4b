"""The workers of the load, on a real broker."""

from __future__ import annotations

import gc
import time

import pytest

from bench import frames, load
from bench.connection import Broken, create_topic
from bench.workers import Tally, run


def no_cpu():
    return 0.0


@pytest.fixture
def target(broker, fresh_name):
    name = fresh_name()
    create_topic(broker.port, name, 2)
    return load.Target(broker.port, name)


def test_consumers_count_the_records_producers_wrote(target):
    batch = frames.batch(100, 50)
    (wrote,) = run([load.producer(target, batch, 50)], 0.2, no_cpu).tallies
    (read,) = run([load.consumer(target, again=False)], 0.3, no_cpu).tallies
    assert wrote.records == wrote.requests * 50 > 0
    assert read.records == wrote.records + 50  # and the batch by which the producer learnt the answer's size


def test_a_consumer_starts_again_at_the_log_end(target):
    run([load.producer(target, frames.batch(100, 1), 1)], 0.0, no_cpu)
    (read,) = run([load.consumer(target, again=True)], 0.3, no_cpu).tallies
    assert read.records > load.IN_FLIGHT_MAX + 1


def test_every_connection_produces_and_its_latency_is_measured(target):
    worker = load.connections(target, 2, 20, frames.batch(100, 1))
    (tally,) = run([worker], 0.2, no_cpu).tallies
    assert tally.requests >= 20
    assert 0 < tally.latencies_us[50.0] <= tally.latencies_us[99.0] <= tally.latencies_us[99.9]


def test_round_trips_are_as_many_as_asked_for(target):
    (tally,) = run([load.round_trips(target, 50, frames.batch(100, 1))], 0.0, no_cpu).tallies
    assert tally.requests == 50
    assert tally.latencies_us[50.0] > 0


def test_a_waiting_fetch_sees_each_record(target):
    (tally,) = run([load.end_to_end(target, 20, frames.batch(100, 1))], 0.0, no_cpu).tallies
    assert tally.records == 20


def test_a_worker_does_not_run_the_exit_handlers_of_its_parent():
    """Clients, for instance, whose threads are the parent's."""
    ended = []

    class Left:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            ended.append(self)

    def worker(start):
        gc.enable()
        gc.collect()
        start()
        return Tally(records=len(ended))

    gc.disable()
    try:
        Left()
        (tally,) = run([worker], 0.0, no_cpu).tallies
    finally:
        gc.enable()
    assert tally.records == 0


def test_a_refused_produce_voids_the_run(target):
    nowhere = load.Target(target.port, target.topic, 99)
    with pytest.raises(Broken, match="error 3"):
        run([load.producer(nowhere, frames.batch(100, 1), 1)], 0.0, no_cpu)


def test_workers_start_together_and_answer_in_order():
    def worker(number):
        def work(start):
            time.sleep(0.02 * (3 - number))
            stop = start()
            return Tally(begin=time.monotonic(), end=stop, requests=number)

        return work

    tallies = run([worker(number) for number in range(3)], 1.0, no_cpu).tallies
    assert [tally.requests for tally in tallies] == [0, 1, 2]
    assert all(tally.begin < tally.end for tally in tallies)


def test_percentiles_are_nearest_ranks_in_microseconds():
    assert load.percentiles([n * 1000 for n in range(1, 1001)]) == {50.0: 501, 99.0: 991, 99.9: 1000}
