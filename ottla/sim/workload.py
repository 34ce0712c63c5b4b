"""Workload of a simulated cluster: its clients, which report the answers they got to the history.

Producers write in bursts, readers read everything and sometimes start again, members of a group share the topic, a
surveyor asks for end offsets. All of them are `ottla.client`, each on a simulated machine of its own.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from functools import partial
from random import Random
from typing import Any, Literal

from ottla.client.consuming.consumer import Consumer
from ottla.client.consuming.fetcher import Fetcher
from ottla.client.consuming.subscription_state import ConsumerSettings
from ottla.client.core.driver import Driver
from ottla.client.core.metadata import Metadata, MetadataSettings
from ottla.client.core.network import BrokerConnections
from ottla.client.errors import ClientError
from ottla.client.producing.producer import Producer
from ottla.client.values import EARLIEST, LATEST, RecordMetadata, TopicPartition
from ottla.errors import ErrorCode
from ottla.local.history import End, History, Value
from ottla.sim.cluster import PORT, SimCluster
from ottla.sim.runtime import SimRuntime
from ottla.wire.schema.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.wire.schema.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

TOPIC = "log"
Protocol = Literal["classic", "consumer"]
REQUEST_TIMEOUT_MS = 8_000
DELIVERY_TIMEOUT_MS = 120_000
COMMIT_AT_ONCE_S = 0.1


class Client(ABC):
    """A program on a machine of its own, which may be killed; then another one replaces it."""

    def __init__(self, cluster: SimCluster, history: History, name: str, partitions: int) -> None:
        self.cluster = cluster
        self.history = history
        self.name = name
        self.partitions = partitions
        self.quiet = False
        """Begin nothing new; complete what was begun."""
        self.lives = 0
        self._runtime: SimRuntime | None = None

    @property
    def running(self) -> bool:
        return self._runtime is not None

    def start(self) -> None:
        assert self._runtime is None, f"{self.name} runs already"
        self.lives += 1
        runtime = self._runtime = self.cluster.world.process(self.name)
        runtime.loop.call_soon(self._begin, runtime)

    def _begin(self, runtime: SimRuntime) -> None:
        runtime.spawn(self.live(runtime), name=self.name)

    def kill(self) -> None:
        if self._runtime is not None:
            self.cluster.world.trace.line(self.name, "is killed")
            self.cluster.world.kill(self._runtime)
            self._runtime = None

    @abstractmethod
    def live(self, runtime: SimRuntime) -> Coroutine[Any, Any, None]: ...

    @property
    def settled(self) -> bool:
        """Whether everything it waits for has come, once it is quiet."""
        return True

    @property
    def state(self) -> str:
        return "waits"


def driver_of(runtime: SimRuntime, cluster: SimCluster) -> Driver:
    settings = MetadataSettings(request_timeout_ms=REQUEST_TIMEOUT_MS, metadata_max_age_ms=30_000)
    bootstrap = [(node.name, PORT) for node in cluster.nodes]
    metadata = Metadata(bootstrap, settings, first=runtime.random.randrange(len(bootstrap)))
    return Driver(runtime, metadata, BrokerConnections(runtime, client_id=runtime.machine.name, setup_timeout_s=5.0))


class Writer(Client):
    """Writes bursts of values to all partitions."""

    def __init__(self, cluster: SimCluster, history: History, name: str, partitions: int, random: Random) -> None:
        super().__init__(cluster, history, name, partitions)
        self._random = random
        self._options = {
            "linger_ms": random.choice([0, 0, 5, 50]),
            "max_in_flight_requests_per_connection": random.choice([1, 2, 5]),
            "batch_size": random.choice([200, 2_000, 16_384]),
        }
        self._pause_s = random.choice([0.5, 2.0, 5.0])
        self._burst_max = random.choice([1, 5, 20])
        self._value_bytes = random.choice([0, 100, 1_000])
        self._underway = 0

    @property
    def settled(self) -> bool:
        return self._underway == 0

    @property
    def state(self) -> str:
        return f"waits for {self._underway} acknowledgements"

    def kill(self) -> None:
        super().kill()
        self._underway = 0

    async def live(self, runtime: SimRuntime) -> None:
        producer = await self._started(runtime)
        identity = f"{self.name}.{self.lives}"
        numbers = [0] * self.partitions
        while True:
            if not self.quiet:
                for _ in range(self._random.randint(1, self._burst_max)):
                    partition = self._random.randrange(self.partitions)
                    value = Value(identity, partition, numbers[partition])
                    numbers[partition] += 1
                    await self._send(producer, value)
            await asyncio.sleep(self._random.expovariate(1 / self._pause_s))

    async def _started(self, runtime: SimRuntime) -> Producer:
        """A program that finds no broker tries again."""
        while True:
            producer = Producer(
                self.cluster.bootstrap,
                runtime=runtime,
                config=self._options,
                partitioner="round_robin",
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
                metadata_max_age_ms=30_000,
            )
            try:
                await producer.start()
            except ClientError:
                await asyncio.sleep(0.5)
            else:
                return producer

    async def _send(self, producer: Producer, value: Value) -> None:
        self.history.sent(value)
        self._underway += 1
        try:
            future = await producer.send(TOPIC, value.encode(self._value_bytes), partition=value.partition)
        except ClientError:
            self._underway -= 1
            self.history.given_up(value)
            return
        future.add_done_callback(partial(self._outcome, value))

    def _outcome(self, value: Value, future: asyncio.Future[RecordMetadata]) -> None:
        self._underway -= 1
        if future.exception() is None:
            self.history.acknowledged(value, future.result().offset)
        else:
            self.history.given_up(value)


class Reader(Client):
    """Reads all partitions, each from where it is; sometimes it begins again."""

    def __init__(
        self, cluster: SimCluster, history: History, name: str, partitions: int, random: Random, again_s: float | None
    ) -> None:
        super().__init__(cluster, history, name, partitions)
        self._random = random
        self._again_s = again_s
        self._settings = ConsumerSettings(
            auto_offset_reset=EARLIEST,
            fetch_sessions=random.random() < 0.7,
            max_partition_fetch_bytes=random.choice([4_000, 1_048_576]),
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            fetch_max_wait_ms=random.choice([500, 2_000]),
        )
        self.complaints = 0

    async def live(self, runtime: SimRuntime) -> None:
        driver = driver_of(runtime, self.cluster)
        tps = [TopicPartition(TOPIC, index) for index in range(self.partitions)]
        fetcher = Fetcher(driver.metadata, self._settings)
        driver.attach(fetcher)
        identity = f"{self.name}.{self.lives}"
        for tp in tps:
            self.history.begins(identity, tp.partition, 0)
        fetcher.assign(tps)
        driver.wake()
        again_at = self._next_again(runtime.now())
        while True:
            self._take(fetcher, identity)
            if runtime.now() >= again_at and not self.quiet:
                again_at = self._next_again(runtime.now())
                tp = self._random.choice(tps)
                offset = self._random.randint(0, self.history.position(identity, tp.partition))
                self.history.begins(identity, tp.partition, offset)
                fetcher.seek(tp, offset)
            driver.wake()
            await driver.changed(runtime.now() + 1.0)

    def _next_again(self, now: float) -> float:
        return now + (self._random.expovariate(1 / self._again_s) if self._again_s else float("inf"))

    def _take(self, fetcher: Fetcher, identity: str) -> None:
        try:
            while taken := fetcher.take(100):
                for tp, records in taken.items():
                    for record in records:
                        assert record.value is not None
                        self.history.read(identity, tp.partition, record.offset, Value.decode(record.value))
        except ClientError as error:
            self.complaints += 1
            self.cluster.world.trace.line(self.name, f"complains: {error}")

    @property
    def settled(self) -> bool:
        identity = f"{self.name}.{self.lives}"
        return all(
            self.history.position(identity, index) >= self.history.end_known(index).offset
            for index in range(self.partitions)
        )

    @property
    def state(self) -> str:
        identity = f"{self.name}.{self.lives}"
        read = (
            f"{index}: {self.history.position(identity, index)} of {self.history.end_known(index).offset}"
            for index in range(self.partitions)
        )
        return "has read " + ", ".join(read)


class Surveyor(Client):
    """Asks leaders where their partitions end."""

    def __init__(self, cluster: SimCluster, history: History, name: str, partitions: int, random: Random) -> None:
        super().__init__(cluster, history, name, partitions)
        self._random = random
        self._answered: dict[int, bool] = {}

    async def live(self, runtime: SimRuntime) -> None:
        driver = driver_of(runtime, self.cluster)
        driver.metadata.want(TOPIC)
        driver.wake()
        while True:
            for index in range(self.partitions):
                try:
                    await self._ask(driver, runtime, index)
                except ClientError:
                    driver.metadata.refresh()
                    driver.wake()
            await asyncio.sleep(self._random.expovariate(1.0))

    async def _ask(self, driver: Driver, runtime: SimRuntime, index: int) -> None:
        leader = driver.metadata.leading_broker(TOPIC, index, runtime.now())
        self._answered[index] = False
        if leader is None:
            driver.metadata.refresh()
            driver.wake()
            return
        known = self.history.end_known(index)
        request = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(name=TOPIC, partitions=[ListOffsetsPartition(partition_index=index, timestamp=LATEST)])
            ],
        )
        answer = await driver.call(request, ListOffsetsResponse, leader, timeout_s=REQUEST_TIMEOUT_MS / 1000)
        reported = answer.topics[0].partitions[0]
        if reported.error_code:
            driver.metadata.refresh()
            driver.wake()
        else:
            self._answered[index] = True
            self.history.end_reported(index, End(reported.offset, reported.leader_epoch), known)

    @property
    def settled(self) -> bool:
        return all(self._answered.get(index) for index in range(self.partitions))

    @property
    def state(self) -> str:
        silent = [str(index) for index in range(self.partitions) if not self._answered.get(index)]
        return f"has no end offsets of partitions {', '.join(silent)}"


class Member(Client):
    """Shares the partitions with the other members of its group, and commits its position."""

    def __init__(
        self,
        cluster: SimCluster,
        history: History,
        name: str,
        partitions: int,
        random: Random,
        *,
        group: str,
        kind: Protocol,
    ) -> None:
        super().__init__(cluster, history, name, partitions)
        self._random = random
        self._group = group
        self._kind: Protocol = kind

    async def live(self, runtime: SimRuntime) -> None:
        consumer = await self._started(runtime)
        while True:
            try:
                await self._read(runtime, consumer)
            except ClientError as error:
                self.cluster.world.trace.line(self.name, f"complains: {error}", minor=True)
                await asyncio.sleep(0.1)

    async def _started(self, runtime: SimRuntime) -> Consumer:
        while True:
            consumer = Consumer(
                TOPIC,
                bootstrap_servers=self.cluster.bootstrap,
                runtime=runtime,
                group_id=self._group,
                group_protocol=self._kind,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                default_api_timeout_ms=2 * REQUEST_TIMEOUT_MS,
                metadata_max_age_ms=30_000,
                session_timeout_ms=10_000,
                # A coordinator that loses power while a member waits to join sends no word: it asks again after this.
                max_poll_interval_ms=60_000,
            )
            try:
                await consumer.start()
            except ClientError:
                await asyncio.sleep(0.5)
            else:
                return consumer

    async def _read(self, runtime: SimRuntime, consumer: Consumer) -> None:
        offsets: dict[TopicPartition, int] = {}
        for tp, records in (await consumer.getmany(timeout_ms=1_000)).items():
            for record in records:
                value = Value.decode(record.value)
                self.history.group_read(self._group, self.name, tp.partition, record.offset, value)
                offsets[tp] = record.offset + 1
        if offsets:
            await self._commit(runtime, consumer, offsets)
        if self._random.random() < 0.1:
            tp = TopicPartition(TOPIC, self._random.randrange(self.partitions))
            known = self.history.commit_known(self._group, tp.partition)
            committed = await consumer.committed(tp)
            self.history.commit_reported(self._group, tp.partition, committed or 0, known)

    async def _commit(self, runtime: SimRuntime, consumer: Consumer, offsets: dict[TopicPartition, int]) -> None:
        began = runtime.now()
        for tp, offset in offsets.items():
            self.history.commits(self._group, tp.partition, offset)
        try:
            await consumer.commit(offsets)
        except ClientError:
            for tp, offset in offsets.items():
                self.history.commit_doubtful(self._group, tp.partition, offset)
            raise
        for tp, offset in offsets.items():
            if runtime.now() - began > COMMIT_AT_ONCE_S:  # more than one attempt, and the first may still arrive
                self.history.commit_doubtful(self._group, tp.partition, offset)
            self.history.commit_acknowledged(self._group, tp.partition, offset)

    @property
    def settled(self) -> bool:
        return all(
            self.history.covered(self._group, index) >= self.history.end_known(index).offset
            for index in range(self.partitions)
        )

    @property
    def state(self) -> str:
        read = (
            f"{index}: {self.history.covered(self._group, index)} of {self.history.end_known(index).offset}"
            for index in range(self.partitions)
        )
        return f"and its group {self._group} have read " + ", ".join(read)


async def create_topic(
    runtime: SimRuntime, cluster: SimCluster, partitions: int, replicas: int, configs: dict[str, str], name: str = TOPIC
) -> None:
    """By whichever broker takes the request, as often as it takes."""
    driver = driver_of(runtime, cluster)
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=replicas,
                configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
            )
        ],
        timeout_ms=REQUEST_TIMEOUT_MS,
    )
    driver.wake()
    while True:
        try:
            answer = await driver.call(request, CreateTopicsResponse, timeout_s=REQUEST_TIMEOUT_MS / 1000)
        except ClientError:
            await asyncio.sleep(0.2)
            continue
        if answer.topics[0].error_code in (ErrorCode.none, ErrorCode.topic_already_exists):
            break
        await asyncio.sleep(0.2)
    await driver.close()
