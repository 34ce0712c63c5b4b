"""Cluster snapshot: controller, brokers and partitions from a Metadata response, and the differences between two
snapshots as lines of text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from ottla.client.core.broker_connection import BrokerConnection
from ottla.client.errors import ClientError
from ottla.wire.schema.metadata import MetadataRequest, MetadataResponse
from ottla.wire.tree import Message

R = TypeVar("R", bound=Message)

ANSWER_SECONDS: Final = 1.0
NO_BROKER: Final = -1


class PartitionReplicas(NamedTuple):
    """One partition: leader, replicas, in-sync replicas."""

    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    leader_epoch: int = -1


class ClusterSnapshot(NamedTuple):
    """The cluster at one moment, as one broker reports it."""

    controller: int = NO_BROKER
    brokers: tuple[int, ...] = ()
    """Registered brokers."""
    partitions: dict[tuple[str, int], PartitionReplicas] = {}  # noqa: RUF012 (never written to)
    internal: frozenset[str] = frozenset()
    topic_ids: dict[bytes, str] = {}  # noqa: RUF012 (never written to)


def differences(old: ClusterSnapshot, new: ClusterSnapshot) -> Iterator[str]:
    """Changes between two snapshots, a line each; of internal topics only creation and deletion."""
    if new.controller not in (old.controller, NO_BROKER):
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


def _changes(old: PartitionReplicas, new: PartitionReplicas) -> Iterator[str]:
    if new.leader != old.leader:
        was = "" if old.leader == NO_BROKER else f" (was {old.leader})"
        yield (f"leader is broker {new.leader}" if new.leader != NO_BROKER else "no leader") + was
    if set(new.replicas) != set(old.replicas):
        yield f"replicas on {listed(new.replicas)}"
    if set(new.in_sync) != set(old.in_sync):
        yield f"in sync: {listed(new.in_sync)}"


def listed(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(brokers))) or "none"


def in_sync_summary(partitions: Iterable[tuple[str, int, Sequence[int], Sequence[int]]]) -> list[str]:
    """One line for each topic. A partition is given by topic, leader, replicas and in-sync replicas."""
    counts: dict[str, tuple[int, int]] = {}
    for topic, leader, replicas, in_sync in partitions:
        total, complete = counts.get(topic, (0, 0))
        counts[topic] = total + 1, complete + (leader != NO_BROKER and len(in_sync) == len(replicas))
    return [f"{topic}: {total} partitions, {good} of them fully in sync" for topic, (total, good) in counts.items()]


def without_dead_leaders(snapshot: ClusterSnapshot, alive: Iterable[int]) -> ClusterSnapshot:
    """A broker whose process has ended is neither leader nor controller, even if other brokers do not know yet."""
    living = set(alive)
    return snapshot._replace(
        controller=snapshot.controller if snapshot.controller in living else NO_BROKER,
        partitions={
            key: state if state.leader in living else state._replace(leader=NO_BROKER)
            for key, state in snapshot.partitions.items()
        },
    )


class MetadataWatcher:
    """Requests metadata from brokers, over connections that stay open."""

    def __init__(self) -> None:
        self._connections: dict[str, BrokerConnection] = {}

    async def look(self, addresses: Iterable[str]) -> ClusterSnapshot | None:
        """The snapshot of the first broker that answers; None if none does."""
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        for address in sorted(addresses, key=lambda each: each not in self._connections):
            with suppress(ClientError, TimeoutError):
                return snapshot_from(await self.call(address, request, MetadataResponse))
        return None

    async def call(self, address: str, request: Message, answer: type[R]) -> R:
        """Send a request to this broker; ClientError or TimeoutError if it does not answer in time."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._call(address, request, answer)
        except (ClientError, TimeoutError):
            await self._forget(address)
            raise

    async def _call(self, address: str, request: Message, answer: type[R]) -> R:
        connection = self._connections.get(address)
        if connection is None or connection.lost is not None:
            host, _, port = address.rpartition(":")
            connection = await BrokerConnection.open(host, int(port), client_id="ottla-watch")
            if (other := self._connections.get(address)) is not None and other.lost is None:
                await connection.close()  # another task has connected meanwhile
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
            (topic.name or "", each.partition_index): PartitionReplicas(
                each.leader_id, tuple(each.replica_nodes), tuple(each.isr_nodes), each.leader_epoch
            )
            for topic in topics
            for each in sorted(topic.partitions, key=lambda partition: partition.partition_index)
        },
        internal=frozenset(topic.name or "" for topic in topics if topic.is_internal),
        topic_ids={topic.topic_id: topic.name or "" for topic in topics},
    )
