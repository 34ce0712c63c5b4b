"""Speaking for a cluster without being one of its brokers: with the secret that stands in its store.

For repairs that only brokers may make, so that no client can. Whoever can read the store has the secret anyway.
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


class Outside(NamedTuple):
    """How the store is found."""

    store: str | None
    config_file: str | None

    def broker_config(self, flags: dict[str, str]) -> BrokerConfig:
        """As a broker would be started that is told of the store in this way."""
        if self.store is not None:
            flags = {**flags, "ottla.store": self.store}
        try:
            return load_broker_config(file=self.config_file, environment=os.environ, flags=flags)
        except BadConfig as bad:
            raise Misused("; ".join(bad.problems)) from None

    def store_of(self, config: BrokerConfig) -> str:
        return _store(config)

    def abort(self, place: TopicPartition, producer: ActiveProducer) -> None:
        """Write the marker that its coordinator will never write."""
        config = self.broker_config({})
        code = asyncio.run(_write_marker(config, place, producer))
        if code:
            raise TryAgain(f"broker says {code.name}", hint="The transaction is as it was.")


def store_options(command: Callable[..., T]) -> Callable[..., T]:
    """--store and --config; the command gets both as `outside`."""

    @click.option("--store", metavar="STORE", help="The cluster's metadata store (ottla.store).")
    @click.option("--config", "file", metavar="FILE", envvar="OTTLA_CONFIG", help="A broker's server.properties file.")
    @functools.wraps(command)
    def with_store(*args: Any, store: str | None, file: str | None, **others: Any) -> T:
        return command(*args, outside=Outside(store, file), **others)

    return with_store


async def _write_marker(config: BrokerConfig, place: TopicPartition, producer: ActiveProducer) -> ErrorCode:
    topic = WritableTxnMarkerTopic(name=place.topic, partition_indexes=[place.partition])
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=[topic],
        coordinator_epoch=max(producer.coordinator_epoch, 0),
    )
    runtime = RealRuntime()
    try:
        connection = await _open_leader(config, runtime, place)
        answer = await connection.call(
            WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse, ANSWER_TIMEOUT_S
        )
        connection.close()
    except Fault as fault:
        raise Failure(str(fault)) from None
    finally:
        await runtime.close()
    return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)


async def _open_leader(config: BrokerConfig, runtime: RealRuntime, place: TopicPartition) -> OutboundConnection:
    """A connection to whoever leads the partition, on the listener that brokers use."""
    with tempfile.TemporaryDirectory() as scratch:
        image, secret = await Cluster.peek(
            _store(config), runtime, data_dir=scratch, zookeeper=ZooKeeperOptions.of(config)
        )
    partition = image.partition(*place)
    broker = None if partition is None else image.brokers.get(partition.leader)
    if broker is None:
        raise Failure(f"{place} is not in this cluster, or has no leader now")
    endpoint = broker.endpoint(config.inter_broker_endpoint.name) or broker.endpoint(REPLICATION)
    if endpoint is None:
        raise Failure(f"broker {broker.id} has no listener for brokers: set inter.broker.listener.name as it has")
    # In the leader's own name: this is what it could have written itself.
    return await open_to_broker(runtime, endpoint.host, endpoint.port, BrokerIdentity(broker.id, secret), broker.id)


def _store(config: BrokerConfig) -> str:
    """The store's address in full. A file that is not there is not made here."""
    kind, _, path = config.ottla_store.partition(":")
    if kind != "embedded":
        return config.ottla_store
    path = path or f"{config.data_dir}/{DEFAULT_FILE}"
    if not Path(path).exists():
        raise Failure(f"there is no store {path}", hint="Name it as for `ottla serve`: --store, or --config.")
    return f"embedded:{path}"
