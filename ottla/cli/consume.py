"""`ottla consume`: read records and print them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

import click

from ottla.cli import formats
from ottla.cli.cluster import (
    Target,
    administer,
    cluster_options,
    misused,
    no_partition,
    nobody_leads,
    run,
    without_leader,
)
from ottla.cli.completion import group_names, topic_names
from ottla.cli.failure import Failure, Misused
from ottla.cli.quantities import moment_ms
from ottla.client.admin import Topic
from ottla.client.consuming.consumer import Consumer
from ottla.client.errors import BadSetting
from ottla.client.values import TopicPartition

POLL_MS: Final = 500
BATCH_MAX: Final = 2000
NOTES_MAX: Final = 5
"""Partitions of which it is told one by one that they start later."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records, and how they are printed."""

    topics: Sequence[str]
    group: str | None
    partitions: Sequence[int]
    offset: str
    count: int | None
    until_end: bool
    idle_ms: int | None
    """Give up after so long without a record."""
    shown: formats.Rendered
    pattern: str | None = None
    """Of names of topics, in place of `topics`; it takes a group."""
    resets: bool = False
    """An offset that is not there is a matter of auto.offset.reset, as it is for Kafka's command, and no error."""


@click.command("consume")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=topic_names)
@click.option(
    "-g",
    "--group",
    metavar="ID",
    help="Share the topics as a member of this group, and commit.",
    shell_complete=group_names,
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Only this partition; repeatable.",
)
@click.option(
    "-o",
    "--offset",
    default="beginning",
    show_default=True,
    metavar="WHERE",
    help="beginning, end, a number, -N (so many before the end), s@TIME, stored (where the group -g has come to, not "
    "joining it). With -g only beginning, end and stored; the first two count where the group has committed nothing.",
)
@click.option("-c", "--count", type=click.IntRange(min=1), metavar="N", help="Stop after so many records.")
@click.option("-e", "--exit", "until_end", is_flag=True, help="Stop at what is the end now.")
@click.option(
    "--timeout-ms", "idle_ms", type=click.IntRange(min=1), metavar="N", help="Stop after so long without a record."
)
@click.option(
    "-f",
    "--format",
    "template",
    default=formats.DEFAULT,
    metavar="FORMAT",
    help="kcat's tokens: %s value, %k key, %t topic, %p partition, %o offset, %T time, %h headers, %S and %K "
    "lengths.  [default: %s\\n]",
)
@click.option(
    "--value-format",
    type=click.Choice(["bytes", "avro"]),
    default="bytes",
    show_default=True,
    help="avro: in Confluent's wire format, shown as JSON; needs --registry and ottla[avro].",
)
@click.option("--registry", metavar="URL", help="A schema registry.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON for each record, as kcat -J.")
@cluster_options
def command(
    topics: tuple[str, ...],
    group: str | None,
    partitions: tuple[int, ...],
    offset: str,
    count: int | None,
    until_end: bool,
    idle_ms: int | None,
    template: str,
    value_format: str,
    registry: str | None,
    as_json: bool,
    target: Target,
) -> None:
    """Read records and print them, until Ctrl-C, or until -c or -e say so.

    \b
    Example:
      ottla consume orders -e
      ottla consume orders -o -5 -e -f '%t %p %o %k %s\\n'
      ottla consume orders -g kitchen
      ottla consume orders -g kitchen -o stored -p 0
    """
    stored = offset == "stored"
    if stored and group is None and "group.id" not in target.settings:
        raise Misused("-o stored begins where a group has come to", hint="Name the group: -g ID.")
    if group is not None and partitions and not stored:
        raise Misused("a group deals the partitions out itself", hint="Leave out -g or -p, or say -o stored.")
    try:
        shown = formats.envelope if as_json else formats.compiled(template)
    except formats.BadFormat as bad:
        raise Misused(f"-f: {bad}") from None
    if where(offset)[0] in ("at", "last", "time") and group is not None:  # refused before anybody is asked
        raise Misused(
            f"a group goes on where it was, not at -o {offset}",
            hint="Leave out -g, or move the group: `ottla groups reset-offsets`.",
        )
    deserializer = _deserializer(value_format, registry)
    wanted = Wanted(topics, group, partitions, offset, count, until_end, idle_ms, shown)
    consume(wanted, target, sys.stdout.buffer, deserializer)


def _deserializer(value_format: str, registry: str | None) -> Any:
    if value_format == "bytes":
        return None
    if not registry:
        raise Misused("--value-format avro needs a schema registry", hint="Say --registry http://HOST:8081.")
    from ottla.serde import AvroDeserializer

    return AvroDeserializer(registry)


def where(text: str) -> tuple[str, int]:
    """("beginning", 0), ("end", 0), ("stored", 0), ("at", N), ("last", N), ("time", ms)."""
    try:
        if text in ("beginning", "earliest"):
            return "beginning", 0
        if text in ("end", "latest"):
            return "end", 0
        if text == "stored":
            return "stored", 0
        if text.startswith("s@"):
            return "time", moment_ms(text[2:])
        number = int(text)
    except ValueError:
        raise Misused(
            f"-o {text!r} is no place to begin",
            hint="Say beginning, end, stored, a number, -N for so many before the end, or s@2026-01-31T12:00.",
        ) from None
    return ("last", -number) if number < 0 else ("at", number)


def consume(wanted: Wanted, target: Target, out: IO[bytes], value_deserializer: Any = None) -> int:
    """Print what is wanted; how many records that were."""
    kind = where(wanted.offset)[0]
    reset = "latest" if kind == "end" else "earliest"
    try:
        consumer = Consumer(
            bootstrap_servers=target.bootstrap,
            config=target.config(group_id=wanted.group, auto_offset_reset=reset, max_poll_records=BATCH_MAX),
            value_deserializer=value_deserializer,
        )
    except BadSetting as bad:
        raise misused(bad) from None
    if wanted.pattern is not None:
        return run(_consume(wanted, [], consumer, out))
    topics = administer(target._replace(settings={}), lambda admin: admin.describe_topics(wanted.topics))
    places = _places(wanted, topics)
    lost = [place for place in without_leader(topics.values()) if place in places]
    if lost and (wanted.until_end or len(lost) == len(places)):
        raise nobody_leads(lost)
    return run(_consume(wanted, places, consumer, out))


async def _consume(wanted: Wanted, places: list[TopicPartition], consumer: Consumer, out: IO[bytes]) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with consumer:
        if wanted.group is not None and where(wanted.offset)[0] != "stored":
            consumer.subscribe(list(wanted.topics), pattern=wanted.pattern)
        else:
            consumer.assign(places)
            await _seek(consumer, places, wanted)
        ends = await _ends(consumer, places) if wanted.until_end else None
        return await _print(wanted, consumer, out, ends, stop)


def _places(wanted: Wanted, topics: Mapping[str, Topic]) -> list[TopicPartition]:
    places: list[TopicPartition] = []
    for topic in topics.values():
        there = [partition.partition for partition in topic.partitions]
        if missing := set(wanted.partitions) - set(there):
            raise no_partition(topic, min(missing))
        places += [TopicPartition(topic.name, number) for number in sorted(wanted.partitions or there)]
    return places


async def _seek(consumer: Consumer, places: list[TopicPartition], wanted: Wanted) -> None:
    kind, number = where(wanted.offset)
    if kind == "stored":
        return  # a consumer of a group begins where the group has come to
    if kind == "beginning":
        await consumer.seek_to_beginning(*places)
    elif kind == "end":
        await consumer.seek_to_end(*places)
    elif kind == "time":
        await consumer.seek_to_time(number, *places)
    elif kind == "at" and wanted.resets:
        for place in places:
            consumer.seek(place, number)
    elif kind == "at":
        begins = await consumer.beginning_offsets(places)
        _tell_deleted({place: begin for place, begin in begins.items() if begin > number})
        for place, end in (await consumer.end_offsets(places)).items():
            if number > end:
                raise Failure(
                    f"{place} ends at offset {end}: there is no offset {number} yet",
                    hint="Say a smaller number, -o end for what comes next, or -p for another partition.",
                )
            consumer.seek(place, max(number, begins[place]))
    else:
        begins = await consumer.beginning_offsets(places)
        for place, end in (await consumer.end_offsets(places)).items():
            consumer.seek(place, max(begins[place], end - number))


def _tell_deleted(begins: dict[TopicPartition, int]) -> None:
    for place, begin in sorted(begins.items())[:NOTES_MAX]:
        click.echo(f"ottla: {place} starts at offset {begin}: what was before is deleted", err=True)
    if len(begins) > NOTES_MAX:
        click.echo(f"ottla: and so do {len(begins) - NOTES_MAX} partitions more", err=True)


async def _ends(consumer: Consumer, places: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Partitions in which something is left to read, as of now."""
    begins = await consumer.beginning_offsets(places)
    return {place: end for place, end in (await consumer.end_offsets(places)).items() if end > begins[place]}


async def _print(
    wanted: Wanted, consumer: Consumer, out: IO[bytes], ends: dict[TopicPartition, int] | None, stop: asyncio.Event
) -> int:
    printed = 0
    stopped = asyncio.create_task(stop.wait())
    wait_ms = min(POLL_MS, wanted.idle_ms or POLL_MS)
    idle_ms = 0
    try:
        while not stop.is_set() and (ends is None or await _left(consumer, ends)):
            limit = BATCH_MAX if wanted.count is None else min(BATCH_MAX, wanted.count - printed)
            poll = asyncio.create_task(consumer.getmany(timeout_ms=wait_ms, max_records=limit))
            await asyncio.wait((poll, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not poll.done():
                poll.cancel()
                await asyncio.gather(poll, return_exceptions=True)
                break
            taken = poll.result()
            for records in taken.values():
                shown: list[bytes] = []
                try:
                    shown.extend(map(wanted.shown, records))
                finally:  # one that cannot be shown comes behind the others
                    out.write(b"".join(shown))
                printed += len(records)
            out.flush()
            idle_ms = 0 if taken else idle_ms + wait_ms
            if printed == wanted.count or (wanted.idle_ms is not None and idle_ms >= wanted.idle_ms):
                break
    finally:
        stopped.cancel()
    return printed


async def _left(consumer: Consumer, ends: dict[TopicPartition, int]) -> bool:
    """Whether some partition is not read to its end yet. In a group those count that others read, by their commits."""
    mine = consumer.assignment()
    for place in [*ends]:
        if place in mine:
            reached = await consumer.position(place)
        else:
            reached = await consumer.committed(place) or 0
        if reached >= ends[place]:
            del ends[place]
    return bool(ends)
