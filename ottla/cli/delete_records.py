"""`ottla topics delete-records`: move the log start of partitions forward."""

from __future__ import annotations

import click

from ottla.cli.cluster import (
    Target,
    administer,
    cluster_options,
    json_option,
    no_partition,
    nobody_leads,
    without_leader,
)
from ottla.cli.completion import topic_names
from ottla.cli.failure import Failure, Misused
from ottla.cli.output import print_json, print_table
from ottla.cli.quantities import moment_ms
from ottla.client.admin import Admin
from ottla.client.errors import ClientError
from ottla.client.values import TopicPartition
from ottla.errors import ErrorCode


@click.command("delete-records")
@click.argument("name", shell_complete=topic_names)
@click.option(
    "-p", "--partition", "numbers", type=click.IntRange(min=0), multiple=True, metavar="N", help="Repeatable."
)
@click.option("--before-offset", type=click.IntRange(min=0), metavar="N", help="Those with a smaller offset.")
@click.option("--before-time", metavar="TIME", help="Those before the first that is not older; 2026-01-31T12:00.")
@click.option("--all", "everything", is_flag=True, help="All there are now.")
@click.option("--execute", is_flag=True, help="Do it. Otherwise it is only shown what would be done.")
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
        raise Misused("say up to where, once", hint="One of --before-offset, --before-time, --all.")
    try:
        since = moment_ms(before_time) if before_time is not None else None
    except ValueError as bad:
        raise Misused(str(bad)) from None

    async def work(admin: Admin) -> list[tuple[TopicPartition, int, int]]:
        topic = (await admin.describe_topics([name]))[name]
        if missing := set(numbers) - {part.partition for part in topic.partitions}:
            raise no_partition(topic, min(missing))
        chosen = [
            TopicPartition(name, part.partition)
            for part in topic.partitions
            if not numbers or part.partition in numbers
        ]
        if lost := [each for each in without_leader([topic]) if each in chosen]:
            raise nobody_leads(lost)
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
    if as_json:
        rows = [
            each._asdict() | {"log_start_before": start, "log_start": cut if execute else start, "delete_before": cut}
            for each, start, cut in cuts
        ]
        print_json({"topic": name, "executed": execute, "partitions": rows})
        return
    print_table(
        ("PARTITION", "LOG START BEFORE", "LOG START", "DELETED")
        if execute
        else ("PARTITION", "LOG START", "DELETE BEFORE", "RECORDS"),
        [(each.partition, start, cut, cut - start) for each, start, cut in cuts],
    )
    if execute:
        click.echo(f"deleted: {sum(cut - start for _, start, cut in cuts):,} records")
    else:
        click.echo("nothing was changed; --execute does it")


async def _delete(admin: Admin, before: dict[TopicPartition, int]) -> None:
    try:
        await admin.delete_records(before)
    except ClientError as error:
        if error.code is ErrorCode.kafka_storage_error:
            error.hint = (
                "The records cannot be read any more, but the disk of the leader has no room to write that down: after "
                "a restart they may be back. Make room there, then ask again."
            )
        raise


def _check_reached(before_offset: int, ends: dict[TopicPartition, int], *, named: bool) -> None:
    """An offset behind the end is a mistake: of a partition that was named, or of all there are."""
    short = {each: end for each, end in ends.items() if end < before_offset}
    if short and (named or len(short) == len(ends)):
        place, end = max(short.items(), key=lambda item: item[1])
        raise Failure(
            f"{place} ends at offset {end}: --before-offset {before_offset} lies behind its end",
            hint="Nothing was deleted. --all deletes all there are now.",
        )
