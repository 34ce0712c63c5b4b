"""`ottla topics delete-records`: move the log start of partitions forward."""

from __future__ import annotations

import click

from ottla.cli.completion import topic_names
from ottla.cli.failure import Failure, Misused
from ottla.cli.output import answer, json_option, print_table
from ottla.cli.quantities import moment_ms
from ottla.cli.target import Target, administer, cluster_options, no_leader, no_partition, partitions_of, without_leader
from ottla.client.admin import Admin
from ottla.client.errors import ClientError
from ottla.client.values import TopicPartition
from ottla.errors import ErrorCode


@click.command("delete-records")
@click.argument("name", shell_complete=topic_names)
@click.option(
    "-p", "--partition", "numbers", type=click.IntRange(min=0), multiple=True, metavar="N", help="Repeatable."
)
@click.option("--before-offset", type=click.IntRange(min=0), metavar="N", help="Records with a smaller offset.")
@click.option("--before-time", metavar="TIME", help="Records before the first of this time or later; 2026-01-31T12:00.")
@click.option("--all", "everything", is_flag=True, help="All records that are in the log now.")
@click.option("--execute", is_flag=True, help="Delete them. Without it the command only shows what it would delete.")
@cluster_options
@json_option
def delete_records(
    name: str,
    numbers: tuple[int, ...],
    before_offset: int | None,
    before_time: str | None,
    everything: bool,
    execute: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Delete the oldest records of a topic, in all partitions or in some. Shows what it would do; --execute does it.

    \b
    Example:
      ottla topics delete-records orders --before-time 2026-01-31T12:00
      ottla topics delete-records orders -p 0 --before-offset 500 --execute
    """
    if [before_offset is not None, before_time is not None, everything].count(True) != 1:
        raise Misused("name the end of the range, once", hint="One of --before-offset, --before-time, --all.")
    try:
        since = moment_ms(before_time) if before_time is not None else None
    except ValueError as bad:
        raise Misused(str(bad)) from None

    async def work(admin: Admin) -> list[tuple[TopicPartition, int, int]]:
        topic = (await admin.describe_topics([name]))[name]
        if missing := set(numbers) - {part.partition for part in topic.partitions}:
            raise no_partition(topic, min(missing))
        chosen = [tp for tp in partitions_of([topic]) if not numbers or tp.partition in numbers]
        if offline := [each for each in without_leader([topic]) if each in chosen]:
            raise no_leader(offline)
        starts = await admin.list_offsets(dict.fromkeys(chosen, "earliest"))
        ends = await admin.list_offsets(dict.fromkeys(chosen, "latest"))
        at = await admin.list_offsets(dict.fromkeys(chosen, since)) if since is not None else {}
        if before_offset is not None:
            _check_reached(before_offset, {each: ends[each].offset for each in chosen}, named=bool(numbers))
        cuts = []
        for each in chosen:
            end = ends[each].offset
            wanted = end if before_offset is None else before_offset
            if each in at and at[each].offset >= 0:
                wanted = at[each].offset
            cuts.append((each, starts[each].offset, min(max(wanted, starts[each].offset), end)))
        if execute:
            await _delete(admin, {each: cut for each, start, cut in cuts if cut > start})
        return cuts

    cuts = administer(target, work)
    rows = [
        each._asdict() | {"log_start_before": start, "log_start": cut if execute else start, "delete_before": cut}
        for each, start, cut in cuts
    ]
    answer(as_json, {"topic": name, "executed": execute, "partitions": rows}, lambda: _print(cuts, execute))


def _print(cuts: list[tuple[TopicPartition, int, int]], execute: bool) -> None:
    rows = [(each.partition, start, cut, cut - start) for each, start, cut in cuts]
    if execute:
        print_table(("PARTITION", "LOG START BEFORE", "LOG START", "DELETED"), rows)
        click.echo(f"deleted: {sum(cut - start for _, start, cut in cuts):,} records")
    else:
        print_table(("PARTITION", "LOG START", "DELETE BEFORE", "RECORDS"), rows)
        click.echo("nothing was changed; --execute does it")


async def _delete(admin: Admin, before: dict[TopicPartition, int]) -> None:
    try:
        await admin.delete_records(before)
    except ClientError as error:
        if error.code is ErrorCode.kafka_storage_error:
            error.hint = (
                "The records cannot be read any more, but the leader's disk is full and cannot store the new log start "
                "offset: after a restart the records may be back. Free some space there, then try again."
            )
        raise


def _check_reached(before_offset: int, ends: dict[TopicPartition, int], *, named: bool) -> None:
    """An offset beyond the end is a mistake if the partition was named, or if all partitions end before it."""
    short = {each: end for each, end in ends.items() if end < before_offset}
    if short and (named or len(short) == len(ends)):
        tp, end = max(short.items(), key=lambda item: item[1])
        raise Failure(
            f"{tp} ends at offset {end}: --before-offset {before_offset} is beyond its end",
            hint="Nothing was deleted. --all deletes all records.",
        )
