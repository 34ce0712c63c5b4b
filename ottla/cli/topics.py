"""`ottla topics`: create, list, describe, alter and delete topics, and plan how many partitions one needs."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import click

from ottla.cli.completion import topic_names
from ottla.cli.delete_records import delete_records
from ottla.cli.failure import Misused, Suggesting, split_pair
from ottla.cli.output import alarming, answer, commas, human_bytes, json_option, print_blocks, print_rows, print_table
from ottla.cli.partition_stats import PartitionStats, partition_stats
from ottla.cli.planning import ExpectedTraffic
from ottla.cli.planning import plan as planned
from ottla.cli.quantities import Size
from ottla.cli.target import Target, administer, cluster_options, errors_of, failure_of, report_each
from ottla.client.admin import Admin, NewTopic, Partition, ResourceKind, TopicDescription
from ottla.client.errors import ClientError, TopicExists, UnknownTopic
from ottla.client.values import TopicPartition

TOPIC_SOURCE = 1
"""DescribeConfigs' number for a setting of the topic itself."""


@click.group("topics", cls=Suggesting)
def command() -> None:
    """Create, list, describe, alter and delete topics.

    \b
    Example:
      ottla topics create orders --partitions 3
    """


command.add_command(delete_records)
names_argument = click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=topic_names)


@command.command("create")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--partitions", metavar="N", type=click.IntRange(min=1), help="[default: num.partitions of the broker]")
@click.option(
    "--replication-factor",
    metavar="N",
    type=click.IntRange(min=1, max=2**15 - 1),
    help="[default: default.replication.factor of the broker]",
)
@click.option("--config", "settings", metavar="NAME=VALUE", multiple=True, help="A topic setting; repeatable.")
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic exists already.")
@cluster_options
@json_option
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    settings: tuple[str, ...],
    if_not_exists: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Create topics.

    \b
    Example:
      ottla topics create orders --partitions 3 --config retention.ms=86400000
    """
    configs = dict(split_pair(each, "--config") for each in settings)
    topics = [NewTopic(name, partitions or -1, replication_factor or -1, configs) for name in dict.fromkeys(names)]
    errors = administer(target, lambda admin: errors_of(admin.create_topics(topics)))
    ignored = TopicExists if if_not_exists else None
    report_each("created", "topic", names, errors, as_json=as_json, ignored=ignored)


@command.command("delete")
@names_argument
@click.option("--if-exists", is_flag=True, help="Succeed if the topic does not exist.")
@cluster_options
@json_option
def delete(names: tuple[str, ...], if_exists: bool, target: Target, as_json: bool) -> None:
    """Delete topics and everything in them.

    \b
    Example:
      ottla topics delete orders
    """
    errors = administer(target, lambda admin: errors_of(admin.delete_topics(list(dict.fromkeys(names)))))
    ignored = UnknownTopic if if_exists else None
    report_each("deleted", "topic", names, errors, as_json=as_json, ignored=ignored)


@command.command("list")
@click.option("--internal", is_flag=True, help="Internal topics, too.")
@click.option("--names", is_flag=True, help="Only the names, one to a line.")
@cluster_options
@json_option
def list_(internal: bool, names: bool, target: Target, as_json: bool) -> None:
    """List topics with their partitions, replicas, the size of one replica, and records.

    Records are counted by offsets: a compacted or transactional topic has fewer records than that.

    \b
    Example:
      ottla topics list --internal
      ottla topics list --names
    """

    async def look(admin: Admin) -> tuple[list[TopicDescription], dict[TopicPartition, PartitionStats]]:
        topics = await admin.list_topics(internal=internal)
        return topics, {} if names else await partition_stats(admin, topics)

    topics, stats = administer(target, look)
    if names:
        listed = [topic.name for topic in topics]
        answer(as_json, listed, lambda: click.echo("".join(f"{name}\n" for name in listed), nl=False))
        return
    found = [(topic, _total(topic, stats, "size"), _total(topic, stats, "records")) for topic in topics]
    value = [
        {
            "name": topic.name,
            "partitions": len(topic.partitions),
            "replication_factor": _replication_factor(topic),
            "internal": topic.internal,
            "size_bytes": size,
            "records": records,
        }
        for topic, size, records in found
    ]
    rows = [
        (
            topic.name,
            len(topic.partitions),
            _replicas_each(topic),
            "?" if size is None else human_bytes(size),
            "?" if records is None else f"{records:,}",
        )
        for topic, size, records in found
    ]
    header = ("TOPIC", "PARTITIONS", "REPLICAS", "SIZE", "RECORDS")
    answer(as_json, value, lambda: print_rows(header, rows))


def _total(topic: TopicDescription, stats: Mapping[TopicPartition, PartitionStats], name: str) -> int | None:
    """Over all partitions; None if one of them is unknown."""
    values = [getattr(stats[TopicPartition(topic.name, part.partition)], name) for part in topic.partitions]
    return None if None in values else sum(values)


@command.command("describe")
@click.argument("names", nargs=-1, metavar="[NAME...]", shell_complete=topic_names)
@click.option("--under-replicated", is_flag=True, help="Only partitions with a replica that is not in sync.")
@click.option("--unavailable", is_flag=True, help="Only partitions without a leader.")
@cluster_options
@json_option
def describe(names: tuple[str, ...], under_replicated: bool, unavailable: bool, target: Target, as_json: bool) -> None:
    """Describe topics: all of them, or those named.

    \b
    Example:
      ottla topics describe orders
      ottla topics describe --under-replicated
    """

    async def look(admin: Admin) -> tuple[Described, list[ClientError], dict[TopicPartition, PartitionStats]]:
        described, errors = await _describe(admin, list(dict.fromkeys(names)))
        return described, errors, await partition_stats(admin, [topic for topic, _ in described])

    described, errors, stats = administer(target, look)
    if under_replicated or unavailable:
        described = _only_troubled(described, under_replicated, unavailable)
    blocks = [(topic, settings, stats) for topic, settings in described]
    answer(as_json, [_as_json(*block) for block in blocks], lambda: print_blocks(blocks, _print_topic))
    if errors:
        raise failure_of(errors)


Described = list[tuple[TopicDescription, dict[str, str]]]


def _only_troubled(described: Described, under_replicated: bool, unavailable: bool) -> Described:
    """The topics that have such partitions, and only these partitions."""

    def troubled(partition: Partition) -> bool:
        short = len(partition.in_sync) < len(partition.replicas)
        return (under_replicated and short) or (unavailable and partition.leader < 0)

    found = []
    for topic, settings in described:
        partitions = tuple(filter(troubled, topic.partitions))
        if partitions:
            found.append((topic._replace(partitions=partitions), settings))
    return found


@command.command("alter")
@click.argument("name", shell_complete=topic_names)
@click.option("--partitions", metavar="N", type=click.IntRange(min=1), help="Increase the number of partitions to N.")
@click.option("--config", "settings", metavar="NAME=VALUE", multiple=True, help="Change a setting; repeatable.")
@click.option("--delete-config", "removed", metavar="NAME", multiple=True, help="Return it to its default; repeatable.")
@cluster_options
@json_option
def alter(
    name: str,
    partitions: int | None,
    settings: tuple[str, ...],
    removed: tuple[str, ...],
    target: Target,
    as_json: bool,
) -> None:
    """Add partitions to a topic, or change its settings.

    Adding partitions changes the partition of most keys; existing records do not move.

    \b
    Example:
      ottla topics alter orders --partitions 6 --config retention.ms=86400000
    """
    put = dict(split_pair(each, "--config") for each in settings)
    if partitions is None and not put and not removed:
        raise Misused("nothing to change", hint="Use --partitions, --config or --delete-config.")

    async def change(admin: Admin) -> None:
        if put or removed:
            await admin.alter_configs(ResourceKind.TOPIC, name, put=put, remove=removed)
        if partitions is not None:
            await admin.create_partitions(name, partitions)

    administer(target, change)
    value = {"altered": name, "partitions": partitions, "configs": put, "deleted_configs": list(removed)}
    answer(as_json, value, f"altered topic {name}")


@command.command("plan")
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    required=True,
    metavar="N",
    help="Records per second at the peak.",
)
@click.option("--record-size", type=Size(), default="1kB", show_default=True, help="Of one record.")
@click.option(
    "--consumer-rate",
    type=click.FloatRange(min=0, min_open=True),
    default=5000.0,
    show_default=True,
    metavar="N",
    help="Records per second that one consumer can process; measure it.",
)
@click.option(
    "--partition-rate",
    type=Size(),
    default="10MB",
    show_default=True,
    help="Bytes per second that one partition can take; `ottla bench produce` measures it.",
)
@click.option(
    "--growth",
    type=click.FloatRange(min=1),
    default=2.0,
    show_default=True,
    metavar="N",
    help="Factor by which the traffic will grow.",
)
@click.option("--brokers", type=click.IntRange(min=1), default=3, show_default=True, metavar="N")
@click.option("--replication-factor", type=click.IntRange(min=1), default=3, show_default=True, metavar="N")
@click.option("--retention-hours", type=click.FloatRange(min=0), default=168.0, show_default=True, metavar="N")
@json_option
def plan(
    rate: float,
    record_size: int,
    consumer_rate: float,
    partition_rate: int,
    growth: float,
    brokers: int,
    replication_factor: int,
    retention_hours: float,
    as_json: bool,
) -> None:
    """Estimate how many partitions a topic needs, from its peak rate. It needs no broker.

    \b
    Example:
      ottla topics plan --rate 20000 --record-size 500B --consumer-rate 3000
    """
    if replication_factor > brokers:
        raise Misused(f"{replication_factor} replicas need as many brokers; there are {brokers}")
    traffic = ExpectedTraffic(
        rate, record_size, consumer_rate, partition_rate, growth, brokers, replication_factor, retention_hours
    )
    found = planned(traffic)
    text = (
        f"partitions   {found.partitions}\n"
        f"  to write   {found.for_writing}: {human_bytes(found.bytes_per_second * growth)}/s expected, "
        f"{human_bytes(partition_rate)}/s each\n"
        f"  to read    {found.for_reading}: {rate * growth:,.0f} records/s expected, "
        f"{consumer_rate:,.0f} for each consumer\n"
        f"  rounded up to a multiple of {brokers} brokers, so that each leads the same number\n"
        f"consumers    {found.consumers} in a group keep up with the peak of today\n"
        f"disk         at most {human_bytes(found.disk_bytes_per_broker)} on each broker in {retention_hours:g} hours\n"
        f"\nottla topics create NAME --partitions {found.partitions} --replication-factor {replication_factor}"
    )
    answer(as_json, found._asdict(), text)


async def _describe(admin: Admin, names: list[str]) -> tuple[Described, list[ClientError]]:
    """Topics with the settings that are set on the topic itself, and the errors of topics that failed."""
    found: list[TopicDescription] = []
    errors: list[ClientError] = []
    if names:
        try:
            found = list((await admin.describe_topics(names)).values())
        except ClientError as error:
            if not error.errors:
                raise
            found = [topic for topic in error.results.values() if isinstance(topic, TopicDescription)]
            errors = list(error.errors.values())
    else:
        found = await admin.list_topics()
    described = []
    for topic in found:
        entries = await admin.describe_configs(ResourceKind.TOPIC, topic.name)
        own = {entry.name: entry.value or "" for entry in entries if entry.source == TOPIC_SOURCE}
        described.append((topic, own))
    return described, errors


def _replicas_each(topic: TopicDescription) -> str:
    """One number, or from the smallest to the largest."""
    counts = sorted({len(partition.replicas) for partition in topic.partitions})
    return "-".join(str(count) for count in dict.fromkeys((counts[0], counts[-1]))) if counts else "0"


def _replication_factor(topic: TopicDescription) -> int:
    return len(topic.partitions[0].replicas) if topic.partitions else 0


def _print_topic(
    topic: TopicDescription, settings: dict[str, str], stats: Mapping[TopicPartition, PartitionStats]
) -> None:
    click.echo(f"topic {topic.name}")
    click.echo(f"  id                  {uuid.UUID(bytes=topic.topic_id)}")
    click.echo(f"  partitions          {len(topic.partitions)}")
    click.echo(f"  replication factor  {_replication_factor(topic)}")
    for name, value in settings.items():
        click.echo(f"  {name}={value}")
    rows = []
    for partition in topic.partitions:
        known = stats[TopicPartition(topic.name, partition.partition)]
        rows.append(
            (
                partition.partition,
                partition.leader if partition.leader >= 0 else alarming("none", True),
                partition.leader_epoch,
                commas(partition.replicas),
                alarming(commas(partition.in_sync), len(partition.in_sync) < len(partition.replicas)),
                "?" if known.log_start is None else known.log_start,
                "?" if known.end is None else known.end,
                "?" if known.size is None else human_bytes(known.size),
            )
        )
    header = ("PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN SYNC", "LOG START", "HIGH WATERMARK", "SIZE")
    print_table(header, rows)


def _as_json(
    topic: TopicDescription, settings: dict[str, str], stats: Mapping[TopicPartition, PartitionStats]
) -> dict[str, object]:
    return {
        "name": topic.name,
        "id": str(uuid.UUID(bytes=topic.topic_id)),
        "internal": topic.internal,
        "replication_factor": _replication_factor(topic),
        "configs": settings,
        "partitions": [
            {
                "partition": partition.partition,
                "leader": partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replicas": partition.replicas,
                "in_sync": partition.in_sync,
                "log_start": (known := stats[TopicPartition(topic.name, partition.partition)]).log_start,
                "high_watermark": known.end,
                "size_bytes": known.size,
            }
            for partition in topic.partitions
        ],
    }
