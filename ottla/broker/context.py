"""Context: the services of one broker by name, for handlers, metrics and status."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ottla.access.session import Session
from ottla.broker.disk_errors import DiskErrors
from ottla.broker.metadata_cache import MetadataCache
from ottla.broker.producer_ids import ProducerIds
from ottla.broker.traffic import TopicTraffic
from ottla.cluster.cluster import Cluster
from ottla.cluster.image import Image
from ottla.config.broker_config import BrokerConfig, LiveConfig
from ottla.coordinator.coordinator_service import CoordinatorService
from ottla.coordinator.group_coordinator import GroupCoordinator
from ottla.coordinator.marker_writer import MarkerWriter
from ottla.coordinator.transaction_coordinator import TransactionCoordinator
from ottla.coordinator.transaction_verification import TransactionVerifier
from ottla.replication.fetch_sessions import FetchSessionCache
from ottla.replication.isr import IsrManager
from ottla.replication.log_manager import LogManager
from ottla.replication.replica_manager import ReplicaManager
from ottla.replication.replicas import Replicas
from ottla.replication.scrubber import Scrubber
from ottla.replication.waits import DelayedOperations
from ottla.runtime import Runtime

if TYPE_CHECKING:
    from ottla.broker.peers import BrokerPeers
    from ottla.broker.topic_creation import TopicCreation


@dataclass(slots=True, eq=False)
class Context:
    id: int
    data_dir: str
    runtime: Runtime
    live_config: LiveConfig
    cluster: Cluster
    peers: BrokerPeers
    topic_creation: TopicCreation
    replicas: Replicas
    replica_manager: ReplicaManager
    isr: IsrManager
    delayed: DelayedOperations
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    verifier: TransactionVerifier
    marker_writer: MarkerWriter
    fetch_sessions: FetchSessionCache
    producer_ids: ProducerIds
    metadata_cache: MetadataCache
    traffic: TopicTraffic
    disk_errors: DiskErrors
    log_manager: LogManager
    scrubber: Scrubber
    serve_forwarded: Callable[[memoryview, Session], Awaitable[bytes]] = field(init=False)
    """Serves a request that another broker forwards: whole request in, whole response out (`dispatch`)."""

    @property
    def config(self) -> BrokerConfig:
        return self.live_config.current

    @property
    def image(self) -> Image:
        return self.cluster.image

    @property
    def coordinators(self) -> tuple[CoordinatorService[Any], CoordinatorService[Any]]:
        """By the key type of FindCoordinator."""
        return self.groups, self.transactions
