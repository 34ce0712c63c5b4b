"""`ottla transactions`: which are under way, who takes part, and ending one from outside."""

from __future__ import annotations

import time

import click

from ottla.cli.cluster import Target, administer, cluster_options, json_option, parse_place
from ottla.cli.output import commas, print_json, print_table
from ottla.cli.quantities import shown_ms


@click.group("transactions")
def command() -> None:
    """Show transactions, and end one whose producer hangs.

    \b
    Example:
      ottla transactions list --state Ongoing
    """


@command.command("list")
@click.option(
    "--state",
    "states",
    metavar="STATE",
    multiple=True,
    help="Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, Empty; repeatable.",
)
@cluster_options
@json_option
def list_(states: tuple[str, ...], target: Target, as_json: bool) -> None:
    """List transactional ids and the state of each.

    \b
    Example:
      ottla transactions list --state Ongoing
    """
    found = administer(target, lambda admin: admin.list_transactions(states))
    if as_json:
        print_json([each._asdict() for each in found])
    elif found:
        print_table(("TRANSACTIONAL ID", "PRODUCER", "STATE"), found)


@command.command("describe")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@cluster_options
@json_option
def describe(ids: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Show how far a transaction is, and which partitions it has written.

    \b
    Example:
      ottla transactions describe copier-1
    """
    found = administer(target, lambda admin: admin.describe_transactions(list(dict.fromkeys(ids)))).values()
    if as_json:
        print_json([each._asdict() | {"partitions": [place._asdict() for place in each.partitions]} for each in found])
        return
    now_ms = time.time_ns() // 1_000_000
    rows = [
        (
            each.transactional_id,
            each.state,
            each.producer_id,
            each.producer_epoch,
            f"{(now_ms - each.started_ms) / 1000:.1f} s" if each.started_ms >= 0 else "-",
            f"{each.timeout_ms / 1000:g} s",
            each.coordinator,
            commas(each.partitions) or "-",
        )
        for each in found
    ]
    header = ("TRANSACTIONAL ID", "STATE", "PRODUCER", "EPOCH", "OPEN FOR", "TIMEOUT", "COORDINATOR", "PARTITIONS")
    print_table(header, rows)


@command.command("producers")
@click.argument("partition", metavar="TOPIC-N")
@cluster_options
@json_option
def producers(partition: str, target: Target, as_json: bool) -> None:
    """Show the producers that a partition remembers, and which of them holds a transaction open there.

    \b
    Example:
      ottla transactions producers orders-0
    """
    place = parse_place(partition)
    found = administer(target, lambda admin: admin.describe_producers(place))
    if as_json:
        print_json([each._asdict() for each in found])
        return
    rows = [
        (
            each.producer_id,
            each.producer_epoch,
            each.last_sequence,
            shown_ms(each.last_timestamp),
            each.transaction_start if each.transaction_start >= 0 else "-",
        )
        for each in found
    ]
    print_table(("PRODUCER", "EPOCH", "LAST SEQUENCE", "LAST TIME", "OPEN SINCE OFFSET"), rows)


@command.command("abort")
@click.argument("transactional_id", metavar="ID")
@cluster_options
@json_option
def abort(transactional_id: str, target: Target, as_json: bool) -> None:
    """Shut out the producer that uses an id now: what it has not committed is aborted.

    \b
    Example:
      ottla transactions abort copier-1
    """
    administer(target, lambda admin: admin.fence_producer(transactional_id))
    if as_json:
        print_json({"fenced": transactional_id})
    else:
        click.echo(f"shut out the producer of {transactional_id}; what it had not committed is aborted")
