"""Damage that only the data shows, on one replica beside two good ones: the scrub finds it, and it is copied anew."""

from __future__ import annotations

import pytest

from ottla.sim.cluster import DATA, SimCluster
from ottla.sim.workload import TOPIC, create_topic
from ottla.sim.world import World
from ottla.wire.batch import batches
from tests.sim.test_clusters import SETTINGS, Stage

ROLL_MS = 1000
INTERVAL_MS = 20_000
COUNT = 30


class Scrubbed(Stage):
    """One partition in several segments, and a short interval."""

    def __init__(self, seed: int = 1, replicas: int = 3) -> None:
        settings = {**SETTINGS, "ottla.scrub.interval.ms": str(INTERVAL_MS), "log.roll.ms": str(ROLL_MS)}
        self.world = World(seed)
        self.cluster = SimCluster(self.world, replicas, settings)
        self.cluster.start()
        assert self.world.run(lambda: all(node.ready for node in self.cluster.nodes), 30)
        self.client = self.world.process("client")
        configs = {"min.insync.replicas": str(min(replicas, 2))}
        self.world.run_in(self.client, create_topic(self.client, self.cluster, 1, replicas, configs))
        self.run(5)
        self.index = 0
        for _ in range(3):
            self.write(COUNT // 3)
            self.run(ROLL_MS / 500)
        self.run(6)  # sealed segments are synced

    def logs(self, node):
        disk = self.world.machine(node.name).disk
        names = [name for name in disk.listdir(f"{DATA}/{TOPIC}-0") if name.endswith(".log")]
        return {name: disk.read(f"{DATA}/{TOPIC}-0/{name}") for name in names}

    def flip(self, node, segment=0, batch=1, at=70):
        disk = self.world.machine(node.name).disk
        name = list(self.logs(node))[segment]
        position, header = list(batches(self.logs(node)[name]))[batch]
        disk.flip_bit(f"{DATA}/{TOPIC}-0/{name}", position + at)
        return header.base_offset

    def partition_of(self, node):
        return node.broker.replicas.get(TOPIC, 0)

    def scrubber(self, node):
        return node.broker.scrubber

    def content(self, node):
        return b"".join(self.logs(node).values())


@pytest.mark.parametrize("at", [3, 13, 70], ids=["offset", "epoch", "record"])
@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
def test_a_flipped_bit_is_found_and_copied_anew_before_anybody_asks(leads, at):
    stage = Scrubbed()
    node = stage.leader if leads else next(each for each in stage.cluster.nodes if each is not stage.leader)
    whole = stage.content(stage.leader)
    stage.flip(node, at=at)
    assert stage.content(node) != whole
    assert stage.world.run(lambda: stage.scrubber(node).damaged == 1, 2 * INTERVAL_MS / 1000)
    assert stage.world.run(lambda: node.id not in stage.partition.in_sync, 20), "it may be elected meanwhile"
    assert stage.leader is not node
    stage.become_in_sync(20)
    assert {stage.content(each) for each in stage.cluster.nodes} == {whole}
    assert stage.partition_of(node).log.damage is None
    stage.write(3)
    assert stage.world.failures == []
    stage.world.end()


def test_a_single_replica_goes_on_and_names_what_is_missing():
    stage = Scrubbed(replicas=1)
    (node,) = stage.cluster.nodes
    offset = stage.flip(node)
    assert stage.world.run(lambda: stage.scrubber(node).damaged == 1, 2 * INTERVAL_MS / 1000)
    stage.write(3)
    assert stage.partition_of(node).log.damage.missing == ((offset, offset + 1),)
    node.stop()
    assert stage.world.run(lambda: not node.running, 30)
    node.start()
    assert stage.world.run(lambda: node.ready, 30)
    assert stage.partition_of(node).log.damage.missing == ((offset, offset + 1),)
    stage.write(3)
    assert stage.world.failures == []
    stage.world.end()


def test_a_pass_goes_on_where_it_was_when_the_broker_is_started_again():
    stage = Scrubbed()
    node = stage.leader
    assert stage.world.run(lambda: stage.scrubber(node).ratio > 0.5, 2 * INTERVAL_MS / 1000)
    before = stage.scrubber(node).progress
    node.stop()
    assert stage.world.run(lambda: not node.running, 30)
    node.start()
    assert stage.world.run(lambda: node.ready and stage.scrubber(node).progress.cursor is not None, 30)
    after = stage.scrubber(node).progress
    assert after.passes == before.passes
    assert after.cursor >= before.cursor
    stage.world.end()


class Stopped(Stage):
    """All brokers stopped cleanly, broker 3 last; one partition of it is damaged before it starts first."""

    def __init__(self) -> None:
        super().__init__()
        for self.index in range(3):
            self.write(10)
        self.run(3)
        for broker_id in (1, 2, 3):
            self.node(broker_id).stop()
            assert self.world.run(lambda: not self.node(broker_id).running, 60)  # noqa: B023
        self.index = 0
        self.disk = self.world.machine("broker-3").disk


@pytest.mark.parametrize("what", ["removed", "emptied", "cut"])
def test_a_broker_leaves_the_sets_of_the_partition_that_is_damaged_and_of_no_other(what):
    stage = Stopped()
    path = f"{DATA}/{TOPIC}-0/{0:020d}.log"
    content = stage.disk.read(path)
    if what == "removed":
        stage.disk.remove(path)
    else:
        stage.disk.write_atomic(path, content[: len(content) // 2 if what == "cut" else 0])
    stage.node(3).start()
    assert stage.world.run(lambda: stage.node(3).ready, 60)
    assert stage.world.run(lambda: all(part.leader == 3 for part in stage.partitions[1:]), 20), "its other partitions"
    stage.run(5)
    assert 3 not in stage.partition.in_sync
    assert 3 not in stage.partition.eligible
    assert stage.partition.leader != 3
    for broker_id in (1, 2):
        stage.node(broker_id).start()
    stage.become_in_sync(60)
    for each in stage.cluster.nodes:
        assert stage.world.machine(each.name).disk.read(path)[: len(content)] == content
    stage.write(3)
    assert stage.world.failures == []
    stage.world.end()
