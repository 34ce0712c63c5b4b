"""Network proxies: a leader that is cut off acknowledges nothing until the network is healed."""

from __future__ import annotations

import asyncio

import pytest

from ottla.blocking.thread import LoopThread
from ottla.drills.probe import Acknowledged, Probe
from ottla.local.cluster import LocalCluster
from ottla.local.proxy import ClusterProxies, both_ways
from ottla.local.waiting import until

SETTINGS = {"replica.lag.time.max.ms": "1000", "min.insync.replicas": "2"}


@pytest.fixture
def cluster(tmp_path):
    cluster = LocalCluster(tmp_path, 3, settings=SETTINGS)
    thread = LoopThread("proxies")
    proxies = ClusterProxies(cluster, thread, clients=False)
    cluster.start()
    yield cluster, proxies
    cluster.kill()
    proxies.close()
    thread.close()


def test_a_leader_without_reachable_followers_acknowledges_nothing(cluster):
    brokers, proxies = cluster

    async def test():
        probe = Probe(brokers)
        await until(probe.registered_brokers, "three brokers", holds=lambda known: known == {(1, 2, 3)})
        await probe.create("orders", [(1, 2, 3)])
        assert isinstance(await written(probe, "before"), Acknowledged)
        proxies.cut(both_ways(1, (2, 3)))
        assert not isinstance(await probe.write("orders", ["alone"]), Acknowledged)
        proxies.heal()
        assert isinstance(await written(probe, "after"), Acknowledged)

    asyncio.run(test())


async def written(probe, value):
    return await until(
        lambda: probe.write("orders", [value]), "a write", holds=lambda outcome: isinstance(outcome, Acknowledged)
    )
