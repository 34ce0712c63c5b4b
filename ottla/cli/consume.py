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
from ottla.cli.completion import group_names, topic_names
from ottla.cli.failure import Failure, Misused
from ottla.cli.quantities import moment_ms
from ottla.cli.target import (
    Target,
    administer,
    cluster_options,
    misused,
    no_leader,
    no_partition,
    run,
    without_leader,
)
from ottla.client.admin import TopicDescription
from ottla.client.consuming.consumer import Consumer
from ottla.client.errors import BadSetting
from ottla.client.values import TopicPartition

POLL_MS: Final = 500
BATCH_MAX: Final = 2000
NOTES_MAX: Final = 5
"""So many partitions are named one by one when their log starts behind the offset that was asked for."""


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """Which records, and how they are printed."""

    topics: Sequence[str]
    group: str | None
    partitions: Sequence[int]
    offset: str
    count: int | None
    until_end: bool
    idle_ms: int | None
    """Stop after so long without a record."""
    shown: formats.Rendered
    pattern: str | None = None
    """Regular expression for names of topics, instead of `topics`; needs a group."""
    resets: bool = False
    """An offset out of range is reset by auto.offset.reset, as Kafka's console consumer does; otherwise an error."""


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
    help="beginning, end, an offset, -N (the last N of each partition), s@TIME, or stored (the committed offset of the "
    "group -g, without joining it). With -g only beginning, end and stored; the first two apply where the group has "
    "committed nothing.",
)
@click.option("-c", "--count", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@click.option("-e", "--exit", "until_end", is_flag=True, help="Stop at the current end of the partitions.")
@click.option(
    "--timeout-ms", "idle_ms", type=click.IntRange(min=1), metavar="N", help="Stop after N ms without a record."
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
    """Read records and print them, until Ctrl-C or the end that -c or -e sets.

    \b
    Example:
      ottla consume orders -e
      ottla consume orders -o -5 -e -f '%t %p %o %k %s\\n'
      ottla consume orders -g kitchen
      ottla consume orders -g kitchen -o stored -p 0
    """
    stored = offset == "stored"
    if stored and group is None and "group.id" not in target.settings:
        raise Misused("-o stored begins at the committed offset of a group", hint="Name the group: -g ID.")
    if group is not None and partitions and not stored:
        raise Misused("the group coordinator assigns partitions", hint="Leave out -g or -p, or use -o stored.")
    try:
        shown = formats.envelope if as_json else formats.compiled(template)
    except formats.BadFormat as bad:
        raise Misused(f"-f: {bad}") from None
    if where(offset)[0] in ("at", "last", "time") and group is not None:
        raise Misused(
            f"a group continues at its committed offset, not at -o {offset}",
            hint="Leave out -g, or change its offsets: `ottla groups reset-offsets`.",
        )
    deserializer = _deserializer(value_format, registry)
    wanted = ConsumeOptions(topics, group, partitions, offset, count, until_end, idle_ms, shown)
    consume(wanted, target, sys.stdout.buffer, deserializer)


def _deserializer(value_format: str, registry: str | None) -> Any:
    if value_format == "bytes":
        return None
    if not registry:
        raise Misused("--value-format avro needs a schema registry", hint="Use --registry http://HOST:8081.")
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
            f"-o {text!r} is not an offset",
            hint="Use beginning, end, stored, a number, -N for the last N of each partition, or s@2026-01-31T12:00.",
        ) from None
    return ("last", -number) if number < 0 else ("at", number)


def consume(wanted: ConsumeOptions, target: Target, out: IO[bytes], value_deserializer: Any = None) -> int:
    """Print the records; returns their number."""
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
    partitions = _partitions(wanted, topics)
    offline = [tp for tp in without_leader(topics.values()) if tp in partitions]
    if offline and (wanted.until_end or len(offline) == len(partitions)):
        raise no_leader(offline)
    return run(_consume(wanted, partitions, consumer, out))


async def _consume(wanted: ConsumeOptions, partitions: list[TopicPartition], consumer: Consumer, out: IO[bytes]) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with consumer:
        if wanted.group is not None and where(wanted.offset)[0] != "stored":
            consumer.subscribe(list(wanted.topics), pattern=wanted.pattern)
        else:
            consumer.assign(partitions)
            await _seek(consumer, partitions, wanted)
        ends = await _ends(consumer, partitions) if wanted.until_end else None
        return await _print(wanted, consumer, out, ends, stop)


def _partitions(wanted: ConsumeOptions, topics: Mapping[str, TopicDescription]) -> list[TopicPartition]:
    partitions: list[TopicPartition] = []
    for topic in topics.values():
        there = [partition.partition for partition in topic.partitions]
        if missing := set(wanted.partitions) - set(there):
            raise no_partition(topic, min(missing))
        partitions += [TopicPartition(topic.name, number) for number in sorted(wanted.partitions or there)]
    return partitions


async def _seek(consumer: Consumer, partitions: list[TopicPartition], wanted: ConsumeOptions) -> None:
    kind, number = where(wanted.offset)
    if kind == "stored":
        return  # the consumer itself starts at the committed offset
    if kind == "beginning":
        await consumer.seek_to_beginning(*partitions)
    elif kind == "end":
        await consumer.seek_to_end(*partitions)
    elif kind == "time":
        await consumer.seek_to_time(number, *partitions)
    elif kind == "at" and wanted.resets:
        for tp in partitions:
            consumer.seek(tp, number)
    elif kind == "at":
        begins = await consumer.beginning_offsets(partitions)
        _report_deleted({tp: begin for tp, begin in begins.items() if begin > number})
        for tp, end in (await consumer.end_offsets(partitions)).items():
            if number > end:
                raise Failure(
                    f"{tp} ends at offset {end}: there is no offset {number} yet",
                    hint="Use a smaller number, -o end for new records, or -p for another partition.",
                )
            consumer.seek(tp, max(number, begins[tp]))
    else:
        begins = await consumer.beginning_offsets(partitions)
        for tp, end in (await consumer.end_offsets(partitions)).items():
            consumer.seek(tp, max(begins[tp], end - number))


def _report_deleted(begins: dict[TopicPartition, int]) -> None:
    for tp, begin in sorted(begins.items())[:NOTES_MAX]:
        click.echo(f"ottla: {tp} starts at offset {begin}: earlier records are deleted", err=True)
    if len(begins) > NOTES_MAX:
        click.echo(f"ottla: and {len(begins) - NOTES_MAX} more partitions", err=True)


async def _ends(consumer: Consumer, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """End offsets of the partitions that have records now."""
    begins = await consumer.beginning_offsets(partitions)
    return {tp: end for tp, end in (await consumer.end_offsets(partitions)).items() if end > begins[tp]}


async def _print(
    wanted: ConsumeOptions,
    consumer: Consumer,
    out: IO[bytes],
    ends: dict[TopicPartition, int] | None,
    stop: asyncio.Event,
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
                finally:  # also when one record cannot be shown
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
    """Whether a partition is not read to its end yet; partitions of other group members count by their commits."""
    mine = consumer.assignment()
    for tp in [*ends]:
        if tp in mine:
            reached = await consumer.position(tp)
        else:
            reached = await consumer.committed(tp) or 0
        if reached >= ends[tp]:
            del ends[tp]
    return bool(ends)
