"""`ottla log remove-strays`: remove directories that a broker has set aside because they are no partitions of its own.

Nothing is removed that the cluster's metadata gives to this broker: the store is read first, and without it, or with
the store of another cluster, nothing is removed at all. Nor is what could be the only copy of offsets that a partition
of that name lacks.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from typing import Final, NamedTuple

import click

from ottla.cli.failure import Failure, Misused
from ottla.cli.output import human_bytes, json_option, print_json, print_table
from ottla.cli.outside import Outside, store_options
from ottla.cluster.cluster import Cluster
from ottla.cluster.image import Image
from ottla.cluster.zookeeper_options import ZooKeeperOptions
from ottla.errors import Fault
from ottla.log import checkpoints, manifest
from ottla.log.verify import stray_directories
from ottla.runtime.disk import RealDisk
from ottla.runtime.real import RealRuntime

_STRAY: Final = re.compile(r"(?P<name>.+)\.(?P<id>[0-9a-f]{32})-(?P<index>\d+)(\.\d+)?-stray")


class Stray(NamedTuple):
    path: str
    size_bytes: int
    wanted: str
    """Why it stays; empty if it may go."""


@click.command("remove-strays")
@click.argument("directory", metavar="DIR")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@store_options
@json_option
def remove_strays(directory: str, yes: bool, outside: Outside, as_json: bool) -> None:
    """Remove stray directories (*-stray) from a data directory, while its broker is stopped. A broker sets a directory
    aside under such a name when it is no partition of its own: the topic is not in the cluster's metadata, or the
    replica was moved away. They are listed first, and you are asked. One that the metadata gives to this broker stays;
    so do all if the metadata cannot be read. Exit status: 0 done, or there are none; 1 it cannot be done, or you
    declined; 2 there is no such data directory.

    \b
    Example:
      ottla log remove-strays ottla-data
    """
    directory = directory.rstrip("/") or "/"
    disk = RealDisk()
    if not disk.exists(f"{directory}/{checkpoints.META_PROPERTIES}"):
        raise Misused(f"{directory} is no data directory", hint="Name the data directory of a broker (log.dirs).")
    lock = disk.lock(f"{directory}/.lock")
    if lock is None:
        raise Failure(f"a broker is running on {directory}", hint="Stop it first.")
    try:
        paths = stray_directories(disk, directory)
        strays = _judged(disk, directory, paths, outside) if paths else []
        going = [stray for stray in strays if not stray.wanted]
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
        stay = [{"path": stray.path, "why": stray.wanted} for stray in strays if stray.wanted]
        print_json({"removed": [stray.path for stray in going], "kept": stay})
    elif going:
        click.echo(f"removed {len(going)}: {human_bytes(sum(stray.size_bytes for stray in going))}")
    elif strays:
        click.echo("nothing was removed")


def _show(strays: list[Stray]) -> None:
    if not strays:
        click.echo("there are no stray directories")
        return
    rows = [
        (os.path.basename(s.path), human_bytes(s.size_bytes), s.wanted or "no partition of this broker") for s in strays
    ]
    print_table(("DIRECTORY", "SIZE", "WHAT IT IS"), rows)


def _judged(disk: RealDisk, directory: str, paths: list[str], outside: Outside) -> list[Stray]:
    properties = checkpoints.read_meta_properties(disk, directory) or {}
    image = asyncio.run(_image(outside, directory))
    ours = properties.get("cluster.id")
    if ours is not None and image.cluster_id != ours:
        raise Failure(
            f"{directory} belongs to the cluster {ours}, the store is of {image.cluster_id}",
            hint="Nothing was removed.",
        )
    broker_id = int(properties.get("broker.id", properties.get("node.id", "-1")))
    return [Stray(path, _size(path), _wanted(disk, path, image, broker_id)) for path in paths]


async def _image(outside: Outside, directory: str) -> Image:
    config = outside.broker_config({"log.dirs": directory})
    runtime = RealRuntime()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            image, _ = await Cluster.peek(
                outside.store_of(config), runtime, data_dir=scratch, zookeeper=ZooKeeperOptions.of(config)
            )
            return image
    finally:
        await runtime.close()


def _wanted(disk: RealDisk, path: str, image: Image, broker_id: int) -> str:
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
    if not ids:  # nobody knows whose it was: its name has to do
        named = image.topic(found["name"].rpartition("-")[0])
        topics = [] if named is None else [named]
    for topic in topics:
        if index < len(topic.partitions) and broker_id in topic.partitions[index].replicas:
            there = f"{os.path.dirname(path)}/{topic.name}-{index}"
            if not os.path.isdir(there):
                return f"{topic.name}-{index}, which this broker holds: move it back, see operating.md"
            return f"a copy of {topic.name}-{index}, which this broker holds as {there}: remove it yourself"
    return _needed(disk, os.path.dirname(path), found["name"], index, image, broker_id)


def _needed(disk: RealDisk, directory: str, name: str, index: int, image: Image, broker_id: int) -> str:
    """Whether the partition of that name lacks something: the file that says whose a directory is may be what is
    damaged, and this the only copy."""
    topic = image.topic(name.rpartition("-")[0])
    if topic is None or index >= len(topic.partitions) or broker_id not in topic.partitions[index].replicas:
        return ""
    there = f"{directory}/{topic.name}-{index}"
    if not os.path.isdir(there):
        return f"perhaps {topic.name}-{index}, which this broker holds and has not: see operating.md"
    try:
        known = manifest.read(disk, there)
    except manifest.ManifestDamaged:
        return f"perhaps a copy of {topic.name}-{index}, of which it is not known whether it is whole: start the broker"
    if known is None or not known.missing:
        return ""
    lost = ", ".join(f"{start}..{end - 1}" for start, end in known.missing)
    return f"perhaps the only copy of offsets {lost}, which {topic.name}-{index} lacks: see operating.md"


def _size(path: str) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(path) if entry.is_file(follow_symlinks=False))
