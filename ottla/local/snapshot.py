"""Cluster snapshot: controller, brokers and partitions as Metadata shows them, and how two snapshots differ, in words.
Pure except for the request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

from ottla.client.core.broker_connection import BrokerConnection
from ottla.client.errors import ClientError
from ottla.wire.schema.metadata import MetadataRequest, MetadataResponse
from ottla.wire.tree import Message

R = TypeVar("R", bound=Message)

ANSWER_SECONDS: Final = 1.0
NOBODY: Final = -1


class Replicas(NamedTuple):
    """One partition: who leads it, who has it, who has all of it."""

    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    leader_epoch: int = -1


class ClusterSnapshot(NamedTuple):
    """The cluster at one moment, as one broker tells it."""

    controller: int = NOBODY
    brokers: tuple[int, ...] = ()
    """Those that are registered."""
    partitions: dict[tuple[str, int], Replicas] = {}  # noqa: RUF012 (never written to)
    internal: frozenset[str] = frozenset()
    """Topics that the cluster keeps for itself."""
    topic_ids: dict[bytes, str] = {}  # noqa: RUF012 (never written to)


def differences(old: ClusterSnapshot, new: ClusterSnapshot) -> Iterator[str]:
    """What happened between two snapshots, a line each; internal topics only in sum."""
    if new.controller not in (old.controller, NOBODY):
        yield f"broker {new.controller} is the controller"
    made = [topic for topic in _topics(new) if topic not in _topics(old)]
    gone = [topic for topic in _topics(old) if topic not in _topics(new)]
    for topic in made:
        yield f"topic {topic} was created"
    for topic in gone:
        yield f"topic {topic} was deleted"
    for (topic, index), now in new.partitions.items():
        before = old.partitions.get((topic, index))
        if before is None or topic in new.internal:
            continue
        if changes := list(_changes(before, now)):
            yield f"{topic}-{index}: {', '.join(changes)}"


def _topics(snapshot: ClusterSnapshot) -> dict[str, None]:
    return dict.fromkeys(topic for topic, _ in snapshot.partitions)


def _changes(old: Replicas, new: Replicas) -> Iterator[str]:
    if new.leader != old.leader:
        was = "" if old.leader == NOBODY else f" (was {old.leader})"
        yield (f"broker {new.leader} leads" if new.leader != NOBODY else "nobody leads") + was
    if set(new.replicas) != set(old.replicas):
        yield f"kept on {_listed(new.replicas)}"
    if set(new.in_sync) != set(old.in_sync):
        yield f"in sync {_listed(new.in_sync)}"


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(brokers))) or "nobody"


class Watcher:
    """Asks brokers for the cluster's metadata: whoever answered last is asked first."""

    def __init__(self) -> None:
        self._connections: dict[str, BrokerConnection] = {}

    async def look(self, addresses: Iterable[str]) -> ClusterSnapshot | None:
        """What the first that answers sees; None when nobody does."""
        for address in sorted(addresses, key=lambda each: each not in self._connections):
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    return await self._ask(address)
            except (ClientError, TimeoutError):
                await self._forget(address)
        return None

    async def call(self, address: str, request: Message, answer: type[R]) -> R:
        """Ask this broker; ClientError or TimeoutError when it does not answer in time."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._call(address, request, answer)
        except (ClientError, TimeoutError):
            await self._forget(address)
            raise

    async def _ask(self, address: str) -> ClusterSnapshot:
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        return snapshot_from(await self._call(address, request, MetadataResponse))

    async def _call(self, address: str, request: Message, answer: type[R]) -> R:
        connection = self._connections.get(address)
        if connection is None or connection.lost is not None:
            host, _, port = address.rpartition(":")
            connection = await BrokerConnection.open(host, int(port), client_id="ottla-watch")
            if (other := self._connections.get(address)) is not None and other.lost is None:
                await connection.close()  # somebody else was quicker
                connection = other
            self._connections[address] = connection
        return await connection.call(request, answer, timeout_s=ANSWER_SECONDS)

    async def _forget(self, address: str) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            await connection.close()

    async def close(self) -> None:
        for address in list(self._connections):
            await self._forget(address)


def snapshot_from(answer: MetadataResponse) -> ClusterSnapshot:
    topics = sorted((topic for topic in answer.topics if topic.name), key=lambda topic: topic.name or "")
    return ClusterSnapshot(
        controller=answer.controller_id,
        brokers=tuple(sorted(broker.node_id for broker in answer.brokers)),
        partitions={
            (topic.name or "", each.partition_index): Replicas(
                each.leader_id, tuple(each.replica_nodes), tuple(each.isr_nodes), each.leader_epoch
            )
            for topic in topics
            for each in sorted(topic.partitions, key=lambda partition: partition.partition_index)
        },
        internal=frozenset(topic.name or "" for topic in topics if topic.is_internal),
        topic_ids={topic.topic_id: topic.name or "" for topic in topics},
    )
