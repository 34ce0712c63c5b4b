"""Test cluster: broker processes that a test can kill, pause, and cut off from the network."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from ottla.blocking import Admin
from ottla.blocking.thread import LoopThread
from ottla.client.core.broker_connection import BrokerConnection
from ottla.client.errors import ClientError
from ottla.cluster.ensemble import HOST
from ottla.local.cluster import LocalCluster
from ottla.local.processes import BrokerProcess
from ottla.local.proxy import CLIENTS, ClusterProxies, both_ways
from ottla.local.waiting import NotInTime, until, wait_for
from ottla.testing.access import TIMEOUT_S, Topic
from ottla.testing.started import Started
from ottla.wire.schema.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

SESSION_MS: Final = 3000
"""Session timeout of a broker that hangs."""
SETTINGS: Final = {
    "broker.session.timeout.ms": str(SESSION_MS),
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}


class Cluster(Started):
    """Started by `with`, or by `start` and `stop`, in a thread that stays, such as the main one."""

    THREAD = "ottla-test-proxies"

    def __init__(self, brokers: int = 3, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(SETTINGS, config)
        self._count = brokers
        self._proxies: ClusterProxies
        self._local: LocalCluster

    def _begin(self, thread: LoopThread) -> None:
        self._local = LocalCluster(Path(self._directory), self._count, settings=self._settings)
        self._proxies = ClusterProxies(self._local, thread, clients=True, intercept=self._faults.meet)
        self._local.start()

    def _end(self, thread: LoopThread) -> None:
        if hasattr(self, "_local"):
            self._local.kill()  # a clean shutdown is not needed: the data is removed
        if hasattr(self, "_proxies"):
            self._proxies.close()

    # State.

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of the brokers that serve, or of all if none does."""
        chosen = self._local.serving() or list(self._local.brokers.values())
        return ",".join(f"{HOST}:{self._proxies.ports[broker.id]}" for broker in chosen)

    @property
    def brokers(self) -> list[int]:
        return list(self._local.brokers)

    @property
    def alive(self) -> list[int]:
        """Brokers whose processes run, also paused ones and those cut off from the network."""
        return [broker.id for broker in self._local.brokers.values() if broker.running]

    def create_topic(
        self,
        name: str | None = None,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Topic:
        """Create a topic, and wait until all brokers that serve know it."""
        topic = super().create_topic(name, partitions, replication_factor, config)
        assert self._thread is not None
        self._thread.run(self._known_to_all(str(topic)))
        return topic

    async def _known_to_all(self, topic: str) -> None:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        for broker in self._local.serving():
            try:
                connection = await BrokerConnection.open(HOST, broker.port)
            except ClientError:
                continue  # it has ended meanwhile
            try:
                await until(
                    lambda: connection.call(request, MetadataResponse),  # noqa: B023 (awaited here)
                    f"{broker} to know {topic}",
                    TIMEOUT_S,
                    holds=lambda answer: not answer.topics[0].error_code,
                )
            except (ClientError, NotInTime):
                continue
            finally:
                await connection.close()

    def leader(self, topic: str, partition: int = 0, timeout: float = TIMEOUT_S) -> int:
        """The leader, as soon as there is one."""
        with Admin(self.bootstrap_servers) as admin:

            def living_leader() -> int:
                described = admin.describe_topics([str(topic)])[str(topic)]
                found = next(each.leader for each in described.partitions if each.partition == partition)
                return found if found in self.alive else 0

            return wait_for(living_leader, f"a leader of {topic}-{partition}", timeout)

    def _process(self, broker_id: int) -> BrokerProcess:
        return self._local[broker_id]

    # Faults.

    def kill(self, broker_id: int) -> None:
        """kill -9."""
        self._process(broker_id).kill()

    def kill_leader(self, topic: str, partition: int = 0) -> int:
        """kill -9 of the leader; returns its id."""
        leader = self.leader(topic, partition)
        self.kill(leader)
        return leader

    @contextmanager
    def paused(self, broker_id: int) -> Iterator[None]:
        """SIGSTOP, and SIGCONT at the end."""
        self.pause(broker_id)
        try:
            yield
        finally:
            self.resume(broker_id)

    def pause(self, broker_id: int) -> None:
        """SIGSTOP: it hangs, and its connections stay open."""
        self._process(broker_id).pause()

    def resume(self, broker_id: int) -> None:
        self._process(broker_id).resume()

    def restart(self, broker_id: int) -> None:
        """Start a broker that was killed, or stop and start one that runs; waits until it serves."""
        process = self._process(broker_id)
        if process.running:
            process.stop()
        process.start()

    @contextmanager
    def partition_network(self, *sides: Collection[int], clients: Collection[int] | None = None) -> Iterator[None]:
        """Cut the network between sides: `with cluster.partition_network([1], [2, 3])`. Brokers that no side names form
        one more side. Clients reach all brokers, or only those in `clients`. The embedded store is a file, and stays
        reachable."""
        self.cut_network(*sides, clients=clients)
        try:
            yield
        finally:
            self.heal_network()

    def cut_network(self, *sides: Collection[int], clients: Collection[int] | None = None) -> None:
        named = {broker_id for side in sides for broker_id in side}
        for broker_id in named | set(clients or ()):
            self._process(broker_id)  # fails if there is no such broker
        rest = [broker_id for broker_id in self.brokers if broker_id not in named]
        apart = [(one, those) for these, those in combinations([*sides, rest], 2) for one in these]
        pairs = [pair for one, those in apart for pair in both_ways(one, those)]
        if clients is not None:
            pairs += both_ways(CLIENTS, set(self.brokers) - set(clients))
        self._proxies.cut(pairs)

    def heal_network(self) -> None:
        self._proxies.heal()
