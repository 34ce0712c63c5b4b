"""Scrubber: counts exactly the bytes that it has read."""

from __future__ import annotations

from ottla.cluster.requests import TopicSpec
from ottla.sim.cluster import SimCluster
from ottla.sim.runtime import SimRuntime
from ottla.sim.world import World
from tests.replication.test_partition import batch


def test_a_pass_over_nothing_is_not_counted_and_the_next_one_comes_soon():
    world = World(1)
    cluster = SimCluster(world, 1, {"ottla.scrub.interval.ms": "2000"})
    cluster.start()
    (node,) = cluster.nodes
    assert world.run(lambda: node.ready, 30)
    broker = node.broker
    assert broker is not None
    assert isinstance(broker.runtime, SimRuntime)
    world.run_in(broker.runtime, broker.cluster.create_topics([TopicSpec("t", assignments=[(0, [1])])]))
    assert world.run(lambda: broker.replicas.get("t", 0) is not None, 5)
    partition = broker.replica_manager.find("t", 0)
    partition.append(batch(b"a", timestamp=broker.runtime.wall_ms()), 1, broker.runtime.wall_ms())
    scrub = broker.scrubber
    world.run(lambda: False, 8)
    assert partition.log.recovery_point == 0, "nothing was synced yet"
    assert (scrub.passes, scrub.read_bytes, scrub.progress.finished_ms) == (0, 0, -1)
    assert "passes=0 finished_ms=-1" in scrub.status()
    partition.log.sync()
    assert world.run(lambda: scrub.passes > 0, 5)
    assert scrub.read_bytes > 0
    assert scrub.progress.finished_ms > 0
    assert world.failures == []
    world.end()
