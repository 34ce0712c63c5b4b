"""Replication as one broker does it: which partitions it follows where, and what that needs of the rest of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.broker.fetch_sessions import Following as Follows
from ottla.cluster.image import NO_BROKER
from ottla.log import checkpoints
from ottla.log.segment import Segment
from ottla.replication.follower import Following, Link, Settings
from ottla.replication.partition import Partition
from ottla.replication.throttle import Throttle

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

FOLLOWED_SECONDS = 1.0
TICK_SECONDS = 0.5
STILL_SECONDS = 1.5
"""A broker that did not tick for so long was stopped, or starved."""
RACK_AWARE = "RackAwareReplicaSelector"


class Replication:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._following = Following(broker.runtime, self, self._settings)
        self.leader_throttle = Throttle()
        self.follower_throttle = Throttle()
        self._ticked = self._awake_since = 0.0
        self._ticking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """From now on follow; this broker has registered, so leaders know it."""
        self._following.start()
        self._ticked = self._broker.runtime.stopwatch()
        self._ticking = self._broker.runtime.spawn(self._tick(), name="tick")
        for partition in self._broker.replicas:
            self.follow(partition)

    async def stop(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        await self._following.stop()

    async def _tick(self) -> None:
        """Notice when this broker stood still."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._broker.runtime.stopwatch()
            if now - self._ticked > STILL_SECONDS:
                self._awake_since = now
            self._ticked = now

    def configure(self) -> None:
        config = self._broker.config
        self.leader_throttle.rate = max(config.leader_replication_throttled_rate, 1)
        self.follower_throttle.rate = max(config.follower_replication_throttled_rate, 1)

    def follow(self, partition: Partition) -> None:
        """Its state has changed: fetch from whoever leads it now."""
        self._broker.syncing.look_at(partition)
        leader = partition.leader_id
        elsewhere = not partition.leads and leader not in (NO_BROKER, self._broker.id)
        self._following.follow(partition, leader if elsewhere else None)

    def leave(self, partition: Partition) -> None:
        self._broker.syncing.forget(partition)
        self._following.follow(partition, None)

    def is_followed(self, partition: Partition) -> bool:
        """Whether somebody who could lead it instead was following us a moment ago. A broker that is cut off from the
        store does not hear that it was replaced; but those who follow another leader do not follow this one. What a
        broker hears just after it stood still proves nothing: it may have been said long before."""
        if len(partition.replicas) == 1:
            return True  # nobody else could lead
        now = self._broker.runtime.stopwatch()
        if now - self._ticked > STILL_SECONDS:
            return False
        wait_s = self._broker.config.replica_fetch_wait_max_ms / 1000
        since = max(now - wait_s, self._awake_since + 2 * FOLLOWED_SECONDS) - FOLLOWED_SECONDS
        return any(
            isinstance(watcher, Follows)
            and watcher.fetch.heard_at > since
            and watcher.fetch.follower in partition.in_sync
            for watcher in partition.tail_watchers
        )

    def nearer_replica(self, partition: Partition, rack: str, offset: int) -> int | None:
        """A replica in the consumer's rack that it should read from instead of here (KIP-392)."""
        broker = self._broker
        if not (broker.config.replica_selector_class or "").endswith(RACK_AWARE) or not partition.leads:
            return None
        if broker.config.broker_rack == rack:
            return None
        for replica, follower in partition.followers.items():
            live = broker.image.brokers.get(replica)
            in_reach = replica in partition.in_sync and follower.log_end >= offset
            if in_reach and live is not None and live.rack == rack:
                return replica
        return None

    def _settings(self) -> Settings:
        config = self._broker.config
        return Settings(
            broker_id=config.broker_id,
            wait_ms_max=config.replica_fetch_wait_max_ms,
            bytes_min=config.replica_fetch_min_bytes,
            bytes_max=config.replica_fetch_response_max_bytes,
            partition_bytes_max=config.replica_fetch_max_bytes,
            backoff_ms_max=config.replica_fetch_backoff_ms,
        )

    # What a follower needs.

    @property
    def broker_epoch(self) -> int:
        return self._broker.replicas.broker_epoch

    async def open_link(self, broker_id: int) -> Link:
        return await self._broker.peers.open(broker_id)

    async def sync(self, partition: Partition) -> None:
        await self._broker.syncing.sync(partition)

    async def was_cut(self, partition: Partition, dropped: list[Segment]) -> None:
        broker = self._broker
        if dropped:
            broker.housekeeping.unlink_later(dropped, partition.log.config.file_delete_delay_ms)
        for name in (checkpoints.RECOVERY_POINTS, checkpoints.LOG_STARTS, checkpoints.CLEANED):
            write = broker.replicas.checkpoint(name)
            if write is not None:
                await broker.runtime.offload(write)
