"""`ottla reassign`: move partitions to other brokers, and watch them move. Plans have the format of Kafka's tool."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final

import click

from ottla.cli.completion import topic_names
from ottla.cli.failure import Misused, Suggesting
from ottla.cli.output import ProgressBar, answer, commas, json_option, print_json, print_table, quiet_option
from ottla.cli.spreading import Moves, spread
from ottla.cli.target import Target, administer, cluster_options, parse_partition, partitions_of
from ottla.client.admin import Admin, Reassignment
from ottla.client.core.wait_reasons import WaitReasons
from ottla.client.values import TopicPartition

LOOK_SECONDS: Final = 0.2
WHY_SECONDS: Final = 1.0
"""How often the command looks for the reason why a move makes no progress."""


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
@click.option("--brokers", metavar="ID,...", help="Target brokers.  [default: all brokers]")
@click.option("--replication-factor", type=click.IntRange(min=1), metavar="N", help="[default: as it is]")
@cluster_options
@click.option("--json", is_flag=True, expose_value=False, help="Print JSON; a plan is nothing else.")
def plan(topics: tuple[str, ...], brokers: str | None, replication_factor: int | None, target: Target) -> None:
    """Plan an even distribution of the partitions of topics over brokers. Prints JSON; nothing is moved.

    Replicas stay on their brokers as far as the distribution is even.

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
        now = {tp: each.replicas for tp, each in partitions_of(described.values()).items()}
        try:
            return spread(now, wanted or alive, replication_factor)
        except ValueError as impossible:
            raise Misused(str(impossible)) from None

    moves = administer(target, ask)
    print_json({"version": 1, "partitions": [tp._asdict() | {"replicas": replicas} for tp, replicas in moves.items()]})


@command.command("start")
@click.argument("plan_file", metavar="[PLAN]", type=click.File("r"), required=False)
@click.option(
    "--move",
    "moves",
    metavar="TOPIC-N=ID,...",
    multiple=True,
    help="One partition, the preferred leader first; repeatable.",
)
@click.option("--wait", is_flag=True, help="Wait until everything has moved.")
@quiet_option
@cluster_options
@json_option
def start(plan_file: IO[str] | None, moves: tuple[str, ...], wait: bool, target: Target, as_json: bool) -> None:
    """Start to move partitions: those of a plan (- for standard input), or those named.

    \b
    Example:
      ottla reassign start plan.json --wait
      ottla reassign start --move orders-0=2,3
    """
    wanted = _read_plan(plan_file) if plan_file else {}
    for text in moves:
        name, _, ids = text.partition("=")
        wanted[parse_partition(name)] = _ids(ids)
    if not wanted:
        raise Misused("nothing to move", hint="Name a plan, or partitions: --move orders-0=2,3.")

    async def work(admin: Admin) -> None:
        await admin.reassign(wanted)
        if wait:
            await _until_moved(admin, list(wanted))

    administer(target, work)
    done = "moved" if wait else "moving"
    lines = [f"{done} {tp} to {commas(replicas)}" for tp, replicas in wanted.items()]
    lines += [] if wait else ["`ottla reassign status` shows what is left"]
    value = {done: [tp._asdict() | {"replicas": replicas} for tp, replicas in wanted.items()]}
    answer(as_json, value, "\n".join(lines))


async def _until_moved(admin: Admin, partitions: list[TopicPartition]) -> None:
    bar = ProgressBar("moving partitions", len(partitions))
    waits, asked_at = WaitReasons(), time.monotonic()
    try:
        while left := await admin.list_reassignments(partitions):
            bar.reached(len(partitions) - len(left))
            if (now := time.monotonic()) - asked_at >= WHY_SECONDS:
                asked_at = now
                why = await _obstacles(admin, left)
                for tp in partitions:
                    if tp not in why:
                        waits.over(str(tp))
                for reason in waits.look(((str(tp), f"{tp} {reason}") for tp, reason in why.items()), now):
                    click.echo(f"ottla: still trying: {reason}", err=True)
            await asyncio.sleep(LOOK_SECONDS)
        bar.reached(len(partitions))
    finally:
        bar.close()


async def _obstacles(admin: Admin, moves: Mapping[TopicPartition, Reassignment]) -> dict[TopicPartition, str]:
    """Why moves make no progress, as far as it is known."""
    alive = {broker.node_id for broker in (await admin.describe_cluster()).brokers}
    topics = await admin.describe_topics(sorted({tp.topic for tp in moves}))
    found = partitions_of(topics.values())
    why: dict[TopicPartition, str] = {}
    for tp, move in sorted(moves.items()):
        now = found.get(tp)
        if now is not None and now.leader < 0:
            holders = now.in_sync or [each for each in now.replicas if each not in move.adding]
            why[tp] = f"has no leader to copy from; start {_one_of(holders)}"
        elif gone := [each for each in move.adding if each not in alive]:
            missing = f"broker {gone[0]} is" if len(gone) == 1 else f"brokers {commas(gone)} are"
            why[tp] = f"waits for its new replica: {missing} not alive; start it, or `ottla reassign cancel {tp}`"
    return why


def _one_of(brokers: Sequence[int]) -> str:
    return f"broker {brokers[0]}" if len(brokers) == 1 else f"one of the brokers {commas(brokers)}"


@command.command("status")
@cluster_options
@json_option
def status(target: Target, as_json: bool) -> None:
    """Show the moves in progress, and why some make no progress.

    \b
    Example:
      ottla reassign status
    """

    async def ask(admin: Admin) -> tuple[dict[TopicPartition, Reassignment], dict[TopicPartition, str]]:
        moves = await admin.list_reassignments()
        return moves, await _obstacles(admin, moves) if moves else {}

    found, why = administer(target, ask)
    value = [tp._asdict() | move._asdict() | {"why": why.get(tp)} for tp, move in sorted(found.items())]
    answer(as_json, value, (lambda: _print_moves(found, why)) if found else "nothing is moving")


def _print_moves(moves: Mapping[TopicPartition, Reassignment], why: Mapping[TopicPartition, str]) -> None:
    rows = [
        (tp, commas(move.replicas), commas(move.adding) or "-", commas(move.removing) or "-")
        for tp, move in sorted(moves.items())
    ]
    print_table(("PARTITION", "REPLICAS", "ADDING", "REMOVING"), rows)
    for tp, reason in why.items():
        click.echo(f"{tp} {reason}")


@command.command("cancel")
@click.argument("partitions", nargs=-1, metavar="[TOPIC-N...]")
@cluster_options
@json_option
def cancel(partitions: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Cancel moves in progress, all or those named; the replicas stay on their old brokers.

    \b
    Example:
      ottla reassign cancel orders-0
    """

    async def work(admin: Admin) -> list[TopicPartition]:
        chosen = [parse_partition(each) for each in partitions] or sorted(await admin.list_reassignments())
        if chosen:
            await admin.reassign(dict.fromkeys(chosen))
        return chosen

    ended = administer(target, work)
    lines = [f"{tp} stays where it was" for tp in ended] or ["nothing is moving"]
    answer(as_json, {"cancelled": [tp._asdict() for tp in ended]}, "\n".join(lines))


def _ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise Misused(f"{text!r} is not a list of brokers", hint="For example 1,2,3.")
    return list(dict.fromkeys(map(int, parts)))


def _read_plan(file: IO[str]) -> Moves:
    try:
        plan: dict[str, Any] = json.load(file)
        return {
            TopicPartition(str(each["topic"]), int(each["partition"])): [int(broker) for broker in each["replicas"]]
            for each in plan["partitions"]
        }
    except (ValueError, KeyError, TypeError):
        raise Misused(
            f"{file.name} is not a plan", hint="`ottla reassign plan` prints one; Kafka's own tool has the same format."
        ) from None
