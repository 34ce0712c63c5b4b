"""Links between brokers that are cut: a leader that nobody hears acknowledges nothing, until they are healed."""

from __future__ import annotations

import asyncio
import time

import pytest

from ottla.drills.probe import Acknowledged, Probe
from ottla.local.cluster import LocalCluster
from tests.rounds.links import POSSIBLE, Links

pytestmark = pytest.mark.skipif(not POSSIBLE, reason="needs Linux's table of sockets")

SETTINGS = {"replica.lag.time.max.ms": "1000", "min.insync.replicas": "2"}


@pytest.fixture
def cluster(tmp_path):
    cluster = LocalCluster(tmp_path, 3, settings=SETTINGS)
    links = Links(cluster)
    cluster.start()
    yield cluster, links
    cluster.kill()
    links.close()


def test_a_leader_that_nobody_can_follow_acknowledges_nothing(cluster):
    brokers, links = cluster

    async def test():
        probe = Probe(brokers)
        await until(probe.everybody_knows, lambda known: known == {(1, 2, 3)})
        await probe.create("orders", [(1, 2, 3)])
        assert isinstance(await written(probe, "before"), Acknowledged)
        links.cut([(2, 1), (3, 1), (1, 2), (1, 3)])
        assert not isinstance(await probe.write("orders", ["alone"]), Acknowledged)
        links.heal()
        assert isinstance(await written(probe, "after"), Acknowledged)

    asyncio.run(test())


async def written(probe, value):
    return await until(lambda: probe.write("orders", [value]), lambda outcome: isinstance(outcome, Acknowledged))


async def until(look, holds):
    deadline = time.monotonic() + 30
    while True:
        seen = await look()
        if holds(seen) or time.monotonic() > deadline:
            return seen
        await asyncio.sleep(0.05)
