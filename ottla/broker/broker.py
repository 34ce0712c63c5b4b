"""One broker, wired together. Starting and stopping are here; what it does for clients is in the handlers.

    start   take the data directory -> join the cluster -> open the logs -> bind -> register -> follow -> coordinate
            -> accept
    stop    hand over what is led -> hang up -> leave the cluster -> sync and close the logs -> leave the
            clean-shutdown mark

The mark says that nothing needs to be checked at the next start. It carries the broker epoch under which the logs were
closed, and is taken away as soon as the next start has begun.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import ottla.broker.handlers  # noqa: F401 (registers them)
from ottla.broker import forwarding
from ottla.broker.cleaner import Cleaner
from ottla.broker.coordinators import GroupCoordinator
from ottla.broker.data_directory import check_owner, take_mark
from ottla.broker.departed import Departed
from ottla.broker.disk_errors import DiskErrors
from ottla.broker.dispatch import Dispatch
from ottla.broker.event_log import EventLog
from ottla.broker.fetch_sessions import FetchSessions
from ottla.broker.handlers.producer_ids import ProducerIds
from ottla.broker.housekeeping import Housekeeping
from ottla.broker.in_sync import InSyncSets
from ottla.broker.meter import RequestMeters
from ottla.broker.peers import Peers
from ottla.broker.questions import Questions
from ottla.broker.replication import Replication
from ottla.broker.scrubber import Scrubber
from ottla.broker.status import Status
from ottla.broker.syncing import Syncing
from ottla.broker.traffic import TopicTraffic
from ottla.broker.transactions import TransactionCoordinator
from ottla.cluster import changes as c
from ottla.cluster import min_in_sync
from ottla.cluster.cluster import Cluster
from ottla.cluster.controller import check_topic_name
from ottla.cluster.diff import changes_between
from ottla.cluster.image import NO_BROKER, Endpoint, Image, Topic
from ottla.cluster.image import Broker as ClusterBroker
from ottla.cluster.requests import BrokerRegistration, TopicResult, TopicSpec
from ottla.cluster.rules import rules_of
from ottla.cluster.zookeeper_options import ZooKeeperOptions
from ottla.config.broker import BrokerConfig
from ottla.config.listeners import Listener
from ottla.config.setting import BadConfig
from ottla.config.topic import TopicConfig, resolve
from ottla.errors import ErrorCode, Fault, PortTaken, Refused
from ottla.log import checkpoints
from ottla.net.limits import Limits
from ottla.net.server import Server
from ottla.replication.replicas import CHECKPOINTS, STRAY, Replicas
from ottla.runtime import Handle, Lock, Runtime
from ottla.wire.error_codes import ErrorCounts

log = logging.getLogger("ottla.broker")

NOT_YET = {
    ErrorCode.invalid_replication_factor: ErrorCode.unknown_topic_or_partition,
    ErrorCode.not_controller: ErrorCode.leader_not_available,
    ErrorCode.request_timed_out: ErrorCode.leader_not_available,
}
"""What a client is told of a topic that is to be made and cannot be made at the moment: it asks again."""
HAND_OVER_SECONDS_MAX = 30.0
HAND_OVER_LOOK_SECONDS = 0.02
DAMAGED_NAMED_MAX = 5000
"""So many damaged partitions are named in a registration, which has to fit into a node of the store. With more of them
nothing that the broker held counts."""
HOST_AGAIN_SECONDS = 5.0
"""After a disk refused to open a log."""


class Broker:
    def __init__(self, config: BrokerConfig, runtime: Runtime) -> None:
        self.id = config.broker_id
        self.config = config
        self.runtime = runtime
        self.data_dir = config.data_dir
        self.cluster: Cluster
        self.replicas = Replicas(
            runtime,
            config.data_dir,
            config.broker_id,
            lambda topic: self.topic_config(topic),
            config.partition_producer_ids_max,
        )
        self.events = EventLog(self)
        self.disk_errors = DiskErrors(runtime)
        self.replicas.on_write_refused = self.disk_errors.write_refused
        self.traffic = TopicTraffic(config.ottla_metrics_topics_max)
        self.fetch_sessions = FetchSessions(runtime.random, config.max_incremental_fetch_session_cache_slots)
        self.producer_ids = ProducerIds(self)
        self.groups = GroupCoordinator(self)
        self.transactions = TransactionCoordinator(self)
        self.coordinators = (self.groups, self.transactions)
        self.peers = Peers(self)
        self.questions = Questions(self)
        self.metadata_cache: dict[tuple[int, str, tuple[bool, bool]], tuple[bytes, ErrorCounts]] = {}
        self.metadata_version: tuple[int, tuple[ClusterBroker, ...]] = (-1, ())
        self.departed = Departed()
        self.listeners: list[Listener] = []
        """Where clients come in."""
        self.housekeeping = Housekeeping(self)
        self.in_sync = InSyncSets(self)
        self.replication = Replication(self)
        self.syncing = Syncing(self)
        self._cleaner = Cleaner(self, self.housekeeping)
        self.scrubber = Scrubber(self)
        self._lock: Lock | None = None
        self._erasing: set[asyncio.Task[None]] = set()
        self._forgetting: asyncio.Task[Fault | None] | None = None
        self._unhosted: set[bytes] = set()
        self._hosting: Handle | None = None
        self.serving = False
        """From the end of the start to the beginning of the stop."""
        self.doom: asyncio.Future[Fault]
        """Done when this broker must not go on."""
        self._server, self._status = self._listening()

    def _listening(self) -> tuple[Server, Status | None]:
        """What serves clients, and what tells of it if anybody wants to know."""
        dispatch, limits = Dispatch(self), Limits.of(self.config)
        if self.config.ottla_metrics_port is None:
            return Server(self.runtime, dispatch.serve, limits), None
        requests = RequestMeters(dispatch.apis, self.runtime.stopwatch)
        server = Server(self.runtime, requests.around(dispatch.serve), limits)
        return server, Status(self, server, requests, dispatch.errors)

    @property
    def image(self) -> Image:
        return self.cluster.image

    def topic_config(self, topic: Topic) -> TopicConfig:
        return resolve(topic.configs, self.config)

    # Starting and stopping.

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.doom = loop.create_future()
        disk = self.runtime.disk
        disk.on_unkept(lambda fault: loop.call_soon_threadsafe(self.fail, fault))
        disk.mkdir(self.data_dir)
        self._lock = disk.lock(f"{self.data_dir}/.lock")
        if self._lock is None:
            raise Fault(
                f"another broker is running on {self.data_dir}. Stop it first, or give this one a directory of its own "
                "with --data."
            )
        check_owner(self, None)
        self.events.starting()
        if self._status is not None:
            await self._status.start()
        self.cluster = await Cluster.open(
            self.config.ottla_store,
            self.runtime,
            data_dir=self.data_dir,
            zookeeper=ZooKeeperOptions.of(self.config),
            lease_seconds=self.config.broker_session_timeout_ms / 1000,
        )
        check_owner(self, self.cluster.cluster_id)
        self.events.joined()
        self._configure()
        mark = take_mark(self)
        await self._open_logs(mark)
        damaged = self.replicas.damaged()
        if mark is None or len(damaged) > DAMAGED_NAMED_MAX:
            mark = checkpoints.CleanShutdown()
        self.cluster.on_expelled(self.replicas.expelled)
        self.cluster.on_replaced(self._replaced)
        for listener in self.config.endpoints:
            try:
                bound = await self._server.listen(listener.name, listener.host, listener.port)
            except PortTaken as taken:
                raise Fault(f"{taken} Choose another port with --port, or in listeners.") from None
            self.listeners.append(listener.bound(bound.port))
        endpoints = [*self.listeners, *await self.peers.listen(self._server)]
        await self.cluster.register(
            BrokerRegistration(
                self.id,
                [Endpoint(e.name, e.advertised_host, e.advertised_port, e.protocol) for e in endpoints],
                self.config.broker_rack,
                *mark[:2],
                damaged[:DAMAGED_NAMED_MAX],
            )
        )
        await self._confirm_erased()
        for coordinator in self.coordinators:
            coordinator.start()
        await self._server.start()
        self.events.listening()
        self.replication.start()
        self.in_sync.start()
        self.housekeeping.start()
        self._cleaner.start()
        self.scrubber.start()
        self._check_min_in_sync()
        self.serving = True

    def _check_min_in_sync(self) -> None:
        """A value that this broker was started with and that nobody heeds any more: the cluster has its own."""
        mine, ours = self.config.started_with(min_in_sync.NAME), self.config.min_insync_replicas
        if self.config.was_started_with(min_in_sync.NAME) and mine != ours:
            log.warning(
                "%s=%s has no effect: the cluster has %s. To change it: ottla configs set broker all %s=%s",
                min_in_sync.NAME, mine, ours, min_in_sync.NAME, mine,
            )  # fmt: skip

    async def _open_logs(self, mark: checkpoints.CleanShutdown | None) -> None:
        """As the image has them; it may move on meanwhile, and what it was told in that time is made up for."""
        loaded, began = self.image, self.runtime.now()
        await self.replicas.load(loaded, mark)
        self.events.recovered(self.runtime.now() - began, clean=mark is not None)
        self.cluster.subscribe(self._changed)
        self.cluster.subscribe(self.events.changed)
        for topic_id, _ in self.replicas.unopened:
            self._host_later(topic_id)
        now = self.image
        for change in changes_between(loaded, now):
            self._changed(loaded, now, change)

    async def stop(self) -> None:
        """Leave everything so that the next start is quick and nothing is missing."""
        self.serving = False
        if self.config.controlled_shutdown_enable:
            await self._hand_over()
        for coordinator in self.coordinators:
            coordinator.close()
        await self.in_sync.stop()
        await self.replication.stop()
        self.peers.close()
        await self._server.close()
        await self._cleaner.stop()
        await self.scrubber.stop()
        await self.housekeeping.stop()
        if self._erasing:
            await asyncio.wait(self._erasing)
        await self._leave_cluster()
        if clean := await self.runtime.offload(self.replicas.close):
            me = self.cluster.registration
            assert me is not None
            mark = checkpoints.CleanShutdown(me.epoch, me.clean_since, self.replicas.logs())
            checkpoints.write_clean_shutdown(self.runtime.disk, self.data_dir, mark)
        if self._status is not None:
            await self._status.close()
        if self._lock is not None:
            self._lock.release()
        self.events.stopped(clean=clean)

    async def _hand_over(self) -> None:
        """Let others lead what they can lead; whoever produces here finds them before this broker is gone."""
        deadline = self.runtime.now() + HAND_OVER_SECONDS_MAX
        try:
            await self.cluster.drain()
            while self.runtime.now() < deadline:
                if not any(p.leads and len(p.in_sync) > 1 for p in self.replicas):
                    return
                await asyncio.sleep(HAND_OVER_LOOK_SECONDS)
            log.warning("broker %d stops although it still leads: nobody took over in time", self.id)
        except (Fault, Refused) as failure:
            log.warning("broker %d stops without handing over: %s", self.id, failure)

    def _replaced(self, fault: Fault) -> None:
        """Another process is this broker: from now on it leads, and this one must not."""
        self.replicas.expelled()
        self.fail(fault)

    def fail(self, fault: Fault) -> None:
        """Something broke that makes every promise of this broker worthless: whoever runs it ends it (`abandon`)."""
        self.serving = False
        if not self.doom.done():
            self.doom.set_result(fault)

    async def abandon(self) -> None:
        """Starting failed, or going on did: let go of what was taken, and call nothing clean."""
        if self._status is not None:
            await self._status.close()
        self.peers.close()
        await self._server.close()
        if hasattr(self, "cluster"):
            await self._leave_cluster()
        if self._lock is not None:
            self._lock.release()

    async def _leave_cluster(self) -> None:
        await self.cluster.close()
        self.events.tell()
        self.disk_errors.close()
        if self._hosting is not None:
            self._hosting.cancel()

    # What the cluster agrees on.

    def _configure(self) -> None:
        """Take up what was set for all brokers and for this one. It was checked against the controller's own settings:
        what cannot be beside this broker's is no reason to stop it."""
        configs = self.image.broker_configs
        try:
            self.config = self.config.with_dynamic(cluster=configs.get(None, {}), broker=configs.get(self.id, {}))
        except BadConfig as bad:
            log.error("broker %d goes on with the settings it has: %s", self.id, "; ".join(bad.problems))
        self.cluster.rules = rules_of(self.config, configs)
        self._server.limits = Limits.of(self.config)
        self.replication.configure()

    def _changed(self, old: Image, new: Image, change: c.Change) -> None:
        """The image moved on. What cannot be done about one change, because of a disk, keeps nothing else back."""
        try:
            self._follow(old, new, change)
        except (Fault, Refused) as failure:
            log.error("broker %d could not follow %s: %s", self.id, type(change).__name__, failure)
            if isinstance(change, c.TopicCreated | c.PartitionsAdded | c.PartitionChanged):
                self._host_later(change.topic_id)

    def _host_later(self, topic_id: bytes) -> None:
        """The disk refused to open a log of the topic, and the cluster takes it for hosted here all the same."""
        self._unhosted.add(topic_id)
        if self._hosting is None:
            self._hosting = self.runtime.call_at(self.runtime.now() + HOST_AGAIN_SECONDS, self._host_again)

    def _host_again(self) -> None:
        self._hosting = None
        topic_ids, self._unhosted = self._unhosted, set()
        image = self.image
        for topic in filter(None, map(image.topic_by_id, topic_ids)):
            for index, state in enumerate(topic.partitions):
                if self.id in state.replicas and self.replicas.get(topic.id, index) is None:
                    self._changed(image, image, c.partition_changed(topic.id, index, state))

    def _follow(self, old: Image, new: Image, change: c.Change) -> None:
        """Let the replicas follow the image."""
        if old.brokers is not new.brokers:
            self.departed.note(old.brokers, new.brokers, self.runtime.now())
        match change:
            case c.TopicCreated() | c.PartitionsAdded():
                topic = new.topic_by_id(change.topic_id)
                if topic is not None:
                    self.replicas.host(topic)
                    for index in range(len(topic.partitions)):
                        if (partition := self.replicas.get(topic.id, index)) is not None:
                            self.replication.follow(partition)
                    for coordinator in self.coordinators:
                        coordinator.follow(topic)
            case c.PartitionChanged():
                topic = new.topic_by_id(change.topic_id)
                if topic is not None:
                    self.take_up(topic, change.partition)
            case c.BrokerRegistered():
                if change.id == self.id and change.incarnation == self.cluster.incarnation:
                    self.replicas.registered(change.epoch)
                self.in_sync.look_at_all()
            case c.TopicConfigChanged():
                topic = new.topic_by_id(change.topic_id)
                if topic is not None:
                    self._configure_topic(topic)
            case c.TopicDeleted():
                topic = old.topic_by_id(change.topic_id)
                if topic is not None:
                    self._erase(topic)
                    self.traffic.forget(topic.name)
                    for coordinator in self.coordinators:
                        coordinator.topic_deleted(topic)
            case c.BrokerConfigChanged():
                self._configure()
                for topic in new.topics.values():
                    self._configure_topic(topic)

    def _configure_topic(self, topic: Topic) -> None:
        for partition in self.replicas.configure(topic):
            self.syncing.look_at(partition)

    def take_up(self, topic: Topic, index: int) -> None:
        partition = self.replicas.host_partition(topic, index)
        if partition is not None:
            self.replication.follow(partition)
        elif (moved := self.replicas.get(topic.id, index)) is not None:
            # The controller has said that others hold it now, all of them in sync: ours may go.
            self.replication.leave(moved)
            self._erase_later(topic, self.replicas.drop_partition(topic, index), deleted=False)
        for coordinator in self.coordinators:
            coordinator.follow_partition(topic, index)

    def _erase(self, topic: Topic) -> None:
        """Drop a deleted topic: nobody sees it from now on, its files go beside the loop. Whoever deletes one leaves a
        tombstone until all its files are gone: without it metadata is missing, which is no reason to lose data."""
        for index in range(len(topic.partitions)):
            partition = self.replicas.get(topic.id, index)
            if partition is not None:
                self.replication.leave(partition)
        if topic.id in self.image.tombstones:
            self._erase_later(topic, self.replicas.drop(topic), deleted=True)
        elif aside := self.replicas.drop(topic, ending=STRAY):
            log.error(
                "the cluster knows nothing of %s any more, and nothing of its deletion: its files are set aside as %s",
                topic.name, ", ".join(aside),
            )  # fmt: skip

    def _erase_later(self, topic: Topic, directories: list[str], *, deleted: bool) -> None:
        task = self.runtime.spawn(self._erase_files(topic, directories, deleted), name=f"deleting {topic.name}")
        self._erasing.add(task)
        task.add_done_callback(self._erasing.discard)

    async def _erase_files(self, topic: Topic, directories: list[str], deleted: bool) -> None:
        try:
            await self._remove(directories)
            if deleted:
                await self.cluster.replicas_erased([topic.id])
        except (Fault, Refused) as fault:
            log.warning("deleting %s: %s; the rest is removed at the next start", topic.name, fault)

    async def _remove(self, directories: list[str]) -> None:
        """Remove what was dropped, and first what checkpoints tell of it: of a partition without a directory they would
        tell that it is lost. They tell of all partitions, so when many are dropped at once it is done once."""
        if self._forgetting is None:
            self._forgetting = self.runtime.spawn(self._forget_dropped(), name="checkpoints of what is left")
        if (fault := await asyncio.shield(self._forgetting)) is not None:
            raise fault
        for directory in directories:
            await self.runtime.offload(self.runtime.disk.rmtree, directory)

    async def _forget_dropped(self) -> Fault | None:
        await asyncio.sleep(0)  # all that is dropped in this turn of the loop is dropped together
        self._forgetting = None
        try:
            for write in [self.replicas.checkpoint(name) for name in CHECKPOINTS]:
                if write is not None:
                    await self.runtime.offload(write)
        except Fault as fault:  # for all who wait for it
            return fault
        return None

    async def _confirm_erased(self) -> None:
        """Topics deleted while this broker was away: their files are gone by now, and the cluster may forget them."""
        gone = [topic_id for topic_id, tombstone in self.image.tombstones.items() if self.id in tombstone.replicas]
        if gone:
            await self.cluster.replicas_erased(gone)

    async def create_topics(self, specs: Sequence[TopicSpec]) -> list[TopicResult]:
        """Have topics made, whoever is controller. Nothing is raised: what went wrong is in the results."""
        return await forwarding.create_topics(self, specs)

    async def auto_create(self, names: list[str]) -> dict[str, ErrorCode]:
        """Make topics that a client asked about; says which could not be made."""
        for coordinator in self.coordinators:
            if coordinator.topic in names:
                await coordinator.make_topic()  # whoever asks for it, it is made as it shall be
        results = await self.create_topics([TopicSpec(name) for name in dict.fromkeys(names)])
        codes = {result.name: result.code for result in results}
        return {
            name: NOT_YET.get(code, code)
            for name, code in codes.items()
            if code not in (ErrorCode.none, ErrorCode.topic_already_exists)
        }

    def why_unknown(self, name: str) -> ErrorCode:
        """What to say of a topic that is not there."""
        try:
            check_topic_name(name)
        except Refused as refused:
            return refused.code
        return ErrorCode.unknown_topic_or_partition

    def leader_of(self, topic: str | bytes, index: int) -> tuple[int, int]:
        """Leader and epoch, for a client that came to the wrong broker."""
        name = self.image.names.get(topic) if isinstance(topic, bytes) else topic
        partition = None if name is None else self.image.partition(name, index)
        return (NO_BROKER, -1) if partition is None else (partition.leader, partition.leader_epoch)
