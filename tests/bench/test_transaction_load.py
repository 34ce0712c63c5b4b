"""The load of transactions on a real broker: counted transactions are committed, and copies are exact."""

from __future__ import annotations

import pytest

from bench import frames, transaction_load
from bench.connection import Broken, Connection, create_topic
from bench.load import Target
from bench.workers import run


def no_cpu():
    return 0.0


@pytest.fixture
def target(broker, fresh_name):
    name = fresh_name()
    create_topic(broker.port, name, 1)
    return Target(broker.port, name)


def committed(target: Target) -> int:
    """Records and markers that a reader of what is committed is given."""
    records = offset = 0
    frame, offset_at = frames.fetch(target.topic, target.partition, wait_ms=0, committed=True)
    with Connection(target.port) as connection:
        while True:
            frames.I64.pack_into(frame, offset_at, offset)
            fetched = frames.read_fetched(connection.call(frame), target.topic, offset)
            if fetched.next_offset == offset:
                return records
            records, offset = records + fetched.records, fetched.next_offset


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("count", [1, 10])
def test_every_counted_transaction_is_committed(target, fresh_name, version, count):
    names = [fresh_name() for _ in range(3)]
    worker = transaction_load.transactions([target], names, frames.batch(100, count), count, version)
    (tally,) = run([worker], 0.2, no_cpu).tallies
    assert tally.records == tally.requests * count >= 3 * count
    assert 0 < tally.latencies_us[50.0] <= tally.latencies_us[99.0]
    transactions = tally.requests + len(names)  # and the first of each, before the start
    assert committed(target) == transactions * (count + 1)


@pytest.mark.parametrize("version", [1, 2])
def test_every_record_is_copied_once(broker, target, fresh_name, version):
    sink = Target(broker.port, fresh_name())
    create_topic(broker.port, sink.topic, 1)
    worker = transaction_load.copies(target, sink, fresh_name(), 20, frames.batch(100, 1), version)
    (tally,) = run([worker], 0.0, no_cpu).tallies
    assert tally.records == 20
    assert tally.latencies_us[50.0] > 0
    assert committed(sink) == 20 * 2


def test_a_refused_transaction_voids_the_run(broker, fresh_name):
    nowhere = Target(broker.port, "no-such-topic")
    worker = transaction_load.transactions([nowhere], [fresh_name()], frames.batch(100, 1), 1, 1)
    with pytest.raises(Broken, match="error 3"):
        run([worker], 0.0, no_cpu)
