"""`ottla log remove-strays`: remove stray directories, which are not partitions of this broker.

The store is read first: a directory stays if the cluster's metadata assigns it to this broker, or if it may be the only
copy of offsets that a partition lacks. Without the store, or with the store of another cluster, nothing is removed.
"""

from __future__ import annotations

import asyncio
import os
import re
from typing import Final, NamedTuple

import click

from ottla.cli.cluster_store import ClusterStore, read_store, store_options
from ottla.cli.failure import Failure, Misused
from ottla.cli.output import human_bytes, json_option, print_json, print_table
from ottla.cluster.image import Image
from ottla.errors import Fault
from ottla.log import checkpoints, manifest
from ottla.log.verify import stray_directories
from ottla.runtime.disk import RealDisk
from ottla.runtime.real import RealRuntime

_STRAY: Final = re.compile(r"(?P<name>.+)\.(?P<id>[0-9a-f]{32})-(?P<index>\d+)(\.\d+)?-stray")


class Stray(NamedTuple):
    path: str
    size_bytes: int
    needed: str
    """Why it stays; empty if it may be removed."""


@click.command("remove-strays")
@click.argument("directory", metavar="DIR")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@store_options
@json_option
def remove_strays(directory: str, yes: bool, store: ClusterStore, as_json: bool) -> None:
    """Remove stray directories (*-stray) from a data directory, while its broker is stopped. A broker renames a
    directory so when it is not one of its partitions: the topic is not in the cluster's metadata, or the replica was
    moved away. The command lists them and asks before it removes them. A directory that the metadata assigns to this
    broker stays; all stay if the metadata cannot be read. Exit status: 0 done, or there are none; 1 failed or
    declined; 2 there is no such data directory.

    \b
    Example:
      ottla log remove-strays ottla-data
    """
    directory = directory.rstrip("/") or "/"
    disk = RealDisk()
    if not disk.exists(f"{directory}/{checkpoints.META_PROPERTIES}"):
        raise Misused(f"{directory} is not a data directory", hint="Name the data directory of a broker (log.dirs).")
    lock = disk.lock(f"{directory}/.lock")
    if lock is None:
        raise Failure(f"a broker is running on {directory}", hint="Stop it first.")
    try:
        paths = stray_directories(disk, directory)
        strays = _judged(disk, directory, paths, store) if paths else []
        going = [stray for stray in strays if not stray.needed]
        if not as_json:
            _show(strays)
        if going and not yes:
            click.confirm(f"Remove {len(going)} for good?", abort=True, err=as_json)
        for stray in going:
            disk.rmtree(stray.path)
        if going:
            disk.sync_dir(directory)
    except Fault as fault:
        raise Failure(str(fault)) from None
    finally:
        lock.release()
    if as_json:
        stay = [{"path": stray.path, "why": stray.needed} for stray in strays if stray.needed]
        print_json({"removed": [stray.path for stray in going], "kept": stay})
    elif going:
        click.echo(f"removed {len(going)}: {human_bytes(sum(stray.size_bytes for stray in going))}")
    elif strays:
        click.echo("nothing was removed")


def _show(strays: list[Stray]) -> None:
    if not strays:
        click.echo("there are no stray directories")
        return
    other = "not a partition of this broker"
    rows = [(os.path.basename(each.path), human_bytes(each.size_bytes), each.needed or other) for each in strays]
    print_table(("DIRECTORY", "SIZE", "WHAT IT IS"), rows)


def _judged(disk: RealDisk, directory: str, paths: list[str], store: ClusterStore) -> list[Stray]:
    properties = checkpoints.read_meta_properties(disk, directory) or {}
    image = asyncio.run(_image(store, directory))
    ours = properties.get("cluster.id")
    if ours is not None and image.cluster_id != ours:
        raise Failure(
            f"{directory} belongs to the cluster {ours}, the store is of {image.cluster_id}",
            hint="Nothing was removed.",
        )
    broker_id = int(properties.get("broker.id", properties.get("node.id", "-1")))
    return [Stray(path, _size(path), _needed(disk, path, image, broker_id)) for path in paths]


async def _image(store: ClusterStore, directory: str) -> Image:
    runtime = RealRuntime()
    try:
        return (await read_store(store.broker_config({"log.dirs": directory}), runtime))[0]
    finally:
        await runtime.close()


def _needed(disk: RealDisk, path: str, image: Image, broker_id: int) -> str:
    if os.path.islink(path):
        return "a link: remove it yourself"
    found = _STRAY.fullmatch(os.path.basename(path))
    if found is None:
        return "not named by a broker: remove it yourself"
    try:
        inside = checkpoints.read_partition_metadata(disk, path)
    except Fault:
        inside = None
    ids = {bytes.fromhex(found["id"]), inside or b""} - {bytes(16), b""}
    index = int(found["index"])
    topics = [topic for each in ids if (topic := image.topic_by_id(each)) is not None]
    if not ids:  # no topic id: only the name is left
        named = image.topic(found["name"].rpartition("-")[0])
        topics = [] if named is None else [named]
    for topic in topics:
        if index < len(topic.partitions) and broker_id in topic.partitions[index].replicas:
            there = f"{os.path.dirname(path)}/{topic.name}-{index}"
            if not os.path.isdir(there):
                return f"{topic.name}-{index}, which this broker holds: move it back, see operating.md"
            return f"a copy of {topic.name}-{index}, which this broker holds as {there}: remove it yourself"
    return _lacked(disk, os.path.dirname(path), found["name"], index, image, broker_id)


def _lacked(disk: RealDisk, directory: str, name: str, index: int, image: Image, broker_id: int) -> str:
    """Whether the partition of that name lacks offsets: partition.metadata of the stray may be damaged, and the stray
    the only copy."""
    topic = image.topic(name.rpartition("-")[0])
    if topic is None or index >= len(topic.partitions) or broker_id not in topic.partitions[index].replicas:
        return ""
    there = f"{directory}/{topic.name}-{index}"
    if not os.path.isdir(there):
        return f"perhaps {topic.name}-{index}, which this broker should have and lacks: see operating.md"
    try:
        known = manifest.read(disk, there)
    except manifest.ManifestDamaged:
        return f"perhaps a copy of {topic.name}-{index}, which may be incomplete: start the broker"
    if known is None or not known.missing:
        return ""
    lost = ", ".join(f"{start}..{end - 1}" for start, end in known.missing)
    return f"perhaps the only copy of offsets {lost}, which {topic.name}-{index} lacks: see operating.md"


def _size(path: str) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(path) if entry.is_file(follow_symlinks=False))
