"""Partition directories, `topic-partition`: which partition a directory belongs to.

The topic id is in Kafka's `partition.metadata` and in the manifest. If neither can be read, the name decides: a deleted
topic leaves a tombstone until this broker has removed its files, so without a tombstone the directory belongs to the
topic that has this name now.
"""

from __future__ import annotations

import logging

from ottla.errors import Fault, StorageFault
from ottla.log import checkpoints, manifest
from ottla.log.quarantine import quarantine_directories
from ottla.runtime import Disk

log = logging.getLogger("ottla.replicas")

Key = tuple[str, int]
NO_TOPIC = bytes(16)


def partition_of(name: str) -> Key | None:
    """The topic and the partition that a directory is named after."""
    topic, dash, index = name.rpartition("-")
    return (topic, int(index)) if dash and topic and index.isdigit() else None


def has_log(disk: Disk, path: str) -> bool:
    return any(name.endswith(".log") for name in disk.listdir(path))


def topic_id_of(disk: Disk, path: str, expected: bytes | None, *, deleted: bool) -> bytes | None:
    """The topic that a directory belongs to, as Kafka's file says; if that says another one, or cannot be read, as the
    manifest says, which has a checksum. `expected`: the topic that has the name now; `deleted`: another one had it, and
    its files may still be here. None: nothing says anything."""
    recorded: bytes | None = None
    damaged: Fault | None = None
    try:
        recorded = checkpoints.read_partition_metadata(disk, path)
    except StorageFault:
        if not (quarantined := quarantine_directories(disk, path)):
            raise
        log.warning("%s", ", ".join(quarantined))
    except Fault as fault:
        damaged = fault
    if damaged is None and recorded in (None, expected):
        return recorded
    try:
        found = manifest.read(disk, path)
    except manifest.ManifestDamaged:
        found = None
    if found is not None and found.topic_id is not None:
        if found.topic_id != recorded:
            log.warning("%s/%s is not what the manifest says: rebuilt", path, checkpoints.PARTITION_METADATA)
            _rebuild(disk, path, found.topic_id)
        return found.topic_id
    if damaged is None:
        return recorded
    if deleted or expected is None:
        log.error("%s It is not known which topic the directory belongs to.", damaged)
        return NO_TOPIC
    log.warning("%s It is rebuilt: no other topic had the name.", damaged)
    _rebuild(disk, path, expected)
    return expected


def _rebuild(disk: Disk, path: str, topic_id: bytes) -> None:
    disk.remove(f"{path}/{checkpoints.PARTITION_METADATA}")
    checkpoints.write_partition_metadata(disk, path, topic_id)
