"""Single faults in an order that once was a defect."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client.errors import ClientError
from ottla.client.producing.producer import Producer
from ottla.local.history import History
from ottla.sim.cluster import SimCluster
from ottla.sim.store import STORE
from ottla.sim.workload import TOPIC, Reader, create_topic
from ottla.sim.world import World

SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "zookeeper.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "1500",
}


class Stage:
    """Three brokers, a topic with three partitions, one led by each. `index` is the one that the play is about."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.cluster = SimCluster(self.world, 3, SETTINGS)
        self.cluster.start()
        assert self.world.run(lambda: all(node.ready for node in self.cluster.nodes), 30)
        self.client = self.world.process("client")
        self.world.run_in(self.client, create_topic(self.client, self.cluster, 3, 3, {}))
        self.run(5)
        self.index = next(at for at, part in enumerate(self.partitions) if part.leader != self.controller.id)

    def run(self, seconds):
        self.world.run(lambda: False, seconds)

    def node(self, broker_id):
        return self.cluster.nodes[broker_id - 1]

    @property
    def partitions(self):
        return self.cluster.image().topics[TOPIC].partitions

    @property
    def partition(self):
        return self.partitions[self.index]

    @property
    def leader(self):
        return self.node(self.partition.leader)

    @property
    def controller(self):
        return self.node(self.cluster.image().controller_id)

    def write(self, count, *, seconds=60.0):
        """Acknowledged by all."""

        async def send():
            async with Producer(self.cluster.bootstrap, runtime=self.client, request_timeout_ms=5_000) as producer:
                for number in range(count):
                    await producer.send_and_wait(TOPIC, b"w:%d:%d:" % (self.index, number), partition=self.index)

        self.world.run_in(self.client, send(), seconds)

    def keep_writing(self):
        """In the background, whether it is acknowledged or not."""

        async def send():
            async with Producer(self.cluster.bootstrap, runtime=self.client, request_timeout_ms=5_000) as producer:
                while True:
                    sent = await producer.send(TOPIC, b"w:0:0:", partition=self.index)
                    sent.add_done_callback(lambda future: future.exception())
                    await asyncio.sleep(0.2)

        self.client.loop.call_soon(lambda: self.client.spawn(send(), name="keep writing"))

    def cut(self, *links):
        for link in links:
            self.world.network.cut(*link)

    def heal(self, *links):
        for link in links:
            self.world.network.heal(*link)

    def become_in_sync(self, seconds):
        assert self.world.run(self.cluster.in_sync, seconds), self.partition


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.world.failures == []
    stage.world.end()


def test_a_follower_rejoins_the_isr_after_registering_again_without_a_new_record(stage):
    stage.write(3)
    follower = next(node for node in stage.cluster.nodes if node not in (stage.leader, stage.controller))
    links = [(follower.name, STORE), (STORE, follower.name)]
    stage.cut(*links)
    assert stage.world.run(lambda: follower.id not in stage.partition.in_sync, 20)
    stage.heal(*links)
    stage.become_in_sync(20)


def test_a_leader_proposes_an_isr_change_while_the_last_alter_partition_is_unanswered(stage):
    leader, controller = stage.leader, stage.controller
    third = next(node for node in stage.cluster.nodes if node not in (leader, controller))
    stage.keep_writing()
    stage.run(2)
    between = [(leader.name, third.name), (third.name, leader.name)]
    stage.cut(*between)
    assert stage.world.run(lambda: third.id not in stage.partition.in_sync, 10)
    stage.heal(*between)
    stage.become_in_sync(10)
    stage.run(1)
    # The connection to the controller stands by now, and so a request gets through while no answer does.
    stage.cut(*between, (controller.name, leader.name))
    assert stage.world.run(lambda: len(stage.partition.in_sync) < 3, 10)
    stage.run(4)
    stage.heal(*between, (controller.name, leader.name))
    stage.become_in_sync(30)


def test_a_silent_follower_does_not_rejoin_the_isr(stage):
    stage.index = next(at for at, part in enumerate(stage.partitions) if part.leader == stage.controller.id)
    leader = stage.leader
    stage.keep_writing()
    stage.run(2)
    stage.cut(*((node.name, leader.name) for node in stage.cluster.nodes if node is not leader))
    assert stage.world.run(lambda: stage.partition.in_sync == (leader.id,), 10)
    epoch = stage.partition.partition_epoch
    stage.run(20)
    assert stage.partition.partition_epoch == epoch, "nothing has changed, and so the set has not"


def test_a_leader_that_lost_its_log_end_serves_no_consumer_before_the_next_election(stage):
    leader, controller = stage.leader, stage.controller
    history = History()
    reader = Reader(stage.cluster, history, "reader", 3, stage.world.chance("reader"), None)
    stage.write(20)
    reader.start()
    assert stage.world.run(lambda: history.position("reader.1", stage.index) == 20, 20)
    stage.cut((controller.name, STORE), (STORE, controller.name))
    leader.kill(power=True)
    leader.start()
    stage.run(3)
    stage.world.network.heal_all()
    stage.write(1)  # a value that is there already, from another producer
    assert stage.world.run(lambda: history.position("reader.1", stage.index) == 21, 30)
    assert [violation for violation in history.violations if violation.kind.value == "backward"] == []
    assert reader.complaints == 0


def test_a_new_producer_starts_as_soon_as_the_store_is_back(stage):
    stage.world.store.go_away()
    stage.run(1)
    done: list[object] = []

    async def send():
        try:
            async with Producer(stage.cluster.bootstrap, runtime=stage.client) as producer:
                done.append(await producer.send_and_wait(TOPIC, b"w:0:0:"))
        except ClientError as error:
            done.append(error)

    stage.client.loop.call_soon(lambda: stage.client.spawn(send(), name="send"))
    stage.run(20)
    assert done == []
    stage.world.store.come_back()
    assert stage.world.run(lambda: bool(done), 20)
    assert not isinstance(done[0], ClientError)


@pytest.mark.parametrize("delay_s", [0.0005, 0.001, 0.002, 0.004, 0.008])
def test_a_resumed_broker_does_not_trust_its_old_session(stage, delay_s):
    """Requests that have waited for it come before the news that another has its place: what it remembers of groups
    may be out of date."""
    node = stage.leader
    assert node.broker.cluster.has_session_lease
    # It stops when it has just answered its followers, and their next requests are on their way to it.
    stage.keep_writing()
    log = node.broker.replicas.get(TOPIC, stage.index).log
    end = log.log_end
    assert stage.world.run(lambda: log.log_end > end, 10)
    stage.run(delay_s)
    node.pause()
    stage.run(20)
    assert stage.leader is not node
    led = [partition for partition in node.broker.replicas if partition.leads and len(partition.replicas) > 1]
    assert led
    assert not node.broker.cluster.has_session_lease  # at the moment when it goes on
    node.resume()
    # What its followers sent before they left it comes in now, and proves nothing.
    for partition in led:
        assert not stage.world.run_in(node.broker.runtime, node.broker.replica_manager.still_followed(partition))
    stage.run(20)
    assert node.broker.cluster.has_session_lease
