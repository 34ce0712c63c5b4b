"""`ottla transactions`: list and describe transactions, find and abort hanging ones."""

from __future__ import annotations

import time

import click

from ottla.cli.cluster_store import ClusterStore, store_options
from ottla.cli.failure import Failure, Misused, Suggesting
from ottla.cli.output import answer, commas, json_option, print_rows, print_table
from ottla.cli.quantities import shown_ms
from ottla.cli.target import Target, administer, cluster_options, parse_partition, partitions_of
from ottla.client.admin import Admin
from ottla.client.admin.transaction_admin import OPEN_FOR_MS, ActiveProducer, HangingTransaction
from ottla.client.values import TopicPartition


@click.group("transactions", cls=Suggesting)
def command() -> None:
    """Show transactions, and abort one whose producer hangs.

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
    header = ("TRANSACTIONAL ID", "PRODUCER", "STATE")
    answer(as_json, [each._asdict() for each in found], lambda: print_rows(header, found))


@command.command("describe")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@cluster_options
@json_option
def describe(ids: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Show the state of transactions, and the partitions they have written.

    \b
    Example:
      ottla transactions describe copier-1
    """
    found = administer(target, lambda admin: admin.describe_transactions(list(dict.fromkeys(ids)))).values()
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
    value = [each._asdict() | {"partitions": [tp._asdict() for tp in each.partitions]} for each in found]
    answer(as_json, value, lambda: print_table(header, rows))


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
    tp = parse_partition(partition)

    async def ask(admin: Admin) -> list[ActiveProducer]:
        await admin.describe_topics([tp.topic])  # fails at once if the topic does not exist
        return await admin.describe_producers(tp)

    found = administer(target, ask)
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
    header = ("PRODUCER", "EPOCH", "LAST SEQUENCE", "LAST TIME", "OPEN SINCE OFFSET")
    answer(as_json, [each._asdict() for each in found], lambda: print_table(header, rows))


@command.command("hanging")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option(
    "--open-for",
    metavar="SECONDS",
    type=click.FloatRange(0),
    default=OPEN_FOR_MS / 1000,
    show_default=True,
    help="Only those without a write for at least this long.",
)
@cluster_options
@json_option
def hanging(topics: tuple[str, ...], open_for: float, target: Target, as_json: bool) -> None:
    """Find hanging transactions: open in a partition, and unknown to every coordinator.

    Consumers with isolation.level=read_committed cannot read past such a transaction, and the log cleaner stops before
    it. Without a topic, all topics are searched.

    \b
    Example:
      ottla transactions hanging orders
    """

    async def find(admin: Admin) -> list[HangingTransaction]:
        if topics:
            described = list((await admin.describe_topics(list(dict.fromkeys(topics)))).values())
        else:
            described = await admin.list_topics(internal=True)
        return await admin.hanging_transactions(list(partitions_of(described)), open_for_ms=round(open_for * 1000))

    found = administer(target, find)
    rows = [
        (tp, each.producer_id, each.producer_epoch, each.transaction_start, shown_ms(each.last_timestamp))
        for tp, each in found
    ]
    header = ("PARTITION", "PRODUCER", "EPOCH", "OPEN SINCE OFFSET", "LAST TIME")
    value = [{"partition": str(tp)} | producer._asdict() for tp, producer in found]
    answer(as_json, value, lambda: print_rows(header, rows))


@command.command("abort")
@click.argument("transactional_id", metavar="[ID]", required=False)
@click.option("--partition", metavar="TOPIC-N", help="Of a hanging transaction; with --producer, instead of ID.")
@click.option("--producer", "producer_id", metavar="PRODUCER", type=int, help="Producer id of a hanging transaction.")
@store_options
@cluster_options
@json_option
def abort(
    transactional_id: str | None,
    partition: str | None,
    producer_id: int | None,
    store: ClusterStore,
    target: Target,
    as_json: bool,
) -> None:
    """Fence the producer of a transactional id: its open transaction is aborted.

    Or abort a hanging transaction, which no coordinator knows. Only brokers may do that, so the command needs the
    cluster's store, named as for `ottla serve`: it authenticates with the secret in it.

    \b
    Example:
      ottla transactions abort copier-1
      ottla transactions abort --partition orders-0 --producer 4001 --store embedded:ottla-data/store.db
    """
    if (transactional_id is None) == (partition is None or producer_id is None):
        raise Misused(
            "name one transaction",
            hint="Give an ID, or --partition with --producer as `ottla transactions hanging` shows them.",
        )
    if transactional_id is not None:
        name = transactional_id
        administer(target, lambda admin: admin.fence_producer(name))
        value: dict[str, object] = {"fenced": name}
        text = f"fenced the producer of {name}; its open transaction is aborted"
    else:
        tp = parse_partition(partition or "")
        offset = _abort_hanging(tp, producer_id or 0, store, target)
        value = {"aborted": str(tp), "offset": offset}
        text = f"aborted the transaction that producer {producer_id} began in {tp} at offset {offset}"
    answer(as_json, value, text)


def _abort_hanging(tp: TopicPartition, producer_id: int, store: ClusterStore, target: Target) -> int:
    found = administer(target, lambda admin: admin.hanging_transactions([tp], open_for_ms=0))
    for _, producer in found:
        if producer.producer_id == producer_id:
            store.abort(tp, producer)
            return producer.transaction_start
    raise Failure(
        f"producer {producer_id} has no hanging transaction in {tp}",
        hint="`ottla transactions list` shows those that a coordinator knows: abort one by its transactional id.",
    )
