"""Replication as one broker does it: which partitions it follows where, and what that needs of the rest of it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ottla.broker.fetch_sessions import Following as Follows
from ottla.cluster.image import NO_BROKER
from ottla.errors import ErrorCode, Refused, StorageFault
from ottla.log import checkpoints
from ottla.log.segment import Segment
from ottla.replication.doubt import WHOLE_WAIT_SECONDS
from ottla.replication.follower import Following, Link, Settings
from ottla.replication.gaps import unsettled
from ottla.replication.partition import Partition
from ottla.replication.throttle import Throttle

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

log = logging.getLogger("ottla.replication")

CONFIRM_SECONDS = 3.0
CONFIRM_STEP_SECONDS = 0.02
AGAIN_SECONDS = 5.0
"""After the disk refused to set aside what is damaged."""
ON_THEIR_WAY_MAX = 2
"""Requests of one follower (see `follower`)."""
RACK_AWARE = "RackAwareReplicaSelector"


class Replication:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._following = Following(broker.runtime, self, self._settings)
        self.leader_throttle = Throttle()
        self.follower_throttle = Throttle()

    def start(self) -> None:
        """From now on follow; this broker has registered, so leaders know it."""
        self._following.start()
        for partition in self._broker.replicas:
            self.follow(partition)

    async def stop(self) -> None:
        await self._following.stop()

    def configure(self) -> None:
        config, now = self._broker.config, self._broker.runtime.now()
        self.leader_throttle.limit(max(config.leader_replication_throttled_rate, 1), now)
        self.follower_throttle.limit(max(config.follower_replication_throttled_rate, 1), now)

    def find(self, topic: str | bytes, index: int) -> Partition:
        """The replica by the topic's name or id, or the reason why it is not here: a client that came to the wrong
        broker shall look for the right one, and not believe that the partition is gone."""
        partition = self._broker.replicas.get(topic, index)
        if partition is None:
            raise Refused(self._why_not_here(topic, index))
        return partition

    def _why_not_here(self, topic: str | bytes, index: int) -> ErrorCode:
        image = self._broker.image
        name = image.names.get(topic) if isinstance(topic, bytes) else topic
        if name is None:
            return ErrorCode.unknown_topic_id
        if image.partition(name, index) is None:
            return ErrorCode.unknown_topic_or_partition
        return ErrorCode.not_leader_or_follower

    def follow(self, partition: Partition) -> None:
        """Its state has changed: fetch from whoever leads it now."""
        self._broker.syncing.look_at(partition)
        leader = partition.leader_id
        elsewhere = not partition.leads and leader not in (NO_BROKER, self._broker.id)
        if unsettled(partition) is not None and (not elsewhere or partition.counts_as_whole):
            self._broker.in_sync.leave(partition)  # it must not be elected without what is missing
        self._following.follow(partition, leader if elsewhere else None)
        if partition.doubt is not None:
            runtime, look_at = self._broker.runtime, self._broker.in_sync.look_at
            runtime.call_soon(look_at, partition)
            runtime.call_at(runtime.now() + WHOLE_WAIT_SECONDS, look_at, partition)

    def make_whole(self, partition: Partition) -> None:
        """Its leader has what is missing here."""
        if partition.leads or partition.counts_as_whole:  # what it lets go of must not be counted on
            self._broker.in_sync.leave(partition)
            raise Refused(ErrorCode.kafka_storage_error, "it is damaged, and in sync for all that the controller knows")
        try:
            self._copy_anew(partition)
        except StorageFault as fault:
            self._copy_later(partition, fault)

    def _copy_anew(self, partition: Partition) -> None:
        damage = partition.log.damage
        partition.copy_anew(self._broker.runtime.wall_ms())
        log.error(
            "%s: %s: what is behind them is set aside as .damaged, and copied anew from broker %d, from offset %d on",
            partition, damage, partition.leader_id, partition.log.log_end,
        )  # fmt: skip
        self._broker.runtime.spawn(self.was_cut(partition, []), name=f"checkpoint {partition}")

    def _copy_later(self, partition: Partition, fault: StorageFault) -> None:
        """Half of it may be done. Until it is, nothing may be appended."""
        runtime = self._broker.runtime
        log.error("%s: what is damaged cannot be set aside: %s; trying again in %g s", partition, fault, AGAIN_SECONDS)
        self._following.follow(partition, None)
        runtime.call_at(runtime.now() + AGAIN_SECONDS, self._follow_again, partition)

    def _follow_again(self, partition: Partition) -> None:
        if not partition.log.dropped and self._broker.serving:
            self.follow(partition)

    def leave(self, partition: Partition) -> None:
        self._broker.syncing.forget(partition)
        self._following.follow(partition, None)

    async def still_followed(self, partition: Partition) -> bool:
        """Whether nobody else led the partition when this was asked. A broker that is cut off from the store does not
        hear that it was replaced. But whoever could replace it follows it until then, and has few requests on their
        way at a time: one more than that was sent after an answer of ours, and so after this was asked."""
        runtime, epoch = self._broker.runtime, partition.leader_epoch
        before = _heard(partition)
        deadline = runtime.now() + CONFIRM_SECONDS
        while partition.leads and partition.leader_epoch == epoch and runtime.now() < deadline:
            heard = _heard(partition)
            if all(heard.get(other, 0) - before.get(other, 0) > ON_THEIR_WAY_MAX for other in self._rivals(partition)):
                return True
            await asyncio.sleep(CONFIRM_STEP_SECONDS)
        return False

    def _rivals(self, partition: Partition) -> set[int]:
        """Who could be elected: those in sync, or about to be; and all, where too few are for the others to be out of
        the question (KIP-966)."""
        if not partition.enough_in_sync:
            return set(partition.replicas) - {self._broker.id}
        return {*partition.in_sync, *(partition.proposed or ())} - {self._broker.id}

    def nearer_replica(self, partition: Partition, rack: str, offset: int) -> int | None:
        """A replica in the consumer's rack that it should read from instead of here (KIP-392)."""
        broker = self._broker
        if not (broker.config.replica_selector_class or "").endswith(RACK_AWARE) or not partition.leads:
            return None
        if broker.config.broker_rack == rack:
            return None
        for replica, follower in partition.followers.items():
            live = broker.image.brokers.get(replica)
            in_reach = replica in partition.in_sync and follower.log_start <= offset <= follower.log_end
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


def _heard(partition: Partition) -> dict[int, int]:
    """How often each follower has asked, in the session in which it follows the partition."""
    return {
        watcher.fetch.follower: watcher.fetch.heard
        for watcher in partition.tail_watchers
        if isinstance(watcher, Follows)
    }
