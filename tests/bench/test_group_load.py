"""The load of groups on a real broker: commits, rebalances, recovery after a kill."""

from __future__ import annotations

import itertools

import pytest

from bench import frames, group_load, history, load
from bench.compaction import FEED_BYTES_S, RECORDS_PER_BATCH, feed
from bench.connection import Broken, Connection, create_topic
from bench.workers import run


def no_cpu():
    return 0.0


@pytest.fixture
def topic(broker, fresh_name):
    name = fresh_name()
    create_topic(broker.port, name, 3)
    return name


@pytest.fixture
def eager(start_broker):
    """A broker whose groups do not wait for their first members, and a topic `joined` on it."""
    broker = start_broker("--set", "group.initial.rebalance.delay.ms=0")
    create_topic(broker.port, "joined", 1)
    group_load.wait_for_coordinator(broker.port, "joined", "joined")
    return broker


@pytest.mark.parametrize("partitions", [1, 3])
def test_every_group_commits_and_its_latency_is_measured(broker, topic, partitions):
    worker = group_load.commits(broker.port, [f"{topic}-a", f"{topic}-b"], topic, partitions)
    (tally,) = run([worker], 0.2, no_cpu).tallies
    assert tally.records == tally.requests * partitions >= 2 * partitions
    assert 0 < tally.latencies_us[50.0] <= tally.latencies_us[99.0]


def test_a_refused_commit_voids_the_run(broker, fresh_name):
    with pytest.raises(Broken, match="OffsetCommit answered"):
        run([group_load.commits(broker.port, [fresh_name()], "no-such-topic", 1)], 0.0, no_cpu)


def test_a_group_grows_and_shrinks_and_all_members_are_assigned(eager):
    group = group_load.Group(eager.port, "joined", "joined").enter(4)
    generations = {member.assigned for member in group._members.values()}
    assert len(generations) == 1
    assert group.grow() > 0
    assert {member.assigned for member in group._members.values()} == {generations.pop() + 1}
    group.shrink()
    assert len({member.assigned for member in group._members.values()}) == 1
    group.end()


@pytest.mark.parametrize("members", [2, 10])
def test_each_rebalance_is_measured(eager, members):
    (tally,) = run([group_load.rebalances(eager.port, "joined", "joined", members)], 0.0, no_cpu).tallies
    assert tally.requests == group_load.REBALANCES_MIN
    assert tally.latencies_us[50.0] > 0


def test_a_killed_broker_serves_the_last_of_many_commits_again(start_broker):
    broker = start_broker()
    create_topic(broker.port, history.TOPIC, history.PARTITIONS)
    groups = list(itertools.islice(history.groups_of(0), 10))
    group_load.wait_for_coordinator(broker.port, groups[0], history.TOPIC)
    last = history.fill(broker.port, groups, 5 * len(groups) * history.PARTITIONS)
    broker.kill()
    broker.start()
    offset, longest = history.watch(broker.port, groups[-1])
    assert last == offset == 5
    assert longest > 0


def test_batches_are_written_at_a_steady_rate(broker, topic):
    dirt = [frames.batch(100, RECORDS_PER_BATCH, 0)]
    (tally,) = run([feed(load.Target(broker.port, topic), dirt)], 0.3, no_cpu).tallies
    assert 0 < tally.requests * len(dirt[0]) <= FEED_BYTES_S * min(0.3, tally.end - tally.begin)
    frame, _ = frames.fetch(topic, 0)
    with Connection(broker.port) as connection:
        assert frames.read_fetched(connection.call(frame), topic, 0).high_watermark == tally.records
