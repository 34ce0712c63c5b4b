"""Damage that only the data shows, on one replica beside two good ones: the scrub finds it, and it is copied again."""

from __future__ import annotations

import pytest

from ottla.sim.cluster import DATA, SimCluster
from ottla.sim.workload import TOPIC, create_topic
from ottla.sim.world import World
from ottla.wire.batch import batches
from tests.sim.test_single_faults import SETTINGS, Stage

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
        self.run(6)  # closed segments are synced

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
def test_the_scrub_finds_and_repairs_a_flipped_bit_before_it_is_read(leads, at):
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


def test_a_damaged_single_replica_is_served_and_reports_missing_offsets():
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


def test_a_scrub_pass_continues_after_a_restart():
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
def test_a_broker_leaves_the_isr_of_the_damaged_partition_only(what):
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


class LastLeader(Stage):
    """One partition that one replica may acknowledge alone. Brokers 1 and 2 are stopped, so that broker 3 is all that
    is in sync; then it goes, and loses files."""

    def __init__(self, *, clean: bool) -> None:
        self.world = World(1)
        self.cluster = SimCluster(self.world, 3, {**SETTINGS, "replica.lag.time.max.ms": "8000"})
        self.cluster.start()
        assert self.world.run(lambda: all(node.ready for node in self.cluster.nodes), 30)
        self.client = self.world.process("client")
        configs = {"min.insync.replicas": "1"}
        self.world.run_in(self.client, create_topic(self.client, self.cluster, 1, 3, configs))
        self.run(5)
        self.index = 0
        self.write(10)
        self.run(1)
        for broker_id in (1, 2):
            self.stop(broker_id)
        if clean:
            self.stop(3)
        else:
            self.node(3).kill()
            self.run(10)
        assert self.partition.in_sync == (3,)
        self.disk = self.world.machine("broker-3").disk
        self.path = f"{DATA}/{TOPIC}-0/{0:020d}.log"
        self.whole = self.world.machine("broker-1").disk.read(self.path)

    def stop(self, broker_id):
        self.node(broker_id).stop()
        assert self.world.run(lambda: not self.node(broker_id).running, 60)

    def come_back(self, *broker_ids):
        for broker_id in broker_ids:
            self.node(broker_id).start()
            assert self.world.run(lambda: self.node(broker_id).ready, 60)  # noqa: B023

    def lose(self, what):
        self.disk.rmtree(f"{DATA}/{TOPIC}-0")
        for name in self.disk.listdir(DATA):
            path = f"{DATA}/{name}"
            if what == "everything" and self.disk.is_directory(path):
                self.disk.rmtree(path)
            elif what == "everything" or (what == "checkpoints" and name.endswith("-checkpoint")):
                self.disk.remove(path)

    def all_is_there(self):
        self.become_in_sync(60)
        for each in self.cluster.nodes:
            assert self.world.machine(each.name).disk.read(self.path)[: len(self.whole)] == self.whole
        self.write(3)
        assert self.world.failures == []
        self.world.end()


@pytest.mark.parametrize("order", [(3, 1, 2), (1, 2, 3)], ids=["first", "last"])
@pytest.mark.parametrize("what", ["partition", "checkpoints", "everything"])
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_last_leader_that_lost_files_hands_over_to_a_replica_that_has_more(clean, what, order):
    stage = LastLeader(clean=clean)
    stage.lose(what)
    stage.come_back(*order)
    assert stage.world.run(lambda: stage.partition.leader in (1, 2), 20)
    stage.all_is_there()


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_last_leader_that_lost_files_leads_if_no_other_is_there(clean):
    """Without waiting, if it is known where its log ended."""
    stage = LastLeader(clean=clean)
    stage.lose("partition")
    stage.come_back(3)
    replica = stage.node(3).broker.replicas.get(TOPIC, 0)
    assert stage.world.run(lambda: replica.leads, 2 if clean else 15)
    end = replica.log.log_end
    stage.write(1)
    assert replica.log.log_end == end + 1
    assert end == 10 or not clean, "an offset is given twice"
    assert stage.world.failures == []
    stage.world.end()
