"""Checks of the data directory before logs are opened: its owner (`meta.properties`), and the clean-shutdown file."""

from __future__ import annotations

import logging

from ottla.cluster.image import Image
from ottla.cluster.model import NO_EPOCH
from ottla.cluster.registration import last_known_epoch
from ottla.config.broker_config import BrokerConfig
from ottla.errors import Fault
from ottla.log import checkpoints
from ottla.log.quarantine import quarantine_file
from ottla.replication.replicas import Replicas
from ottla.runtime import Disk

log = logging.getLogger("ottla.broker")


def take_mark(disk: Disk, config: BrokerConfig, image: Image, replicas: Replicas) -> checkpoints.CleanShutdown | None:
    """The clean-shutdown file, if the last stop was clean. One that is older than the last registration of this broker
    in the cluster comes from an old copy of the data directory: no log in it counts."""
    mark = checkpoints.take_clean_shutdown(disk, config.data_dir)
    if mark is None:
        return None
    if mark.epoch == NO_EPOCH:
        log.warning(
            "%s/%s does not show a clean stop: it is damaged, or another release wrote it. The logs are checked as "
            "after an unclean stop.", config.data_dir, checkpoints.CLEAN_SHUTDOWN,
        )  # fmt: skip
        return None
    known = last_known_epoch(image, config.broker_id)
    if known > mark.epoch:
        log.error(
            "%s is older than what broker %d had when it was last in the cluster (broker epoch %d, known is %d): a "
            "backup was restored. Later records are copied from other replicas; without other replicas they are "
            "lost.", config.data_dir, config.broker_id, mark.epoch, known,
        )  # fmt: skip
        replicas.outdated = True
        return None
    return mark


def check_owner(disk: Disk, config: BrokerConfig, image: Image | None) -> None:
    """Refuse data of another cluster, another broker or a newer release. `image`: None before the store is
    open; then only the cluster is not compared yet."""
    directory, broker_id = config.data_dir, config.broker_id
    try:
        meta = checkpoints.read_meta_properties(disk, directory)
    except Fault as damaged:
        if image is not None:
            _rebuild_owner(disk, config, image, damaged)
        return
    if meta is None:
        if image is not None:
            checkpoints.write_meta_properties(disk, directory, _owner(config, image))
        return
    where = f"{directory}/{checkpoints.META_PROPERTIES}"
    if meta["version"] != checkpoints.META_VERSION:
        raise Fault(
            f"{directory} has format version {meta['version']}, this release of Ottla knows {checkpoints.META_VERSION} "
            f"({where}). Use the release that wrote it, or another directory with --data."
        )
    if meta["broker.id"] != str(broker_id):
        raise Fault(
            f"{directory} belongs to broker {meta['broker.id']}, this is broker {broker_id} ({where}). "
            f"Start it with --id {meta['broker.id']}, or give another directory with --data."
        )
    if image is not None and meta["cluster.id"] != image.cluster_id:
        raise Fault(
            f"{directory} belongs to cluster {meta['cluster.id']}, the store {config.ottla_store} to "
            f"{image.cluster_id} ({where}). Give the store it was used with (--store), or another directory (--data)."
        )


def _owner(config: BrokerConfig, image: Image) -> dict[str, str]:
    return {"version": checkpoints.META_VERSION, "broker.id": str(config.broker_id), "cluster.id": image.cluster_id}


def _rebuild_owner(disk: Disk, config: BrokerConfig, image: Image, damaged: Fault) -> None:
    """Write `meta.properties` again, if the partitions beside it prove whose they are. The disk of another broker or
    cluster may be mounted here."""
    doubt = _doubt(disk, config, image)
    path = f"{config.data_dir}/{checkpoints.META_PROPERTIES}"
    if doubt:
        lines = ", ".join(f"{name}={value}" for name, value in _owner(config, image).items())
        raise Fault(
            f"{damaged} It says which broker of which cluster the directory belongs to, and nothing else proves that "
            f"it is broker {config.broker_id} of cluster {image.cluster_id}: {doubt}. Make sure that the right disk is "
            f"mounted and that --id and --store are right. If they are, write these lines into {path} and start again: "
            f"{lines}."
        )
    quarantined = quarantine_file(disk, path)
    checkpoints.write_meta_properties(disk, config.data_dir, _owner(config, image))
    log.warning(
        "%s It was rebuilt: the partitions in %s are those of broker %d in cluster %s. The damaged file is %s.",
        damaged, config.data_dir, config.broker_id, image.cluster_id, quarantined,
    )  # fmt: skip


def _doubt(disk: Disk, config: BrokerConfig, image: Image) -> str:
    """Why the partitions in the data directory may be another broker's; nothing if they are this one's for certain, or
    there are none. Topic ids are random, so a topic of another cluster is known for one. Other brokers of this cluster
    may have the same partitions: then the broker epoch in the mark of a clean stop tells them apart."""
    common: set[int] | None = None
    for name in disk.listdir(config.data_dir):
        topic, _, index = name.rpartition("-")
        path = f"{config.data_dir}/{name}"
        if not topic or not index.isdecimal() or not disk.is_directory(path) or not disk.listdir(path):
            continue
        try:
            topic_id = checkpoints.read_partition_metadata(disk, path)
        except Fault:
            topic_id = None
        if topic_id in image.tombstones or topic_id in image.deleting:
            continue  # deleted while this broker was stopped
        known = image.partition(topic, int(index))
        if topic_id is None or known is None or image.topics[topic].id != topic_id:
            return f"{name} is no partition of this cluster"
        if config.broker_id not in known.replicas:
            return f"{name} has no replica on broker {config.broker_id}"
        common = {*known.replicas} if common is None else common & {*known.replicas}
    others = sorted((common or set()) - {config.broker_id})
    if not others:
        return ""
    mark = checkpoints.read_clean_shutdown(disk, config.data_dir)
    if mark is not None and mark.epoch != NO_EPOCH and mark.epoch == last_known_epoch(image, config.broker_id):
        return ""
    return f"broker {others[0]} has replicas of the same partitions"
