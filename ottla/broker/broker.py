"""The composition root: constructs, starts and stops the services of one broker.

    start   lock the data directory -> join the cluster -> open the logs -> bind -> register -> replicate -> coordinate
            -> accept
    stop    hand over leadership -> close connections -> leave the cluster -> sync and close the logs -> write the
            clean-shutdown file

The clean-shutdown file says that no log needs recovery at the next start. It has the broker epoch under which the logs
were closed, and is removed as soon as the next start has begun.

Changes of the metadata image reach the services in a fixed order (`_services`): first those that host partitions, then
those that depend on them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import ottla.broker.handlers  # noqa: F401 (registers them)
from ottla.broker.context import Context
from ottla.broker.data_directory import check_owner, take_mark
from ottla.broker.disk_errors import DiskErrors
from ottla.broker.dispatch import Dispatch
from ottla.broker.event_log import EventLog
from ottla.broker.metadata_cache import MetadataCache
from ottla.broker.meter import RequestMeters
from ottla.broker.peers import BrokerPeers
from ottla.broker.producer_ids import ProducerIds
from ottla.broker.status import Status
from ottla.broker.topic_creation import TopicCreation
from ottla.broker.traffic import TopicTraffic
from ottla.cluster import changes as c
from ottla.cluster.cluster import Cluster
from ottla.cluster.diff import changes_between
from ottla.cluster.elections import MIN_IN_SYNC
from ottla.cluster.image import Endpoint, Image
from ottla.cluster.requests import RegistrationRequest
from ottla.cluster.rules import rules_of
from ottla.cluster.zookeeper_options import ZooKeeperOptions
from ottla.config.broker_config import BrokerConfig, LiveConfig
from ottla.config.listeners import Listener
from ottla.config.setting import BadConfig
from ottla.config.topic_config import resolve
from ottla.coordinator.group_coordinator import GroupCoordinator
from ottla.coordinator.marker_writer import MarkerWriter
from ottla.coordinator.transaction_coordinator import TransactionCoordinator
from ottla.coordinator.transaction_verification import TransactionVerifier
from ottla.errors import Fault, PortTaken, Refused
from ottla.log import checkpoints
from ottla.net.connection_limits import NetworkLimits
from ottla.net.replies import answer_due
from ottla.net.server import Serve, Server
from ottla.replication.deletion import SegmentDeletion
from ottla.replication.fetch_sessions import FetchSessionCache
from ottla.replication.isr import IsrManager
from ottla.replication.log_cleaner import LogCleaner
from ottla.replication.log_manager import LogManager
from ottla.replication.replica_manager import ReplicaManager
from ottla.replication.replicas import Replicas
from ottla.replication.scrubber import Scrubber
from ottla.replication.waits import DelayedOperations
from ottla.runtime import Lock, Runtime
from ottla.runtime.scheduler import Scheduler

log = logging.getLogger("ottla.broker")

HAND_OVER_SECONDS_MAX: Final = 30.0
HAND_OVER_LOOK_SECONDS: Final = 0.02
DAMAGED_NAMED_MAX: Final = 5000
"""How many damaged partitions a registration names, for it has to fit into a node of the store. With more of them the
stop does not count as clean."""


class Broker:
    def __init__(
        self, config: BrokerConfig, runtime: Runtime, *, intercept: Callable[[Serve], Serve] | None = None
    ) -> None:
        """`intercept`: for tests, which inject errors before requests are served."""
        self.id = config.broker_id
        self.runtime = runtime
        self.live_config = live = LiveConfig(config)
        self.cluster = cluster = Cluster(
            config.ottla_store,
            runtime,
            data_dir=config.data_dir,
            zookeeper=ZooKeeperOptions.of(config),
            lease_seconds=config.broker_session_timeout_ms / 1000,
        )
        self.peers = BrokerPeers(runtime, live, cluster)
        self.disk_errors = DiskErrors(runtime)
        self.replicas = Replicas(
            runtime,
            config.data_dir,
            config.broker_id,
            lambda topic: resolve(topic.configs, live.current),
            config.partition_producer_ids_max,
        )
        self.replicas.on_write_refused = self.disk_errors.write_refused
        self.isr = IsrManager(runtime, live, cluster, self.replicas, self.peers)
        segment_deletion = SegmentDeletion(runtime)
        self.delayed = DelayedOperations(runtime, answer_due)
        self.replica_manager = ReplicaManager(
            runtime, live, cluster, self.replicas, self.peers, self.isr, segment_deletion, self.delayed
        )
        topics = TopicCreation(live, cluster, self.peers)
        self.groups = GroupCoordinator(runtime, live, cluster, self.replica_manager, topics.create)
        marker_writer = MarkerWriter(runtime, self.replica_manager, self.groups)
        self.transactions = TransactionCoordinator(
            runtime, live, cluster, self.replica_manager, topics.create, self.peers, marker_writer
        )
        self._scheduler = Scheduler(runtime)
        self.log_manager = LogManager(runtime, live, self.replica_manager, segment_deletion)
        self._log_cleaner = LogCleaner(runtime, live, self.replica_manager, segment_deletion)
        self.scrubber = Scrubber(runtime, live, self.replica_manager)
        self.events = EventLog(runtime, config, cluster, self.replicas)
        self.context = self._context(topics, marker_writer)
        self._services = (
            self.replica_manager, self.isr, self.groups, self.transactions, self.context.traffic, self.peers,
            self.events,
        )  # fmt: skip
        dispatch = Dispatch(self.context)
        self.peers.ask_here = dispatch.ask_here
        self.context.serve_forwarded = dispatch.serve_forwarded
        self._server, self._status = self._listening(dispatch)
        if intercept is not None:
            self._server.serve = intercept(self._server.serve)
        self.listeners: list[Listener] = []
        """The listeners for clients."""
        self._lock: Lock | None = None
        self.serving = False
        """From the end of the start to the beginning of the stop."""
        self.fatal_error: asyncio.Future[Fault]
        """Done when this broker has to end."""

    def _context(self, topics: TopicCreation, marker_writer: MarkerWriter) -> Context:
        config = self.config
        return Context(
            id=self.id,
            data_dir=config.data_dir,
            runtime=self.runtime,
            live_config=self.live_config,
            cluster=self.cluster,
            peers=self.peers,
            topic_creation=topics,
            replicas=self.replicas,
            replica_manager=self.replica_manager,
            isr=self.isr,
            delayed=self.delayed,
            groups=self.groups,
            transactions=self.transactions,
            verifier=TransactionVerifier(
                self.runtime, self.live_config, self.cluster, self.replicas, self.transactions, self.peers
            ),
            marker_writer=marker_writer,
            fetch_sessions=FetchSessionCache(
                self.runtime.random, config.max_incremental_fetch_session_cache_slots
            ),
            producer_ids=ProducerIds(self.cluster),
            metadata_cache=MetadataCache(),
            traffic=TopicTraffic(config.ottla_metrics_topics_max),
            disk_errors=self.disk_errors,
            log_manager=self.log_manager,
            scrubber=self.scrubber,
        )

    def _listening(self, dispatch: Dispatch) -> tuple[Server, Status | None]:
        """The network server, and the status server if `ottla.metrics.port` is set."""
        config = self.live_config.current
        limits = NetworkLimits.of(config)
        if config.ottla_metrics_port is None:
            return Server(self.runtime, dispatch.serve, limits, self.delayed), None
        requests = RequestMeters(dispatch.apis, self.runtime.stopwatch)
        server = Server(self.runtime, requests.around(dispatch.serve), limits, self.delayed)
        return server, Status(self.context, server, requests, dispatch.errors, lambda: self.serving)

    @property
    def config(self) -> BrokerConfig:
        return self.live_config.current

    @property
    def image(self) -> Image:
        return self.cluster.image

    # Starting and stopping.

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.fatal_error = loop.create_future()
        disk, config = self.runtime.disk, self.config
        disk.on_sync_failure(lambda fault: loop.call_soon_threadsafe(self.fail, fault))
        disk.mkdir(config.data_dir)
        self._lock = disk.lock(f"{config.data_dir}/.lock")
        if self._lock is None:
            raise Fault(
                f"another broker is running on {config.data_dir}. Stop it first, or give this one a directory of its "
                "own with --data."
            )
        check_owner(disk, config, None)
        self.events.starting()
        if self._status is not None:
            await self._status.start()
        await self.cluster.open()
        check_owner(disk, config, self.image)
        self.events.joined()
        self._configure()
        mark = take_mark(disk, config, self.image, self.replicas)
        await self._open_logs(mark)
        damaged = self.replicas.damaged()
        if mark is None or len(damaged) > DAMAGED_NAMED_MAX:
            mark = checkpoints.CleanShutdown()
        self.cluster.on_session_expired(self.replicas.session_expired)
        self.cluster.on_duplicate_broker_id(self._replaced)
        endpoints = await self._bind()
        await self.cluster.register(
            RegistrationRequest(
                self.id,
                [Endpoint(e.name, e.advertised_host, e.advertised_port, e.protocol) for e in endpoints],
                config.broker_rack,
                *mark[:2],
                damaged[:DAMAGED_NAMED_MAX],
            )
        )
        await self.replica_manager.topic_deletion.confirm_earlier(self.id)
        for coordinator in self.context.coordinators:
            coordinator.start()
        await self._server.start()
        self.events.listening(self.listeners)
        self.replica_manager.start()
        self.isr.start()
        self.log_manager.start(self._scheduler)
        config = self.config
        self._scheduler.every(
            config.offsets_retention_check_interval_ms / 1000, self.groups.expire_offsets, name="offset expiration"
        )
        self._scheduler.every(
            config.transaction_remove_expired_transaction_cleanup_interval_ms / 1000,
            self.transactions.expire_ids,
            name="transactional id expiration",
        )
        self._log_cleaner.start()
        self.scrubber.start()
        self._check_min_in_sync()
        self.serving = True

    async def _open_logs(self, mark: checkpoints.CleanShutdown | None) -> None:
        """Open the logs of the image; changes of the image meanwhile are applied afterwards."""
        loaded, began = self.image, self.runtime.now()
        await self.replicas.load(loaded, mark)
        self.events.recovered(self.runtime.now() - began, clean=mark is not None)
        self.cluster.subscribe(self._image_changed)
        for topic_id, _ in self.replicas.unopened:
            self.replica_manager.host_later(topic_id)
        now = self.image
        for change in changes_between(loaded, now):
            self._image_changed(loaded, now, change)

    async def _bind(self) -> list[Listener]:
        for listener in self.config.endpoints:
            try:
                bound = await self._server.listen(listener.name, listener.host, listener.port)
            except PortTaken as taken:
                raise Fault(f"{taken} Choose another port with --port, or in listeners.") from None
            self.listeners.append(listener.bound(bound.port))
        return [*self.listeners, *await self.peers.listen(self._server)]

    def _check_min_in_sync(self) -> None:
        """Warn of a min.insync.replicas in this broker's configuration that the cluster's value overrides."""
        mine, ours = self.config.started_with(MIN_IN_SYNC), self.config.min_insync_replicas
        if self.config.was_started_with(MIN_IN_SYNC) and mine != ours:
            log.warning(
                "%s=%s has no effect: the cluster has %s. To change it: ottla configs set broker all %s=%s",
                MIN_IN_SYNC, mine, ours, MIN_IN_SYNC, mine,
            )  # fmt: skip

    async def stop(self) -> None:
        """Controlled shutdown: nothing is lost, and the next start needs no recovery."""
        self.serving = False
        if self.config.controlled_shutdown_enable:
            await self._hand_over()
        for coordinator in self.context.coordinators:
            coordinator.close()
        answer_due(self.delayed)  # NOT_COORDINATOR, before the connections are closed
        await self.isr.stop()
        await self.replica_manager.stop()
        self.peers.close()
        await self._server.close()
        await self._log_cleaner.stop()
        await self.scrubber.stop()
        await self._scheduler.stop()
        await self.replica_manager.topic_deletion.finish()
        await self._leave_cluster()
        if clean := await self.runtime.offload(self.replicas.close):
            me = self.cluster.registration
            assert me is not None
            mark = checkpoints.CleanShutdown(me.epoch, me.clean_since, self.replicas.logs())
            checkpoints.write_clean_shutdown(self.runtime.disk, self.config.data_dir, mark)
        if self._status is not None:
            await self._status.close()
        if self._lock is not None:
            self._lock.release()
        self.events.stopped(clean=clean)

    async def _hand_over(self) -> None:
        """Move leadership to other brokers; clients find the new leaders before this broker stops."""
        deadline = self.runtime.now() + HAND_OVER_SECONDS_MAX
        try:
            await self.cluster.drain()
            while self.runtime.now() < deadline:
                if not any(p.leads and len(p.in_sync) > 1 for p in self.replicas):
                    return
                await asyncio.sleep(HAND_OVER_LOOK_SECONDS)
            log.warning("broker %d stops although it still leads: no other broker took over in time", self.id)
        except (Fault, Refused) as failure:
            log.warning("broker %d stops without handing over: %s", self.id, failure)

    def _replaced(self, fault: Fault) -> None:
        """Another process has registered with this broker id: this one must not lead any more."""
        self.replicas.session_expired()
        self.fail(fault)

    def fail(self, fault: Fault) -> None:
        """A fatal error: the process has to end (`abandon`)."""
        self.serving = False
        if not self.fatal_error.done():
            self.fatal_error.set_result(fault)

    async def abandon(self) -> None:
        """After a failed start or a fatal error: release everything, without a clean shutdown."""
        if self._status is not None:
            await self._status.close()
        self.peers.close()
        await self._server.close()
        await self._leave_cluster()
        if self._lock is not None:
            self._lock.release()

    async def _leave_cluster(self) -> None:
        await self.cluster.close()
        self.events.flush()
        self.disk_errors.close()
        self.replica_manager.close()

    # Metadata.

    def _image_changed(self, old: Image, new: Image, change: c.Change) -> None:
        if old.brokers is not new.brokers:
            self.context.metadata_cache.removed.note(old.brokers, new.brokers, self.runtime.now())
        if isinstance(change, c.BrokerConfigChanged):
            self._configure()
        for service in self._services:
            service.image_changed(old, new, change)

    def _configure(self) -> None:
        """Apply the dynamic settings of all brokers and of this one. The controller has checked them against its own
        settings; if they do not fit to this broker's, it goes on with its current ones."""
        configs = self.image.broker_configs
        try:
            self.live_config.current = self.config.with_dynamic(
                cluster=configs.get(None, {}), broker=configs.get(self.id, {})
            )
        except BadConfig as bad:
            log.error("broker %d keeps its present settings: %s", self.id, "; ".join(bad.problems))
        self.cluster.rules = rules_of(self.config, configs)
        self._server.limits = NetworkLimits.of(self.config)
        self.replica_manager.configure()
