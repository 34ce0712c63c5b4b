"""`ottla cluster`: brokers with their replicas, disks and versions, the controller, and partitions in trouble."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

import click

from ottla.cli.output import alarming, answer, human_bytes, json_option, print_table
from ottla.cli.partition_stats import disks
from ottla.cli.target import MIN_IN_SYNC, Target, administer, cluster_options, partitions_of
from ottla.client.admin import Admin, LogDir, ResourceKind, TopicDescription
from ottla.client.core.requests import Node
from ottla.client.errors import ClientError
from ottla.client.values import TopicPartition
from ottla.log.scrub_schedule import status_of

VERSION: Final = "ottla.version"
SCRUB: Final = "ottla.scrub.status"
TROUBLES: Final = ("under_replicated", "under_min_in_sync", "offline")
DISK_FREE_MIN: Final = 0.05
"""A smaller free share of a disk is reported."""
SHOWN_MAX: Final = 10
"""So many partitions are named; `ottla topics describe` shows all."""


class BrokerStatus(NamedTuple):
    broker: Node
    version: str | None
    leaders: int
    replicas: int
    out_of_sync: int
    dirs: list[LogDir]
    scrub: dict[str, str]
    """Status of the scrub; empty for a broker of an earlier release."""

    @property
    def damaged(self) -> int:
        """Replicas that lack offsets they should have."""
        return int(self.scrub.get("damaged_partitions", 0))

    @property
    def stored(self) -> int:
        return sum(replica.size for each in self.dirs for replica in each.replicas.values())

    def as_json(self) -> dict[str, object]:
        return {
            "id": self.broker.node_id,
            "host": self.broker.host,
            "port": self.broker.port,
            "rack": self.broker.rack,
            "version": self.version,
            "leaders": self.leaders,
            "replicas": self.replicas,
            "out_of_sync": self.out_of_sync,
            "scrub": {name: float(value) if name == "progress" else int(value) for name, value in self.scrub.items()},
            "log_dirs": [
                {
                    "path": each.path,
                    "stored_bytes": sum(replica.size for replica in each.replicas.values()),
                    "total_bytes": each.total_bytes,
                    "usable_bytes": each.usable_bytes,
                    "error": None if each.error is None else str(each.error),
                }
                for each in self.dirs
            ],
        }


class ClusterStatus(NamedTuple):
    cluster_id: str
    controller: int
    brokers: list[BrokerStatus]
    missing: list[int]
    """Brokers that have replicas and are not registered."""
    topics: int
    partitions: int
    under_replicated: list[TopicPartition]
    under_min_in_sync: list[TopicPartition]
    """Writes with acks=all are refused there."""
    offline: list[TopicPartition]


@click.command("cluster")
@cluster_options
@json_option
def command(target: Target, as_json: bool) -> None:
    """Show brokers, controller, racks, disks, versions, the scrub, and under-replicated or offline partitions.

    \b
    Example:
      ottla cluster
    """
    status = administer(target, _look)
    value = status._asdict() | {"brokers": [each.as_json() for each in status.brokers]}
    value |= {name: [each._asdict() for each in value[name]] for name in TROUBLES}
    answer(as_json, value, lambda: _print(status))


async def _look(admin: Admin) -> ClusterStatus:
    described = await admin.describe_cluster()
    topics = await admin.list_topics(internal=True)
    alive = {broker.node_id: broker for broker in described.brokers}
    dirs = await disks(admin, alive)
    brokers = [await _broker(admin, broker, topics, dirs.get(broker.node_id, [])) for broker in described.brokers]
    parts = partitions_of(topics)
    return ClusterStatus(
        described.cluster_id,
        described.controller,
        brokers,
        sorted({id_ for part in parts.values() for id_ in part.replicas} - set(alive)),
        len(topics),
        len(parts),
        [each for each, part in parts.items() if len(part.in_sync) < len(part.replicas)],
        await _under_min(admin, topics),
        [each for each, part in parts.items() if part.leader < 0],
    )


async def _under_min(admin: Admin, topics: list[TopicDescription]) -> list[TopicPartition]:
    """Partitions below min.insync.replicas; the setting is read only for topics with replicas out of sync."""
    short = [topic for topic in topics if any(len(part.in_sync) < len(part.replicas) for part in topic.partitions)]
    least = await asyncio.gather(*(_min_in_sync(admin, topic) for topic in short))
    return [
        tp
        for topic, needed in zip(short, least, strict=True)
        for tp, part in partitions_of([topic]).items()
        if len(part.in_sync) < min(needed, len(part.replicas))
    ]


async def _min_in_sync(admin: Admin, topic: TopicDescription) -> int:
    try:
        configs = await admin.describe_configs(ResourceKind.TOPIC, topic.name)
    except ClientError:  # deleted meanwhile
        return 0
    return next((int(each.value or 1) for each in configs if each.name == MIN_IN_SYNC), 1)


async def _broker(admin: Admin, broker: Node, topics: list[TopicDescription], dirs: list[LogDir]) -> BrokerStatus:
    id_ = broker.node_id
    held = [part for topic in topics for part in topic.partitions if id_ in part.replicas]
    try:
        settings = {each.name: each.value for each in await admin.describe_configs(ResourceKind.BROKER, str(id_))}
    except ClientError:
        settings = {}
    return BrokerStatus(
        broker,
        settings.get(VERSION),
        sum(part.leader == id_ for part in held),
        len(held),
        sum(id_ not in part.in_sync for part in held),
        dirs,
        status_of(settings.get(SCRUB) or ""),
    )


def _print(status: ClusterStatus) -> None:
    click.echo(f"cluster {status.cluster_id}")
    controller = f"broker {status.controller}" if status.controller >= 0 else alarming("none", True)
    click.echo(f"  controller        {controller}")
    click.echo(f"  topics            {status.topics}, {status.partitions} partitions, internal ones among them")
    click.echo(f"  under-replicated  {_named(status.under_replicated)}")
    click.echo(f"  under min ISR     {_named(status.under_min_in_sync)}")
    click.echo(f"  offline           {_named(status.offline)}")
    if status.missing:
        ids = ", ".join(map(str, status.missing))
        click.echo(f"  missing brokers   {alarming(ids, True)} (they have replicas, and are not registered)")
    header = (
        "BROKER", "ADDRESS", "RACK", "VERSION", "LEADS", "REPLICAS", "OUT OF SYNC", "STORED", "DISK FREE", "DISK",
        "SCRUB",
    )  # fmt: skip
    print_table(header, [_row(each) for each in status.brokers])
    for each in status.brokers:
        if each.damaged:
            named = f"broker {each.broker.node_id}: {each.damaged} replicas are damaged; its log names the offsets"
            click.echo(alarming(named, True))
    for each in status.brokers:
        for log_dir in each.dirs:
            if log_dir.total_bytes > 0 and log_dir.usable_bytes < log_dir.total_bytes * DISK_FREE_MIN:
                free = f"{human_bytes(log_dir.usable_bytes)} of {human_bytes(log_dir.total_bytes)} are free"
                click.echo(alarming(f"broker {each.broker.node_id}: {log_dir.path}: {free}: free some space", True))
            if log_dir.error is not None:
                click.echo(alarming(f"broker {each.broker.node_id}: {log_dir.path}: {log_dir.error}", True))


def _named(partitions: list[TopicPartition]) -> str:
    if not partitions:
        return "none"
    shown = sorted(partitions, key=lambda at: (at.topic.startswith("__"), at))[:SHOWN_MAX]  # internal topics last
    more = ", …" if len(partitions) > SHOWN_MAX else ""
    return alarming(f"{len(partitions)}: {', '.join(map(str, shown))}{more}", True)


def _row(each: BrokerStatus) -> tuple[object, ...]:
    free, total = (sum(getattr(log_dir, name) for log_dir in each.dirs) for name in ("usable_bytes", "total_bytes"))
    return (
        each.broker.node_id,
        f"{each.broker.host}:{each.broker.port}",
        each.broker.rack or "-",
        each.version or "-",
        each.leaders,
        each.replicas,
        alarming(each.out_of_sync, each.out_of_sync > 0),
        human_bytes(each.stored) if each.dirs else "-",
        alarming(human_bytes(free), free < total * DISK_FREE_MIN) if total > 0 else "-",
        human_bytes(total) if total > 0 else "-",
        _scrubbed(each.scrub),
    )


def _scrubbed(scrub: dict[str, str]) -> str:
    """Progress of the pass, and its number."""
    if not scrub:
        return "-"
    passes = int(scrub["passes"])
    return f"{float(scrub['progress']):.0%}" + (f" of pass {passes + 1}" if passes else "")
