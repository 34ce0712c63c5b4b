"""Transactional copies in a simulated cluster under fire: whatever fails, all is copied, once and in order."""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest

from ottla.client.consumer import Consumer
from ottla.client.embedded import TopicPartition
from ottla.client.errors import ClientError
from ottla.client.group_offsets import OffsetAndMetadata
from ottla.client.producer import Producer
from ottla.sim.cluster import SimCluster
from ottla.sim.faults import Faults
from ottla.sim.history import History
from ottla.sim.simulation import _logged
from ottla.sim.workload import TOPIC, Client, create_topic
from ottla.sim.world import World

SEEDS = range(int(os.environ.get("OTTLA_TEST_SEEDS", "4")))
PARTITIONS = 3
MINUTES = 1.0
GROUP = "copy"


class Copier(Client):
    """Copies numbers to its partition, some in each transaction, together with how far it has come."""

    def __init__(self, cluster: SimCluster, history: History, place: int) -> None:
        super().__init__(cluster, history, f"copier-{place}", PARTITIONS)
        self.place = place
        self.random = cluster.world.chance(f"copier {place}")
        self.committed = 0
        self.ended = 0
        self.idle = False

    @property
    def settled(self) -> bool:
        return self.idle

    @property
    def state(self) -> str:
        return f"has copied {self.committed}"

    async def live(self, runtime):
        while True:
            with contextlib.suppress(ClientError):
                await self._copy(runtime)
            await asyncio.sleep(0.5)

    async def _copy(self, runtime):
        bootstrap = self.cluster.bootstrap
        producer = Producer(
            bootstrap,
            runtime=runtime,
            transactional_id=self.name,
            transaction_timeout_ms=20_000,
            request_timeout_ms=5_000,
            delivery_timeout_ms=30_000,
            linger_ms=0,
        )
        consumer = Consumer(bootstrap_servers=bootstrap, group_id=GROUP, runtime=runtime, request_timeout_ms=5_000)
        try:
            await producer.start()
            await consumer.start()
            while not self.quiet:
                await self._step(producer, consumer)
                await asyncio.sleep(self.random.choice([0.0, 0.1, 1.0]))
            self.idle = True
            await asyncio.sleep(3600)
        except ClientError:
            await consumer.stop()
            await producer.stop()
            raise

    async def _step(self, producer, consumer):
        place = TopicPartition(TOPIC, self.place)
        start = await consumer.committed(place) or 0
        assert start >= self.committed, f"{self.name}: {start} is committed, and was {self.committed}"
        self.committed = start
        end = start + self.random.randint(1, 8)
        await producer.begin_transaction()
        try:
            for number in range(start, end):
                sent = await producer.send(TOPIC, b"%d" % number, partition=self.place)
                sent.add_done_callback(lambda future: future.cancelled() or future.exception())
            await producer.send_offsets_to_transaction({place: OffsetAndMetadata(end)}, GROUP)
            if self.random.random() < 0.8:
                await producer.commit_transaction()
                self.ended += 1
                self.committed = end
            else:
                await producer.abort_transaction()
        except ClientError as error:
            if error.fatal:
                raise
            await producer.abort_transaction()


async def everything(runtime, cluster, place):
    """What a reader of committed records sees, and where it should end."""
    partition = TopicPartition(TOPIC, place)
    consumer = Consumer(
        bootstrap_servers=cluster.bootstrap, group_id=GROUP, runtime=runtime, isolation_level="read_committed"
    )
    async with consumer:
        consumer.assign([partition])
        committed = await consumer.committed(partition) or 0
        await consumer.seek_to_beginning(partition)
        end = (await consumer.end_offsets([partition]))[partition]
        values = []
        while await consumer.position(partition) < end:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                values += [record.value for record in records]
        return committed, values


def copied(seed):
    world = World(seed)
    random = world.chance("transactions")
    cluster = SimCluster(
        world,
        3,
        {
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "offsets.topic.replication.factor": "3",
            "offsets.topic.num.partitions": "2",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.num.partitions": "2",
            "zookeeper.session.timeout.ms": random.choice(["2000", "6000"]),
            "replica.lag.time.max.ms": random.choice(["1500", "5000"]),
            "log.roll.ms": random.choice(["1000", "604800000"]),
        },
    )
    history = History(world.trace, lambda partition: cluster.leader_epoch(TOPIC, partition))
    copiers = [Copier(cluster, history, place) for place in range(PARTITIONS)]
    with _logged(world):
        cluster.start()
        assert world.run(lambda: all(node.ready for node in cluster.nodes), 60)
        admin = world.process("admin")
        world.run_in(admin, create_topic(admin, cluster, PARTITIONS, 3, {}), 60)
        for copier in copiers:
            copier.start()
        faults = Faults(cluster, list(copiers), world.chance("faults"), every_s=random.choice([2.0, 6.0]))
        faults.begin()
        world.run(lambda: bool(world.failures), MINUTES * 60)
        faults.heal()
        for copier in copiers:
            if not copier.running:
                copier.start()
        before = [copier.ended for copier in copiers]
        going = lambda: all(c.ended > was for c, was in zip(copiers, before, strict=True))  # noqa: E731
        assert world.run(lambda: going() or bool(world.failures), 300), [copier.state for copier in copiers]
        for copier in copiers:
            copier.quiet = True
        assert world.run(lambda: all(copier.idle for copier in copiers) or bool(world.failures), 120)
        assert not world.failures, world.failures
        reader = world.process("reader")
        for place in range(PARTITIONS):
            committed, values = world.run_in(reader, everything(reader, cluster, place), 120)
            assert values == [b"%d" % number for number in range(committed)]
            assert committed >= copiers[place].committed
    world.end()
    return sum(copier.committed for copier in copiers), dict(faults.counts)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_transactional_copy_is_the_original(seed):
    count, _ = copied(seed)
    assert count > 0
