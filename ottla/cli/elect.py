"""`ottla elect`: let the preferred replica lead again, or any that is alive."""

from __future__ import annotations

import click

from ottla.cli.cluster import Target, administer, cluster_options, json_option, parse_place
from ottla.cli.failure import Misused
from ottla.cli.output import print_json
from ottla.client.admin import Admin
from ottla.client.errors import UnknownTopic
from ottla.client.values import TopicPartition


@click.command("elect")
@click.argument("names", nargs=-1, metavar="[TOPIC|TOPIC-N...]")
@click.option("--unclean", is_flag=True, help="Any replica that is alive, where nobody leads: records may be lost.")
@cluster_options
@json_option
def command(names: tuple[str, ...], unclean: bool, target: Target, as_json: bool) -> None:
    """Let the preferred replica (the first of each partition) lead: everywhere, or in the topics and partitions named.

    \b
    Example:
      ottla elect
      ottla elect orders-2 --unclean
    """
    if unclean and not names:
        raise Misused("an unclean election may lose records", hint="Name the partitions it is meant for: orders-2.")

    async def elect(admin: Admin) -> set[TopicPartition]:
        places = await _places(admin, names) if names else None
        return await admin.elect_leaders(places, unclean=unclean)

    elected = sorted(administer(target, elect))
    if as_json:
        print_json({"elected": [place._asdict() for place in elected]})
        return
    for place in elected:
        click.echo(f"elected a leader of {place}")
    if not elected:
        click.echo("nothing was to be done")


def _place(name: str) -> TopicPartition:
    try:
        return parse_place(name)
    except Misused:
        raise UnknownTopic(f"topic {name}: {UnknownTopic.words}") from None


async def _places(admin: Admin, names: tuple[str, ...]) -> list[TopicPartition]:
    """A name is that of a topic if there is one; else of a partition."""
    topics = {topic.name: topic for topic in await admin.list_topics(internal=True)}
    places: list[TopicPartition] = []
    for name in names:
        if name in topics:
            places += [TopicPartition(name, each.partition) for each in topics[name].partitions]
        else:
            places.append(_place(name))
    return list(dict.fromkeys(places))
