"""Operator of a simulated cluster: creates and deletes topics, reassigns replicas, requests leader elections."""

from __future__ import annotations

import asyncio
from enum import Enum
from random import Random

from ottla.client.core.driver import Driver
from ottla.client.errors import ClientError
from ottla.errors import ErrorCode
from ottla.local.history import History
from ottla.sim.cluster import SimCluster
from ottla.sim.runtime import SimRuntime
from ottla.sim.workload import REQUEST_TIMEOUT_MS, TOPIC, Client, driver_of
from ottla.wire.schema.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.wire.schema.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.wire.schema.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from ottla.wire.schema.elect_leaders import ElectLeadersRequest, ElectLeadersResponse

PREFIX = "extra-"
TIMEOUT_S = REQUEST_TIMEOUT_MS / 1000


class Fate(Enum):
    """The known state of a topic."""

    THERE = "there"
    GONE = "gone"
    IN_DOUBT = "in doubt"


class Operator(Client):
    def __init__(
        self, cluster: SimCluster, history: History, name: str, partitions: int, replicas: int, random: Random
    ) -> None:
        super().__init__(cluster, history, name, partitions)
        self.topics: dict[str, Fate] = {}
        self._replicas = replicas
        self._random = random
        self._pause_s = random.choice([1.0, 5.0])

    async def live(self, runtime: SimRuntime) -> None:
        driver = driver_of(runtime, self.cluster)
        driver.wake()
        while True:
            await asyncio.sleep(self._random.expovariate(1 / self._pause_s))
            if self.quiet:
                continue
            act = self._random.choice([self._create, self._create, self._delete, self._reassign, self._elect])
            try:
                await act(driver)
            except ClientError:
                pass  # no broker can be asked, or none answers; the unknown outcome is noted

    async def _create(self, driver: Driver) -> None:
        name = f"{PREFIX}{len(self.topics)}"
        self.topics[name] = Fate.IN_DOUBT
        topic = CreatableTopic(name=name, num_partitions=self._random.randint(1, 3), replication_factor=self._replicas)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=REQUEST_TIMEOUT_MS)
        answer = await driver.call(request, CreateTopicsResponse, timeout_s=TIMEOUT_S)
        if answer.topics[0].error_code in (ErrorCode.none, ErrorCode.topic_already_exists):
            self.topics[name] = Fate.THERE

    async def _delete(self, driver: Driver) -> None:
        there = [name for name, fate in self.topics.items() if fate is not Fate.GONE]
        if not there:
            return
        name = self._random.choice(there)
        was, self.topics[name] = self.topics[name], Fate.IN_DOUBT
        topics = [DeleteTopicState(name=name)]
        request = DeleteTopicsRequest(topics=topics, topic_names=[name], timeout_ms=REQUEST_TIMEOUT_MS)
        answer = await driver.call(request, DeleteTopicsResponse, timeout_s=TIMEOUT_S)
        code = answer.responses[0].error_code
        if code == ErrorCode.none:
            self.topics[name] = Fate.GONE
        elif code in (ErrorCode.not_controller, ErrorCode.unknown_topic_or_partition):
            self.topics[name] = was if code == ErrorCode.not_controller else Fate.IN_DOUBT

    async def _reassign(self, driver: Driver) -> None:
        """Other brokers, where there are more than replicas; else another order, and so another preferred leader."""
        brokers = [node.id for node in self.cluster.nodes]
        replicas = self._random.sample(brokers, self._replicas)
        part = ReassignablePartition(partition_index=self._random.randrange(self.partitions), replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=TOPIC, partitions=[part])], timeout_ms=REQUEST_TIMEOUT_MS
        )
        await driver.call(request, AlterPartitionReassignmentsResponse, timeout_s=TIMEOUT_S)

    async def _elect(self, driver: Driver) -> None:
        request = ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=REQUEST_TIMEOUT_MS)
        await driver.call(request, ElectLeadersResponse, timeout_s=TIMEOUT_S)

    def wrong(self) -> list[str]:
        """Violations of the guarantees, or work that is not complete yet."""
        topics = self.cluster.image().topics
        found = [f"{name} is gone" for name, fate in self.topics.items() if fate is Fate.THERE and name not in topics]
        found += [f"{name} is there" for name, fate in self.topics.items() if fate is Fate.GONE and name in topics]
        for topic in topics.values():
            for index, part in enumerate(topic.partitions):
                if part.adding or part.removing:
                    found.append(f"{topic.name}-{index} is still moving: {part.adding} come, {part.removing} go")
        for node in self.cluster.nodes:
            for directory in self.cluster.world.machine(node.name).disk.listdir("data"):
                topic_name = directory.rpartition("-")[0]
                if directory.startswith(PREFIX) and topic_name not in topics:
                    found.append(f"{node.name} still has {directory}")
        return found

    @property
    def settled(self) -> bool:
        return not self.wrong()

    @property
    def state(self) -> str:
        return "finds: " + ", ".join(self.wrong()[:5])
