"""Replication throttle: debt is paid back at the current rate."""

from __future__ import annotations

import pytest

from ottla.broker.broker import Broker
from ottla.cluster.requests import ConfigAlteration, ConfigEdit, ConfigOp, Reassignment, TopicSpec
from ottla.local.waiting import until
from ottla.replication.throttle import UNLIMITED, Throttle
from tests.harness.in_process import brokers, run
from tests.replication.test_partition import batch


def test_a_debt_is_paid_at_the_rate_that_was_set():
    throttle = Throttle(1000)
    throttle.spend(5000, now=10.0)
    assert not throttle.ready(now=14.9)
    throttle.spend(1000, now=14.0)
    assert not throttle.ready(now=15.9)
    assert throttle.ready(now=16.0)


def test_unused_quota_is_not_saved():
    throttle = Throttle(1000)
    throttle.spend(1000, now=100.0)
    assert not throttle.ready(now=100.9)
    assert throttle.ready(now=101.0)


@pytest.mark.parametrize(("rate", "free_at"), [(UNLIMITED, 5.0), (10_000, 5.5), (500, 15.0)])
def test_the_rest_of_a_debt_is_paid_at_the_new_rate(rate, free_at):
    throttle = Throttle(1000)
    throttle.spend(10_000, now=0.0)
    throttle.limit(rate, now=5.0)
    assert throttle.free_at == pytest.approx(free_at)


def test_debt_paid_before_the_rate_fell_is_not_owed_again():
    throttle = Throttle()
    throttle.spend(10_485_760, now=0.0)
    throttle.limit(1, now=1.0)
    assert throttle.ready(now=1.0)


@pytest.mark.parametrize("side", ["leader", "follower"])
@pytest.mark.parametrize("lifted", ["rate", "replicas"])
def test_catching_up_continues_when_a_low_throttle_is_removed(tmp_path, side, lifted):
    async def test():
        async with brokers(tmp_path, 2) as (leader, follower):
            behind = await throttled_copy(leader, follower, side)
            if lifted == "rate":
                edits = [ConfigEdit(f"{side}.replication.throttled.rate", None, ConfigOp.delete)]
                await leader.cluster.alter_broker_configs([ConfigAlteration(None, edits)])
            else:
                edits = [ConfigEdit(f"{side}.replication.throttled.replicas", None, ConfigOp.delete)]
                await leader.cluster.alter_topic_configs([ConfigAlteration("t", edits)])
            await until(lambda: behind.log.log_end == 20)

    run(test)


async def throttled_copy(leader: Broker, follower: Broker, side: str):
    """A replica that has fetched a little, and would have to wait an hour for the next piece."""
    configs = {f"{side}.replication.throttled.replicas": "*"}
    await leader.cluster.create_topics([TopicSpec("t", assignments=[(0, [1])], configs=configs)])
    rate = [ConfigEdit(f"{side}.replication.throttled.rate", "300")]
    await leader.cluster.alter_broker_configs([ConfigAlteration(None, rate)])
    one = leader.replica_manager.find("t", 0)
    for _ in range(20):
        now_ms = leader.runtime.wall_ms()
        one.append(batch(bytes(100_000), timestamp=now_ms), 1, now_ms)
    await until(lambda: getattr(follower.config, f"{side}_replication_throttled_rate") == 300)
    await leader.cluster.alter_reassignments([Reassignment("t", 0, [1, 2])])
    await until(lambda: (two := follower.replicas.get("t", 0)) is not None and two.log.log_end)
    behind = follower.replica_manager.find("t", 0)
    assert behind.log.log_end < 20
    return behind
