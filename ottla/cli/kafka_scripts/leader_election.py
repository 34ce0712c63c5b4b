"""kafka-leader-election.sh: preferred and unclean elections."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from ottla.cli.failure import Failure
from ottla.cli.kafka_scripts.options import (
    Number,
    Script,
    ScriptOptions,
    ToolFailure,
    administer,
    cannot_parse,
    kafka_exception,
    target_of,
)
from ottla.client.admin import Admin
from ottla.client.errors import ClientError, TimedOut
from ottla.client.values import TopicPartition

CHOICES: Final = ("topic", "all-topic-partitions", "path-to-json-file")


@click.command(
    "kafka-leader-election.sh",
    cls=Script,
    about="This tool attempts to elect a new leader for a set of topic partitions. "
    "The type of elections supported are preferred replicas and unclean replicas.",
)
@click.option("--bootstrap-server")
@click.option("--election-type", metavar="preferred|unclean")
@click.option("--topic")
@click.option("--partition", type=Number())
@click.option("--all-topic-partitions", is_flag=True)
@click.option("--path-to-json-file", metavar="FILE")
@click.option("--command-config", "--admin.config", metavar="FILE")
def kafka_leader_election(**options: Any) -> None:
    """Elect leaders: the preferred replicas, or (unclean) any that is alive."""
    given = ScriptOptions(**options)
    if missing := [name for name in ("bootstrap-server", "election-type") if not given.has(name)]:
        raise ToolFailure(f"Missing required option(s): {', '.join(missing)}")
    if sum(map(given.has, CHOICES)) != 1:
        raise ToolFailure(f"One and only one of the following options is required: {', '.join(CHOICES)}")
    if given.topic is not None and given.partition is None:
        raise ToolFailure("Missing required option(s): partition")
    if given.topic is None and given.partition is not None:
        raise ToolFailure("Option partition is only allowed if topic is used")
    kind = given.election_type.upper()
    if kind not in ("PREFERRED", "UNCLEAN"):
        raise ToolFailure(cannot_parse(given.election_type, "election-type"))
    wanted = _from_file(given.path_to_json_file) if given.path_to_json_file is not None else None
    if given.topic is not None:
        wanted = {TopicPartition(given.topic, given.partition)}

    async def work(admin: Admin) -> None:
        errors: dict[object, ClientError] = {}
        try:
            elected = await admin.elect_leaders(wanted, unclean=kind == "UNCLEAN")
        except ClientError as error:
            if not error.errors:
                raise
            errors = dict(error.errors)
            elected = {each for each in error.results if isinstance(each, TopicPartition)}
        if elected:
            names = ", ".join(map(str, sorted(elected)))
            click.echo(f"Successfully completed leader election ({kind}) for partitions {names}")
        if unneeded := sorted((wanted or set()) - elected - set(errors)):
            click.echo(f"Valid replica already elected for partitions {', '.join(map(str, unneeded))}")
        for each, reason in errors.items():
            click.echo(f"Error completing leader election ({kind}) for partition: {each}: {kafka_exception(reason)}")
        if errors:
            raise ToolFailure(f"{len(errors)} replica(s) could not be elected")

    administer(target_of(given.bootstrap_server, file=given.command_config), work, _refused)


def _refused(error: ClientError) -> Failure:
    if isinstance(error, TimedOut):
        return ToolFailure("Timeout waiting for election results", stdout=True)
    return ToolFailure(str(error))


def _from_file(path: str) -> set[TopicPartition]:
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        listed = [TopicPartition(str(each["topic"]), int(each["partition"])) for each in data["partitions"]]
    except OSError:
        raise ToolFailure(f"java.io.IOException: Unable to read file {path}") from None
    except json.JSONDecodeError:
        raise ToolFailure("Replica election data is empty") from None
    except (ValueError, KeyError, TypeError):
        raise ToolFailure('Replica election data is missing "partitions" field') from None
    if doubled := {str(each) for each in listed if listed.count(each) > 1}:
        raise ToolFailure(f"Replica election data contains duplicate partitions: {', '.join(sorted(doubled))}")
    return set(listed)
