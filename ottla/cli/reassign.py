"""`ottla reassign`: move partitions to other brokers, and watch them move. Plans have the format of Kafka's tool."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final

import click

from ottla.cli.cluster import Target, administer, cluster_options, json_option, parse_place
from ottla.cli.completion import topic_names
from ottla.cli.failure import Misused, Suggesting
from ottla.cli.output import Progress, commas, print_json, print_table, quiet_option
from ottla.cli.spreading import Moves, spread
from ottla.client.admin import Admin, Reassignment
from ottla.client.core.wait_reasons import WaitReasons
from ottla.client.values import TopicPartition

LOOK_SECONDS: Final = 0.2
WHY_SECONDS: Final = 1.0
"""How often it is looked why a move stands still."""


@click.group("reassign", cls=Suggesting)
def command() -> None:
    """Move partitions to other brokers, and watch them move.

    \b
    Example:
      ottla reassign plan --topic orders --brokers 1,2,3 > plan.json
      ottla reassign start plan.json --wait
    """


@command.command("plan")
@click.option(
    "--topic", "topics", multiple=True, required=True, metavar="NAME", help="Repeatable.", shell_complete=topic_names
)
@click.option("--brokers", metavar="ID,...", help="Where to.  [default: all brokers]")
@click.option("--replication-factor", type=click.IntRange(min=1), metavar="N", help="[default: as it is]")
@cluster_options
@click.option("--json", is_flag=True, expose_value=False, help="Print JSON; a plan is nothing else.")
def plan(topics: tuple[str, ...], brokers: str | None, replication_factor: int | None, target: Target) -> None:
    """Spread the partitions of topics evenly over brokers; the plan is printed as JSON, and nothing is moved.

    Replicas that are on one of the brokers already stay there, as far as that is even.

    \b
    Example:
      ottla reassign plan --topic orders --brokers 1,2,3 > plan.json
    """
    wanted = _ids(brokers) if brokers else None

    async def ask(admin: Admin) -> Moves:
        alive = [broker.node_id for broker in (await admin.describe_cluster()).brokers]
        missing = [each for each in wanted or () if each not in alive]
        if missing:
            raise Misused(f"there is no broker {missing[0]}; there are {commas(alive)}")
        described = await admin.describe_topics(list(dict.fromkeys(topics)))
        now = {
            TopicPartition(name, each.partition): each.replicas
            for name, topic in described.items()
            for each in topic.partitions
        }
        try:
            return spread(now, wanted or alive, replication_factor)
        except ValueError as impossible:
            raise Misused(str(impossible)) from None

    moves = administer(target, ask)
    print_json(
        {"version": 1, "partitions": [place._asdict() | {"replicas": replicas} for place, replicas in moves.items()]}
    )


@command.command("start")
@click.argument("plan_file", metavar="[PLAN]", type=click.File("r"), required=False)
@click.option(
    "--move",
    "moves",
    metavar="TOPIC-N=ID,...",
    multiple=True,
    help="One partition, the preferred leader first; repeatable.",
)
@click.option("--wait", is_flag=True, help="Until everything has moved.")
@quiet_option
@cluster_options
@json_option
def start(plan_file: IO[str] | None, moves: tuple[str, ...], wait: bool, target: Target, as_json: bool) -> None:
    """Begin to move partitions: those of a plan (- for standard input), or those named.

    \b
    Example:
      ottla reassign start plan.json --wait
      ottla reassign start --move orders-0=2,3
    """
    wanted = _read_plan(plan_file) if plan_file else {}
    for text in moves:
        name, _, ids = text.partition("=")
        wanted[parse_place(name)] = _ids(ids)
    if not wanted:
        raise Misused("nothing to move", hint="Name a plan, or partitions: --move orders-0=2,3.")

    async def work(admin: Admin) -> None:
        await admin.reassign(wanted)
        if wait:
            await _until_moved(admin, list(wanted))

    administer(target, work)
    done = "moved" if wait else "moving"
    if as_json:
        print_json({done: [place._asdict() | {"replicas": replicas} for place, replicas in wanted.items()]})
        return
    for place, replicas in wanted.items():
        click.echo(f"{done} {place} to {commas(replicas)}")
    if not wait:
        click.echo("`ottla reassign status` shows what is left")


async def _until_moved(admin: Admin, places: list[TopicPartition]) -> None:
    bar = Progress("moving partitions", len(places))
    waits, asked_at = WaitReasons(), time.monotonic()
    try:
        while left := await admin.list_reassignments(places):
            bar.reached(len(places) - len(left))
            if (now := time.monotonic()) - asked_at >= WHY_SECONDS:
                asked_at = now
                why = await _obstacles(admin, left)
                for place in places:
                    if place not in why:
                        waits.over(str(place))
                for reason in waits.look(((str(place), f"{place} {reason}") for place, reason in why.items()), now):
                    click.echo(f"ottla: still trying: {reason}", err=True)
            await asyncio.sleep(LOOK_SECONDS)
        bar.reached(len(places))
    finally:
        bar.close()


async def _obstacles(admin: Admin, moves: Mapping[TopicPartition, Reassignment]) -> dict[TopicPartition, str]:
    """Why moves stand still, as far as it is known."""
    alive = {broker.node_id for broker in (await admin.describe_cluster()).brokers}
    topics = await admin.describe_topics(sorted({place.topic for place in moves}))
    found = {TopicPartition(name, each.partition): each for name, topic in topics.items() for each in topic.partitions}
    why: dict[TopicPartition, str] = {}
    for place, move in sorted(moves.items()):
        now = found.get(place)
        if now is not None and now.leader < 0:
            holders = now.in_sync or [each for each in now.replicas if each not in move.adding]
            why[place] = f"has no leader to copy it from; start {_one_of(holders)}"
        elif gone := [each for each in move.adding if each not in alive]:
            missing = f"broker {gone[0]} is" if len(gone) == 1 else f"brokers {commas(gone)} are"
            why[place] = f"waits for where it moves to: {missing} not alive; start, or `ottla reassign cancel {place}`"
    return why


def _one_of(brokers: Sequence[int]) -> str:
    return f"broker {brokers[0]}" if len(brokers) == 1 else f"one of the brokers {commas(brokers)}"


@command.command("status")
@cluster_options
@json_option
def status(target: Target, as_json: bool) -> None:
    """Show the moves that are under way, and what those wait for that stand still.

    \b
    Example:
      ottla reassign status
    """

    async def ask(admin: Admin) -> tuple[dict[TopicPartition, Reassignment], dict[TopicPartition, str]]:
        moves = await admin.list_reassignments()
        return moves, await _obstacles(admin, moves) if moves else {}

    found, why = administer(target, ask)
    if as_json:
        rows = [place._asdict() | move._asdict() | {"why": why.get(place)} for place, move in sorted(found.items())]
        print_json(rows)
    elif not found:
        click.echo("nothing is moving")
    else:
        print_table(
            ("PARTITION", "REPLICAS", "ADDING", "REMOVING"),
            [
                (place, commas(move.replicas), commas(move.adding) or "-", commas(move.removing) or "-")
                for place, move in sorted(found.items())
            ],
        )
        for place, reason in why.items():
            click.echo(f"{place} {reason}")


@command.command("cancel")
@click.argument("partitions", nargs=-1, metavar="[TOPIC-N...]")
@cluster_options
@json_option
def cancel(partitions: tuple[str, ...], target: Target, as_json: bool) -> None:
    """End moves that are under way, all or those named; what was there before stays.

    \b
    Example:
      ottla reassign cancel orders-0
    """

    async def work(admin: Admin) -> list[TopicPartition]:
        places = [parse_place(each) for each in partitions] or sorted(await admin.list_reassignments())
        if places:
            await admin.reassign(dict.fromkeys(places))
        return places

    ended = administer(target, work)
    if as_json:
        print_json({"cancelled": [place._asdict() for place in ended]})
        return
    for place in ended:
        click.echo(f"{place} stays where it was")
    if not ended:
        click.echo("nothing is moving")


def _ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise Misused(f"{text!r} is no list of brokers", hint="For example 1,2,3.")
    return list(dict.fromkeys(map(int, parts)))


def _read_plan(file: IO[str]) -> Moves:
    try:
        told: dict[str, Any] = json.load(file)
        return {
            TopicPartition(str(each["topic"]), int(each["partition"])): [int(broker) for broker in each["replicas"]]
            for each in told["partitions"]
        }
    except (ValueError, KeyError, TypeError):
        raise Misused(
            f"{file.name} is no plan", hint="`ottla reassign plan` prints one; Kafka's own tool has the same format."
        ) from None
