"""Replica manager: the replicas that this broker hosts, leads and follows, according to the metadata image.

It opens and drops replicas as topics are created and deleted, makes each one leader or follower (`replica_fetcher`),
and notifies the coordinators of changed leadership. If the disk refuses one change, the others are still made, and that
one is tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ottla.cluster import changes as c
from ottla.cluster.cluster import Cluster
from ottla.cluster.image import NO_BROKER, Image, TopicImage
from ottla.config.broker_config import LiveConfig
from ottla.errors import ErrorCode, Fault, Refused, StorageFault
from ottla.log import checkpoints
from ottla.log.segment import Segment
from ottla.net.outbound import OutboundConnection
from ottla.replication.deletion import SegmentDeletion, TopicDeletion
from ottla.replication.doubt import WHOLE_WAIT_SECONDS
from ottla.replication.fetch_sessions import FollowerPartition
from ottla.replication.flush import Flusher
from ottla.replication.gaps import unsettled
from ottla.replication.isr import IsrManager
from ottla.replication.partition import Partition
from ottla.replication.ports import Peers
from ottla.replication.replica_fetcher import ReplicaFetcherManager
from ottla.replication.replicas import STRAY, Replicas
from ottla.replication.throttle import Throttle
from ottla.replication.waits import DelayedOperations
from ottla.runtime import Handle, Runtime

log = logging.getLogger("ottla.replication")

CONFIRM_SECONDS: Final = 3.0
CONFIRM_STEP_SECONDS: Final = 0.02
RETRY_SECONDS: Final = 5.0
"""The time until the next try, after the disk refused to open or quarantine a log."""
FETCHES_IN_FLIGHT_MAX: Final = 2
"""The requests that one follower has in flight at most (see `replica_fetcher`)."""
RACK_AWARE: Final = "RackAwareReplicaSelector"

LeadershipListener = Callable[[TopicImage, int], None]


class ReplicaManager:
    def __init__(
        self,
        runtime: Runtime,
        config: LiveConfig,
        cluster: Cluster,
        replicas: Replicas,
        peers: Peers,
        isr: IsrManager,
        segment_deletion: SegmentDeletion,
        delayed: DelayedOperations,
    ) -> None:
        self.replicas: Final = replicas
        self.delayed: Final = delayed
        self.flusher: Final = Flusher(runtime)
        self.topic_deletion: Final = TopicDeletion(runtime, cluster, replicas)
        self.leader_throttle: Final = Throttle()
        self.follower_throttle: Final = Throttle()
        self.leadership_listeners: Final[list[LeadershipListener]] = []
        """Called with a topic and a partition of it whose leader, or whose replica here, may be another one."""
        self._runtime = runtime
        self._config = config
        self._cluster = cluster
        self._peers = peers
        self._isr = isr
        self._segment_deletion = segment_deletion
        self._broker_id = config.current.broker_id
        self._fetchers = ReplicaFetcherManager(runtime, self, config)
        self._started = False
        self._unhosted: set[bytes] = set()
        self._hosting: Handle | None = None
        isr.on_leads = self._take_up_again

    def start(self) -> None:
        """Start to fetch: this broker has registered, so leaders know it."""
        self._started = True
        self._fetchers.start()
        for partition in self.replicas:
            self.follow(partition)

    async def stop(self) -> None:
        self._started = False
        await self._fetchers.stop()

    def close(self) -> None:
        if self._hosting is not None:
            self._hosting.cancel()

    def configure(self) -> None:
        config, now = self._config.current, self._runtime.now()
        self.leader_throttle.limit(max(config.leader_replication_throttled_rate, 1), now)
        self.follower_throttle.limit(max(config.follower_replication_throttled_rate, 1), now)

    # Finding.

    def find(self, topic: str | bytes, index: int) -> Partition:
        """The replica by topic name or id. Otherwise refuses with the reason: a client at the wrong broker must refresh
        its metadata, and not conclude that the partition does not exist."""
        partition = self.replicas.get(topic, index)
        if partition is None:
            name = self._name_of(topic)
            if name is None:
                raise Refused(ErrorCode.unknown_topic_id)
            if self._cluster.image.partition(name, index) is None:
                raise Refused(ErrorCode.unknown_topic_or_partition)
            raise Refused(ErrorCode.not_leader_or_follower)
        return partition

    def _name_of(self, topic: str | bytes) -> str | None:
        return self._cluster.image.names.get(topic) if isinstance(topic, bytes) else topic

    def leader_of(self, topic: str | bytes, index: int) -> tuple[int, int]:
        """Leader and leader epoch, for a client at the wrong broker."""
        name = self._name_of(topic)
        partition = None if name is None else self._cluster.image.partition(name, index)
        return (NO_BROKER, -1) if partition is None else (partition.leader, partition.leader_epoch)

    def nearer_replica(self, partition: Partition, rack: str, offset: int) -> int | None:
        """A replica in the consumer's rack that it should read from instead of here (KIP-392)."""
        config = self._config.current
        if not (config.replica_selector_class or "").endswith(RACK_AWARE) or not partition.leads:
            return None
        if config.broker_rack == rack:
            return None
        for replica, follower in partition.leader.followers.items():
            live = self._cluster.image.brokers.get(replica)
            in_reach = replica in partition.in_sync and follower.log_start <= offset <= follower.log_end
            if in_reach and live is not None and live.rack == rack:
                return replica
        return None

    # Changes of the metadata image.

    def image_changed(self, old: Image, new: Image, change: c.Change) -> None:
        try:
            self._apply(old, new, change)
        except (Fault, Refused) as failure:
            log.error("broker %d could not apply %s: %s", self._broker_id, type(change).__name__, failure)
            if isinstance(change, c.TopicCreated | c.PartitionsAdded | c.PartitionChanged):
                self.host_later(change.topic_id)

    def _apply(self, old: Image, new: Image, change: c.Change) -> None:
        match change:
            case c.TopicCreated() | c.PartitionsAdded():
                if (topic := new.topic_by_id(change.topic_id)) is not None:
                    self._host(topic)
            case c.PartitionChanged():
                if (topic := new.topic_by_id(change.topic_id)) is not None:
                    self._take_up(topic, change.partition)
            case c.BrokerRegistered():
                if change.id == self._broker_id and change.incarnation == self._cluster.incarnation:
                    self.replicas.registered(change.epoch)
            case c.TopicConfigChanged():
                if (topic := new.topic_by_id(change.topic_id)) is not None:
                    self._configure_topic(topic)
            case c.TopicDeleted():
                if (topic := old.topic_by_id(change.topic_id)) is not None:
                    self._drop(topic, deleted=topic.id in new.tombstones)
            case c.BrokerConfigChanged():
                for topic in new.topics.values():
                    self._configure_topic(topic)

    def _host(self, topic: TopicImage) -> None:
        self.replicas.host(topic)
        for index in range(len(topic.partitions)):
            if (partition := self.replicas.get(topic.id, index)) is not None:
                self.follow(partition)
        for index in range(len(topic.partitions)):
            self._leadership_changed(topic, index)

    def _take_up(self, topic: TopicImage, index: int) -> None:
        partition = self.replicas.host_partition(topic, index)
        if partition is not None:
            self.follow(partition)
        elif (moved := self.replicas.get(topic.id, index)) is not None:
            # The controller has moved it to other brokers, which are all in sync: this replica may be removed.
            self._leave(moved)
            self.topic_deletion.begin(topic, self.replicas.drop_partition(topic, index), deleted=False)
        self._leadership_changed(topic, index)

    def _take_up_again(self, partition: Partition) -> None:
        if (topic := self._cluster.image.topic_by_id(partition.topic_id)) is not None:
            self._take_up(topic, partition.index)

    def _leadership_changed(self, topic: TopicImage, index: int) -> None:
        for listener in self.leadership_listeners:
            listener(topic, index)

    def _configure_topic(self, topic: TopicImage) -> None:
        for partition in self.replicas.configure(topic):
            self.flusher.look_at(partition)

    def _drop(self, topic: TopicImage, *, deleted: bool) -> None:
        """Drop a topic. Without a tombstone, metadata is missing, which is no reason to lose data: the files are
        kept."""
        for index in range(len(topic.partitions)):
            if (partition := self.replicas.get(topic.id, index)) is not None:
                self._leave(partition)
        if deleted:
            self.topic_deletion.begin(topic, self.replicas.drop(topic), deleted=True)
        elif strays := self.replicas.drop(topic, suffix=STRAY):
            log.error(
                "topic %s is not in the metadata any more, and was not deleted: its directories are renamed to %s",
                topic.name, ", ".join(strays),
            )  # fmt: skip

    def host_later(self, topic_id: bytes) -> None:
        """The disk refused to open a log of the topic: try again later, since the cluster counts this replica as
        hosted."""
        self._unhosted.add(topic_id)
        if self._hosting is None:
            self._hosting = self._runtime.call_at(self._runtime.now() + RETRY_SECONDS, self._host_again)

    def _host_again(self) -> None:
        self._hosting = None
        topic_ids, self._unhosted = self._unhosted, set()
        image = self._cluster.image
        for topic in filter(None, map(image.topic_by_id, topic_ids)):
            for index, state in enumerate(topic.partitions):
                if self._broker_id in state.replicas and self.replicas.get(topic.id, index) is None:
                    self.image_changed(image, image, c.partition_changed(topic.id, index, state))

    # Following.

    def follow(self, partition: Partition) -> None:
        """The partition state has changed: fetch from the present leader."""
        self.flusher.look_at(partition)
        leader = partition.leader_id
        elsewhere = not partition.leads and leader not in (NO_BROKER, self._broker_id)
        if unsettled(partition) is not None and (not elsewhere or partition.counts_as_whole):
            self._isr.leave(partition)  # it must not be elected without the missing records
        self._fetchers.follow(partition, leader if elsewhere else None)
        if partition.doubt is not None:
            self._runtime.call_soon(self._isr.look_at, partition)
            self._runtime.call_at(self._runtime.now() + WHOLE_WAIT_SECONDS, self._isr.look_at, partition)

    def _leave(self, partition: Partition) -> None:
        self.flusher.forget(partition)
        self._fetchers.follow(partition, None)

    async def still_followed(self, partition: Partition) -> bool:
        """Whether no other broker led the partition when this was asked. A broker without a connection to the store
        does not learn that it was replaced. But every replica that could replace it follows it until then, and has a
        limited number of requests in flight: one request more than that was sent after a response of this broker, and
        so after the question."""
        runtime, epoch = self._runtime, partition.leader_epoch
        before = _fetches(partition)
        deadline = runtime.now() + CONFIRM_SECONDS
        while partition.leads and partition.leader_epoch == epoch and runtime.now() < deadline:
            heard = _fetches(partition)
            rivals = self._rivals(partition)
            if all(heard.get(other, 0) - before.get(other, 0) > FETCHES_IN_FLIGHT_MAX for other in rivals):
                return True
            await asyncio.sleep(CONFIRM_STEP_SECONDS)
        return False

    def _rivals(self, partition: Partition) -> set[int]:
        """The replicas that could be elected: the ISR and the proposed ISR; all replicas, if the ISR is too small
        (KIP-966)."""
        if not partition.enough_in_sync:
            return set(partition.replicas) - {self._broker_id}
        return {*partition.in_sync, *(partition.leader.proposed or ())} - {self._broker_id}

    # Interface of the replica fetchers.

    @property
    def broker_epoch(self) -> int:
        return self.replicas.broker_epoch

    async def open_link(self, broker_id: int) -> OutboundConnection:
        return await self._peers.open(broker_id)

    async def sync(self, partition: Partition) -> None:
        await self.flusher.sync(partition)

    async def was_cut(self, partition: Partition, dropped: list[Segment]) -> None:
        self._segment_deletion.schedule(dropped, partition.log.config.file_delete_delay_ms)
        await self.replicas.save_checkpoints(checkpoints.RECOVERY_POINTS, checkpoints.LOG_STARTS, checkpoints.CLEANED)

    def make_whole(self, partition: Partition) -> None:
        """The leader has the records that are missing here."""
        if partition.leads or partition.counts_as_whole:  # records that it drops must not count for the ISR
            self._isr.leave(partition)
            raise Refused(ErrorCode.kafka_storage_error, "it is damaged, and in sync for all that the controller knows")
        try:
            self._copy_again(partition)
        except StorageFault as fault:
            self._copy_later(partition, fault)

    def _copy_again(self, partition: Partition) -> None:
        damage = partition.log.damage
        partition.follower.copy_again(self._runtime.wall_ms())
        log.error(
            "%s: %s: later records are quarantined (.damaged) and copied again from broker %d, from offset %d on",
            partition, damage, partition.leader_id, partition.log.log_end,
        )  # fmt: skip
        self._runtime.spawn(self._checkpoint_cut(partition), name=f"checkpoint {partition}")

    async def _checkpoint_cut(self, partition: Partition) -> None:
        try:
            await self.was_cut(partition, [])
        except Fault as fault:  # the log manager writes them again, and until then they say more than the log has
            log.warning("%s: the checkpoint of its new log end is not written yet: %s", partition, fault)

    def _copy_later(self, partition: Partition, fault: StorageFault) -> None:
        """It may be half done. Until it is complete, nothing may be appended."""
        log.error("%s: damage cannot be quarantined: %s; trying again in %g s", partition, fault, RETRY_SECONDS)
        self._fetchers.follow(partition, None)
        self._runtime.call_at(self._runtime.now() + RETRY_SECONDS, self._follow_again, partition)

    def _follow_again(self, partition: Partition) -> None:
        if not partition.log.dropped and self._started:
            self.follow(partition)


def _fetches(partition: Partition) -> dict[int, int]:
    """The number of Fetch requests of each follower, in the fetch session of the partition."""
    return {
        watcher.fetch.follower: watcher.fetch.heard
        for watcher in partition.append_listeners
        if isinstance(watcher, FollowerPartition)
    }
