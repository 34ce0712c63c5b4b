"""`ottla elect`: preferred and unclean leader elections."""

from __future__ import annotations

import click

from ottla.cli.failure import Misused
from ottla.cli.output import answer, json_option
from ottla.cli.target import Target, administer, cluster_options, parse_partition
from ottla.client.admin import Admin
from ottla.client.errors import UnknownTopic
from ottla.client.values import TopicPartition


@click.command("elect")
@click.argument("names", nargs=-1, metavar="[TOPIC|TOPIC-N...]")
@click.option("--unclean", is_flag=True, help="Elect any live replica where there is no leader: records may be lost.")
@cluster_options
@json_option
def command(names: tuple[str, ...], unclean: bool, target: Target, as_json: bool) -> None:
    """Elect the preferred replica (the first of each partition) as leader: of all partitions, or of those named.

    \b
    Example:
      ottla elect
      ottla elect orders-2 --unclean
    """
    if unclean and not names:
        raise Misused("an unclean election may lose records", hint="Name the partitions, for example orders-2.")

    async def elect(admin: Admin) -> set[TopicPartition]:
        partitions = await _partitions(admin, names) if names else None
        return await admin.elect_leaders(partitions, unclean=unclean)

    elected = sorted(administer(target, elect))
    lines = [f"elected a leader of {tp}" for tp in elected] or ["no election was needed"]
    answer(as_json, {"elected": [tp._asdict() for tp in elected]}, "\n".join(lines))


async def _partitions(admin: Admin, names: tuple[str, ...]) -> list[TopicPartition]:
    """All partitions of a topic with this name; otherwise the name is that of a partition."""
    topics = {topic.name: topic for topic in await admin.list_topics(internal=True)}
    partitions: list[TopicPartition] = []
    for name in names:
        if name in topics:
            partitions += [TopicPartition(name, each.partition) for each in topics[name].partitions]
        else:
            try:
                partitions.append(parse_partition(name))
            except Misused:
                raise UnknownTopic(f"topic {name}: {UnknownTopic.words}") from None
    return list(dict.fromkeys(partitions))
