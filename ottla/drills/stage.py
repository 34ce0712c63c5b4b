"""The stage of a drill: a cluster to break, words for what is done, and checks that end it when something differs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from ottla.drills.probe import Acknowledged, Probe, values_on_disk
from ottla.errors import ErrorCode
from ottla.local.cluster import LocalCluster
from ottla.local.process import BrokerProcess
from ottla.local.sight import Replicas

T = TypeVar("T")
Said = Callable[[str], None]

PATIENCE_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 0.02

SETTINGS: Final = {
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.backoff.ms": "100",
    "zookeeper.session.timeout.ms": "3000",
    "broker.session.timeout.ms": "3000",
    "offsets.topic.num.partitions": "3",
    "min.insync.replicas": "1",
    "unclean.leader.election.enable": "false",
    "auto.leader.rebalance.enable": "false",
}
"""A drill should not take longer to watch than to explain: everything that waits waits less than Kafka would."""


class Differs(Exception):
    """Something is not as the drill says it must be."""


class Stage:
    """What a drill works with."""

    def __init__(self, cluster: LocalCluster, said: Said) -> None:
        self.cluster = cluster
        self.probe = Probe(cluster)
        self.acknowledged: dict[tuple[str, int], list[str]] = {}
        """What the cluster has promised to keep, in the order of the writes."""
        self._said = said
        self._written = 0

    # Words.

    def say(self, line: str) -> None:
        self._said(f"  {line}")

    def check(self, holds: bool, expected: str, seen: object = None) -> None:
        """Go on only if it holds."""
        if not holds:
            raise Differs(f"expected: {expected}" + (f"; seen: {seen}" if seen is not None else ""))
        self._said(f"  ✓ {expected}")

    async def until(
        self, expected: str, look: Callable[[], Awaitable[T]], holds: Callable[[T], bool], within: float = 0
    ) -> T:
        """Look until it holds, and say how long that took."""
        begun = time.monotonic()
        deadline = begun + (within or PATIENCE_SECONDS)
        while True:
            value = await look()
            if holds(value):
                self._said(f"  ✓ {expected} (after {time.monotonic() - begun:.2f} s)")
                return value
            if time.monotonic() > deadline:
                raise Differs(f"expected within {deadline - begun:g} s: {expected}; seen: {value}")
            await asyncio.sleep(LOOK_SECONDS)

    # The cluster.

    async def in_sync(self, topic: str, brokers: Iterable[int], partition: int = 0) -> Replicas:
        wanted = set(brokers)
        return await self.until(
            f"in sync: {_listed(wanted)}",
            lambda: self.probe.replicas(topic, partition),
            lambda state: set(state.in_sync) == wanted,
        )

    async def led_by(self, topic: str, broker_id: int, partition: int = 0) -> Replicas:
        return await self.until(
            f"broker {broker_id} leads {topic}-{partition}" if broker_id >= 0 else f"nobody leads {topic}-{partition}",
            lambda: self.probe.replicas(topic, partition),
            lambda state: state.leader == broker_id,
        )

    def kill(self, broker_id: int) -> None:
        broker = self.cluster[broker_id]
        pid = broker.pid
        broker.kill()
        self.say(f"Broker {broker_id} is killed with kill -9 (pid {pid}).")

    async def stop(self, broker_id: int) -> None:
        begun = time.monotonic()
        await self.cluster[broker_id].until_stopped()
        self.say(f"Broker {broker_id} is stopped cleanly, which took {time.monotonic() - begun:.2f} s.")

    async def restart(self, broker_id: int) -> BrokerProcess:
        broker = self.cluster[broker_id]
        broker.launch()
        await broker.until_ready()
        self.say(f"Broker {broker_id} is started again and serves after {broker.ready_seconds:.2f} s.")
        return broker

    # Records.

    async def write(self, topic: str, count: int, partition: int = 0) -> None:
        """Records that must be taken: each attempt may meet an election, but not for long."""
        values = self._next_values(count)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while isinstance(outcome := await self.probe.write(topic, values, partition), ErrorCode):
            if time.monotonic() > deadline:
                raise Differs(f"expected: a write to {topic}-{partition} is taken; seen: {outcome.name}")
            await asyncio.sleep(LOOK_SECONDS)
        self._promise(topic, partition, values, outcome)
        self._said(f"  ✓ {count} records written, acks=all: offsets {outcome.base_offset} to {outcome.end - 1}")

    def _promise(self, topic: str, partition: int, values: Sequence[str], given: Acknowledged) -> None:
        kept = self.acknowledged.setdefault((topic, partition), [])
        if given.base_offset != len(kept):
            raise Differs(
                f"expected: the next record of {topic}-{partition} gets offset {len(kept)}; seen: {given.base_offset}"
            )
        kept += values

    async def refused(self, topic: str, partition: int = 0) -> None:
        """A write that must not be taken."""
        outcome = await self.probe.write(topic, self._next_values(1), partition)
        refusal = outcome.name if isinstance(outcome, ErrorCode) else "it was acknowledged"
        self.check(isinstance(outcome, ErrorCode), f"a write is refused ({refusal})", refusal)

    async def nothing_lost(self, topic: str, partition: int = 0) -> None:
        """A consumer sees exactly what was acknowledged, in its order."""
        wanted = self.acknowledged[topic, partition]
        found = await self.read(topic, partition)
        missing = len(set(wanted) - set(found))
        self.check(
            found == wanted,
            f"all {len(wanted)} acknowledged records of {topic}-{partition} are read back, in order, none twice",
            f"{len(found)} records, {missing} missing",
        )

    async def read(self, topic: str, partition: int = 0) -> list[str]:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            found = await self.probe.read(topic, partition)
            if isinstance(found, list):
                return found
            if time.monotonic() > deadline:
                raise Differs(f"expected: {topic}-{partition} can be read; seen: {found.name}")
            await asyncio.sleep(LOOK_SECONDS)

    def on_disk(self, broker_id: int, topic: str, partition: int = 0) -> list[str]:
        return values_on_disk(self.cluster, broker_id, topic, partition)

    async def same_logs(self, topic: str, brokers: Sequence[int], partition: int = 0) -> None:
        """The logs of these brokers become one and the same."""

        async def logs() -> list[list[str]]:
            return [self.on_disk(broker_id, topic, partition) for broker_id in brokers]

        await self.until(
            f"the logs of brokers {_listed(brokers)} are the same, record for record",
            logs,
            lambda found: all(each == found[0] for each in found),
        )

    def _next_values(self, count: int) -> list[str]:
        self._written += count
        return [f"record {n}" for n in range(self._written - count, self._written)]


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(brokers))) or "nobody"
