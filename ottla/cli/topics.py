"""`ottla topics`: create, list, describe and delete topics."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Iterable, Mapping

import click

from ottla.cli.cluster import administer, bootstrap_option, failure_of, json_option, print_json, print_table
from ottla.cli.failure import split_pair
from ottla.client.admin import Admin, NewTopic, ResourceKind, Topic
from ottla.client.errors import ClientError, TopicExists, UnknownTopic

TOPIC_SOURCE = 1
"""DescribeConfigs' number for a setting that the topic itself has."""


@click.group("topics")
def command() -> None:
    """Create, list, describe and delete topics."""


@command.command("create")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--partitions", metavar="N", type=click.IntRange(min=1), help="[default: num.partitions of the broker]"
)
@click.option(
    "--replication-factor",
    metavar="N",
    type=click.IntRange(min=1, max=2**15 - 1),
    help="[default: default.replication.factor of the broker]",
)
@click.option(
    "--config", "settings", metavar="NAME=VALUE", multiple=True, help="A topic setting; repeatable."
)
@click.option("--if-not-exists", is_flag=True, help="Succeed when the topic is there already.")
@bootstrap_option
@json_option
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    settings: tuple[str, ...],
    if_not_exists: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Create topics."""
    configs = dict(split_pair(each, "--config") for each in settings)
    topics = [
        NewTopic(name, partitions or -1, replication_factor or -1, configs) for name in dict.fromkeys(names)
    ]
    errors = administer(bootstrap, lambda admin: _errors_of(admin.create_topics(topics)))
    _report("created", names, errors, TopicExists if if_not_exists else None, as_json)


@command.command("delete")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--if-exists", is_flag=True, help="Succeed when there is no such topic.")
@bootstrap_option
@json_option
def delete(names: tuple[str, ...], if_exists: bool, bootstrap: str, as_json: bool) -> None:
    """Delete topics and everything in them."""
    errors = administer(bootstrap, lambda admin: _errors_of(admin.delete_topics(list(dict.fromkeys(names)))))
    _report("deleted", names, errors, UnknownTopic if if_exists else None, as_json)


@command.command("list")
@click.option("--internal", is_flag=True, help="Also those the cluster keeps for itself.")
@bootstrap_option
@json_option
def list_(internal: bool, bootstrap: str, as_json: bool) -> None:
    """List topics."""
    topics = administer(bootstrap, lambda admin: admin.list_topics(internal=internal))
    if as_json:
        print_json([topic.name for topic in topics])
        return
    for topic in topics:
        click.echo(topic.name)


@command.command("describe")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@bootstrap_option
@json_option
def describe(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Describe topics: all of them, or those named."""
    described, errors = administer(bootstrap, lambda admin: _describe(admin, list(dict.fromkeys(names))))
    if as_json:
        print_json([_as_json(topic, settings) for topic, settings in described])
    else:
        for position, (topic, settings) in enumerate(described):
            if position:
                click.echo()
            _print_topic(topic, settings)
    if errors:
        raise failure_of(errors)


async def _describe(
    admin: Admin, names: list[str]
) -> tuple[list[tuple[Topic, dict[str, str]]], list[ClientError]]:
    """Topics with the settings they have of their own, and what could not be described."""
    found: list[Topic] = []
    errors: list[ClientError] = []
    if names:
        try:
            found = list((await admin.describe_topics(names)).values())
        except ClientError as error:
            if not error.errors:
                raise
            found = [topic for topic in error.results.values() if isinstance(topic, Topic)]
            errors = list(error.errors.values())
    else:
        found = await admin.list_topics()
    described = []
    for topic in found:
        entries = await admin.describe_configs(ResourceKind.TOPIC, topic.name)
        own = {entry.name: entry.value or "" for entry in entries if entry.source == TOPIC_SOURCE}
        described.append((topic, own))
    return described, errors


async def _errors_of(work: Awaitable[None]) -> Mapping[object, ClientError]:
    """What failed, of a call about several topics."""
    try:
        await work
    except ClientError as error:
        if not error.errors:
            raise
        return error.errors
    return {}


def _report(
    done: str,
    names: Iterable[str],
    errors: Mapping[object, ClientError],
    forgiven: type[ClientError] | None,
    as_json: bool,
) -> None:
    succeeded = [name for name in dict.fromkeys(names) if name not in errors]
    failed = {name: error for name, error in errors.items() if not (forgiven and isinstance(error, forgiven))}
    if as_json:
        print_json({done: succeeded, "failed": {name: str(error) for name, error in failed.items()}})
    else:
        for name in succeeded:
            click.echo(f"{done} topic {name}")
    if failed:
        raise failure_of(list(failed.values()))


def _replication_factor(topic: Topic) -> int:
    return len(topic.partitions[0].replicas) if topic.partitions else 0


def _print_topic(topic: Topic, settings: dict[str, str]) -> None:
    click.echo(f"topic {topic.name}")
    click.echo(f"  id                  {uuid.UUID(bytes=topic.topic_id)}")
    click.echo(f"  partitions          {len(topic.partitions)}")
    click.echo(f"  replication factor  {_replication_factor(topic)}")
    for name, value in settings.items():
        click.echo(f"  {name}={value}")
    rows = (
        (
            partition.partition,
            partition.leader if partition.leader >= 0 else "none",
            partition.leader_epoch,
            _ids(partition.replicas),
            _ids(partition.in_sync),
        )
        for partition in topic.partitions
    )
    print_table(("PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN SYNC"), rows)


def _as_json(topic: Topic, settings: dict[str, str]) -> dict[str, object]:
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
            }
            for partition in topic.partitions
        ],
    }


def _ids(brokers: tuple[int, ...]) -> str:
    return ",".join(str(broker) for broker in brokers)
