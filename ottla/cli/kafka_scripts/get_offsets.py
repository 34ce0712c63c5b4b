"""kafka-get-offsets.sh: the offsets of partitions at a time, as `topic:partition:offset`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import click

from ottla.cli.kafka_scripts.options import (
    InvalidRegex,
    Script,
    ScriptOptions,
    ToolFailure,
    administer,
    include_list,
    target_of,
)
from ottla.client.admin import Admin
from ottla.client.values import TopicPartition

TIMES: Final = {
    "latest": -1,
    "earliest": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
    "earliest-pending-upload": -6,
}
RULE: Final = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?")
UNKNOWN_OFFSET: Final = -1

Filter = Callable[[TopicPartition], bool]


def _wrong(message: str) -> ToolFailure:
    return ToolFailure(f"Error occurred: {message}")


@click.command(
    "kafka-get-offsets.sh",
    cls=Script,
    about="An interactive shell for getting topic-partition offsets.",
    unparsed=lambda _, message: _wrong(message),
    unreadable=_wrong,
)
@click.option("--bootstrap-server", "--broker-list")
@click.option("--topic-partitions", metavar="topic1:1,topic2:0-3,topic3,topic4:5-,topic5:-3")
@click.option("--topic", help="A name or a regular expression.")
@click.option("--partitions", metavar="0,1,...")
@click.option("--time", default="latest", metavar="-1|latest|-2|earliest|-3|max-timestamp|MS")
@click.option("--exclude-internal-topics", is_flag=True)
@click.option("--command-config", metavar="FILE")
def kafka_get_offsets(**options: Any) -> None:
    """Print the offsets of partitions: their end, or at a time."""
    given = ScriptOptions(**options)
    target = target_of(given.bootstrap_server, file=given.command_config)
    if given.topic_partitions is not None and (given.topic is not None or given.partitions is not None):
        raise _wrong("--topic-partitions cannot be used with --topic or --partitions")
    time = _time(given.time)
    rules = given.topic_partitions
    wanted = _rules(rules) if rules is not None else _topic_and_partitions(given.topic, given.partitions)

    async def work(admin: Admin) -> None:
        topics = await admin.list_topics(internal=not given.exclude_internal_topics)
        leaders = {
            TopicPartition(each.name, part.partition): part.leader for each in topics for part in each.partitions
        }
        chosen = [each for each in leaders if wanted(each)]
        if not chosen:
            raise _wrong("Could not match any topic-partitions with the specified filters")
        for each in chosen:
            if leaders[each] < 0:
                click.echo(f"Skip getting offsets for topic-partition {each} due to error: it has no leader", err=True)
        found = await admin.list_offsets({each: time for each in chosen if leaders[each] >= 0})
        for each in sorted(found, key=str):
            if found[each].offset != UNKNOWN_OFFSET:
                click.echo(f"{each.topic}:{each.partition}:{found[each].offset}")

    administer(target, work)


def _time(text: str) -> int:
    if text in TIMES:
        return TIMES[text]
    try:
        return int(text)
    except ValueError:
        known = " / ".join(f"{number} or {name}" for name, number in TIMES.items())
        raise _wrong(
            f"Malformed time argument {text}. Please use {known}, or a specified long format timestamp"
        ) from None


def _matching(pattern: str) -> Callable[[str], bool]:
    try:
        return include_list(pattern)
    except InvalidRegex as invalid:
        raise _wrong(invalid.message) from None


def _topic_and_partitions(topic: str | None, partitions: str | None) -> Filter:
    matches = _matching(topic or ".*")
    try:
        numbers = {int(each) for each in partitions.split(",")} if partitions else set()
    except ValueError:
        raise _wrong(
            f"--partitions expects a comma separated list of numeric partition ids, but received: {partitions}"
        ) from None
    return lambda each: matches(each.topic) and (not numbers or each.partition in numbers)


def _rules(text: str) -> Filter:
    rules = [_rule(each) for each in text.split(",")]
    return lambda each: any(rule(each) for rule in rules)


def _rule(text: str) -> Filter:
    """`topic`, `topic:1`, `topic:0-3` (the upper end excluded), `topic:2-`, `topic:-3`; the topic may be left out."""
    found = RULE.fullmatch(text)
    if found is None:
        raise _wrong(f"org.apache.kafka.tools.TerseException: Invalid rule specification: {text}")
    matches = _matching(found[1] or ".*")
    if found[2]:
        number = int(found[2])
        return lambda each: matches(each.topic) and each.partition == number
    low, high = int(found[3] or 0), int(found[4]) if found[4] else None
    return lambda each: matches(each.topic) and low <= each.partition and (high is None or each.partition < high)
