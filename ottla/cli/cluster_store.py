"""Metadata store of a cluster, opened by a command: reads the image, and sends requests as a broker.

For repairs that only brokers may make: they authenticate with the secret that is in the store, so the
user of the command must be able to read the store.
"""

from __future__ import annotations

import asyncio
import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from ottla.cli.failure import Failure, Misused, TryAgain
from ottla.client.admin.transaction_admin import ActiveProducer
from ottla.client.values import TopicPartition
from ottla.cluster.cluster import DEFAULT_FILE, Cluster
from ottla.cluster.image import Image
from ottla.cluster.zookeeper_options import ZooKeeperOptions
from ottla.config import BadConfig, BrokerConfig, load_broker_config
from ottla.config.listeners import REPLICATION
from ottla.errors import ErrorCode, Fault
from ottla.net.authentication import BrokerIdentity
from ottla.net.outbound import OutboundConnection, open_to_broker
from ottla.runtime.real import RealRuntime
from ottla.wire.schema.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

T = TypeVar("T")

ANSWER_TIMEOUT_S = 30.0


class ClusterStore(NamedTuple):
    """The options that name the store."""

    url: str | None
    config_file: str | None

    def broker_config(self, flags: dict[str, str]) -> BrokerConfig:
        """The configuration of a broker that is started with these options."""
        if self.url is not None:
            flags = {**flags, "ottla.store": self.url}
        try:
            return load_broker_config(file=self.config_file, environment=os.environ, flags=flags)
        except BadConfig as bad:
            raise Misused("; ".join(bad.problems)) from None

    def abort(self, tp: TopicPartition, producer: ActiveProducer) -> None:
        """Write the abort marker that no coordinator will write."""
        config = self.broker_config({})
        code = asyncio.run(_write_marker(config, tp, producer))
        if code:
            raise TryAgain(f"broker says {code.name}", hint="The transaction is unchanged.")


def store_options(command: Callable[..., T]) -> Callable[..., T]:
    """Adds --store and --config; the command receives both as `store`."""

    @click.option("--store", metavar="STORE", help="The cluster's metadata store (ottla.store).")
    @click.option("--config", "file", metavar="FILE", envvar="OTTLA_CONFIG", help="A broker's server.properties file.")
    @functools.wraps(command)
    def with_store(*args: Any, store: str | None, file: str | None, **others: Any) -> T:
        return command(*args, store=ClusterStore(store, file), **others)

    return with_store


async def _write_marker(config: BrokerConfig, tp: TopicPartition, producer: ActiveProducer) -> ErrorCode:
    topic = WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=[topic],
        coordinator_epoch=max(producer.coordinator_epoch, 0),
    )
    runtime = RealRuntime()
    try:
        connection = await _open_leader(config, runtime, tp)
        answer = await connection.call(
            WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse, ANSWER_TIMEOUT_S
        )
        connection.close()
    except Fault as fault:
        raise Failure(str(fault)) from None
    finally:
        await runtime.close()
    return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)


async def _open_leader(config: BrokerConfig, runtime: RealRuntime, tp: TopicPartition) -> OutboundConnection:
    """A connection to the leader of the partition, on the inter-broker listener."""
    image, secret = await read_store(config, runtime)
    partition = image.partition(*tp)
    broker = None if partition is None else image.brokers.get(partition.leader)
    if broker is None:
        raise Failure(f"{tp} is not in this cluster, or has no leader now")
    endpoint = broker.endpoint(config.inter_broker_endpoint.name) or broker.endpoint(REPLICATION)
    if endpoint is None:
        raise Failure(f"broker {broker.id} has no listener for brokers: set inter.broker.listener.name as it has")
    # Authenticated as the leader itself, which may write markers to its own partitions.
    return await open_to_broker(runtime, endpoint.host, endpoint.port, BrokerIdentity(broker.id, secret), broker.id)


async def read_store(config: BrokerConfig, runtime: RealRuntime) -> tuple[Image, bytes]:
    """The metadata image, and the secret of the cluster."""
    with tempfile.TemporaryDirectory() as scratch:
        zookeeper = ZooKeeperOptions.of(config)
        return await Cluster.peek(_store_url(config), runtime, data_dir=scratch, zookeeper=zookeeper)


def _store_url(config: BrokerConfig) -> str:
    """A store that does not exist is not created."""
    kind, _, path = config.ottla_store.partition(":")
    if kind != "embedded":
        return config.ottla_store
    path = path or f"{config.data_dir}/{DEFAULT_FILE}"
    if not Path(path).exists():
        raise Failure(f"there is no store {path}", hint="Name it as for `ottla serve`: --store, or --config.")
    return f"embedded:{path}"
