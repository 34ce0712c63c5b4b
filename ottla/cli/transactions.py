"""`ottla transactions`: which are under way, who takes part, and ending one from outside."""

from __future__ import annotations

import time

import click

from ottla.cli.cluster import Target, administer, cluster_options, json_option, parse_place
from ottla.cli.failure import Failure, Misused, Suggesting
from ottla.cli.output import commas, print_json, print_table
from ottla.cli.outside import Outside, store_options
from ottla.cli.quantities import shown_ms
from ottla.client.admin import Admin
from ottla.client.admin.transaction_admin import OPEN_FOR_MS, ActiveProducer, HangingTransaction
from ottla.client.values import TopicPartition


@click.group("transactions", cls=Suggesting)
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

    async def ask(admin: Admin) -> list[ActiveProducer]:
        await admin.describe_topics([place.topic])  # says at once that it is not there
        return await admin.describe_producers(place)

    found = administer(target, ask)
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


@command.command("hanging")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option(
    "--open-for",
    metavar="SECONDS",
    type=click.FloatRange(0),
    default=OPEN_FOR_MS / 1000,
    show_default=True,
    help="Only those that were last written so long ago.",
)
@cluster_options
@json_option
def hanging(topics: tuple[str, ...], open_for: float, target: Target, as_json: bool) -> None:
    """Find transactions that nobody will end: open in a partition, and unknown to every coordinator.

    Readers with isolation.level=read_committed wait before such a one for ever, and it is not compacted. Without a
    topic, all are looked through.

    \b
    Example:
      ottla transactions hanging orders
    """

    async def find(admin: Admin) -> list[HangingTransaction]:
        if topics:
            described = list((await admin.describe_topics(list(dict.fromkeys(topics)))).values())
        else:
            described = await admin.list_topics(internal=True)
        places = [TopicPartition(topic.name, each.partition) for topic in described for each in topic.partitions]
        return await admin.hanging_transactions(places, open_for_ms=round(open_for * 1000))

    found = administer(target, find)
    if as_json:
        print_json([{"partition": str(place)} | producer._asdict() for place, producer in found])
        return
    rows = [
        (place, each.producer_id, each.producer_epoch, each.transaction_start, shown_ms(each.last_timestamp))
        for place, each in found
    ]
    if rows:
        print_table(("PARTITION", "PRODUCER", "EPOCH", "OPEN SINCE OFFSET", "LAST TIME"), rows)


@command.command("abort")
@click.argument("transactional_id", metavar="[ID]", required=False)
@click.option("--partition", metavar="TOPIC-N", help="Where a hanging one is open; with --producer, instead of ID.")
@click.option("--producer", "producer_id", metavar="PRODUCER", type=int, help="Whose it is.")
@store_options
@cluster_options
@json_option
def abort(
    transactional_id: str | None,
    partition: str | None,
    producer_id: int | None,
    outside: Outside,
    target: Target,
    as_json: bool,
) -> None:
    """Shut out the producer that uses an id now: what it has not committed is aborted.

    Or end a hanging transaction, which no coordinator knows. Only brokers may do that, so the cluster's store must be
    named as it is for `ottla serve`: whoever can read it may speak for the cluster.

    \b
    Example:
      ottla transactions abort copier-1
      ottla transactions abort --partition orders-0 --producer 4001 --store embedded:ottla-data/store.db
    """
    if (transactional_id is None) == (partition is None or producer_id is None):
        raise Misused("abort what?", hint="Give an ID, or --partition with --producer; `ottla transactions hanging`.")
    if transactional_id is not None:
        name = transactional_id
        administer(target, lambda admin: admin.fence_producer(name))
        told: dict[str, object] = {"fenced": name}
        text = f"shut out the producer of {name}; what it had not committed is aborted"
    else:
        place = parse_place(partition or "")
        offset = _abort_hanging(place, producer_id or 0, outside, target)
        told = {"aborted": str(place), "offset": offset}
        text = f"aborted what producer {producer_id} had begun in {place} at offset {offset}"
    if as_json:
        print_json(told)
    else:
        click.echo(text)


def _abort_hanging(place: TopicPartition, producer_id: int, outside: Outside, target: Target) -> int:
    found = administer(target, lambda admin: admin.hanging_transactions([place], open_for_ms=0))
    for _, producer in found:
        if producer.producer_id == producer_id:
            outside.abort(place, producer)
            return producer.transaction_start
    raise Failure(
        f"no transaction of producer {producer_id} hangs in {place}",
        hint="`ottla transactions list` shows those that a coordinator knows: abort them by their id.",
    )
