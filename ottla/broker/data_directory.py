"""What a broker asks of its data directory before it opens a log in it: whose it is, and whether the stop before this
start was a clean one."""

from __future__ import annotations

import logging

from ottla.cluster.image import Image
from ottla.cluster.model import NO_EPOCH
from ottla.cluster.registration import last_known_epoch
from ottla.config.broker_config import BrokerConfig
from ottla.errors import Fault
from ottla.log import checkpoints
from ottla.replication.replicas import Replicas
from ottla.runtime import Disk

log = logging.getLogger("ottla.broker")

META_VERSION = "0"


def take_mark(disk: Disk, config: BrokerConfig, image: Image, replicas: Replicas) -> checkpoints.CleanShutdown | None:
    """The mark of the clean stop before this start, if it proves one. One that is older than the last registration that
    the cluster knows of this broker came with an older copy of the data directory: no log in it counts for anything."""
    mark = checkpoints.take_clean_shutdown(disk, config.data_dir)
    if mark is None:
        return None
    if mark.epoch == NO_EPOCH:
        log.warning(
            "%s/%s tells nothing of a clean stop: it is damaged, or another release wrote it. The logs are checked as "
            "after a stop that was not clean.", config.data_dir, checkpoints.CLEAN_SHUTDOWN,
        )  # fmt: skip
        return None
    known = last_known_epoch(image, config.broker_id)
    if known > mark.epoch:
        log.error(
            "%s is older than what broker %d had when it was last in the cluster (broker epoch %d, known is %d): a "
            "backup was put back. What was written since is copied from other replicas; where there are none it is "
            "lost.", config.data_dir, config.broker_id, mark.epoch, known,
        )  # fmt: skip
        replicas.outdated = True
        return None
    return mark


def check_owner(disk: Disk, config: BrokerConfig, cluster_id: str | None) -> None:
    """Data of another cluster, another broker or a newer release is not touched."""
    directory, broker_id = config.data_dir, config.broker_id
    meta = checkpoints.read_meta_properties(disk, directory)
    if meta is None:
        if cluster_id is not None:
            checkpoints.write_meta_properties(
                disk,
                directory,
                {"version": META_VERSION, "broker.id": str(broker_id), "cluster.id": cluster_id},
            )
        return
    where = f"{directory}/{checkpoints.META_PROPERTIES}"
    if meta.get("version") != META_VERSION:
        raise Fault(
            f"{directory} has format version {meta.get('version')}, this release of Ottla knows {META_VERSION} "
            f"({where}). Use the release that wrote it, or another directory with --data."
        )
    if meta.get("broker.id") != str(broker_id):
        raise Fault(
            f"{directory} belongs to broker {meta.get('broker.id')}, this is broker {broker_id} ({where}). "
            f"Start it with --id {meta.get('broker.id')}, or give another directory with --data."
        )
    if cluster_id is not None and meta.get("cluster.id") != cluster_id:
        raise Fault(
            f"{directory} belongs to cluster {meta.get('cluster.id')}, the store {config.ottla_store} to "
            f"{cluster_id} ({where}). Give the store it was used with (--store), or another directory (--data)."
        )
