"""kafka-console-consumer.sh: the records of topics, printed as a formatter has them."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

from ottla.cli.cluster import Target
from ottla.cli.consume import Wanted, consume
from ottla.cli.formats import Rendered
from ottla.cli.kafka_scripts.formatters import DEFAULT, formatter
from ottla.cli.kafka_scripts.options import (
    Number,
    Script,
    ToolFailure,
    UsageFailure,
    apart,
    cannot_parse,
    check_choice,
    missing_argument,
    pairs_of,
    properties_of,
    target_of,
    uncaught,
)
from ottla.client.consuming.consumer_records import ConsumerRecord

RESET: Final = "auto.offset.reset"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
PLACES: Final = {EARLIEST: "beginning", LATEST: "end"}
GROUPS_MAX: Final = 100_000


def _unreadable(message: str) -> ToolFailure:
    return uncaught("joptsimple.OptionArgumentConversionException", message)


class Printed:
    """Records as the formatter prints them, counted. One that it cannot print ends the command, or is passed over."""

    def __init__(self, shown: Rendered, lenient: bool) -> None:
        self._shown = shown
        self._lenient = lenient
        self.count = 0

    def __call__(self, record: ConsumerRecord[Any, Any]) -> bytes:
        self.count += 1
        try:
            return self._shown(record)
        except ToolFailure as failed:
            if not self._lenient:
                raise
            click.echo(failed.message, err=True)
            return b""


@click.command(
    "kafka-console-consumer.sh",
    cls=Script,
    about="This tool helps to read data from Kafka topics and outputs it to standard output.",
    unparsed=lambda _, message: UsageFailure(message),
    unreadable=_unreadable,
)
@click.option("--bootstrap-server")
@click.option("--topic")
@click.option("--include", metavar="REGEX", help="All topics whose whole name this regular expression matches.")
@click.option("--from-beginning", is_flag=True)
@click.option("--group", metavar="ID")
@click.option("--partition", type=Number())
@click.option("--offset", help="earliest, latest, or a number; with --partition.")
@click.option("--max-messages", metavar="Integer")
@click.option("--timeout-ms", type=Number())
@click.option("--isolation-level", metavar="LEVEL")
@click.option("--formatter", "name", default=DEFAULT, metavar="CLASS", help=f"How records are printed: {DEFAULT}.")
@click.option(
    "--formatter-property",
    multiple=True,
    metavar="NAME=VALUE",
    help="print.key=true, print.value=false, print.partition=true, print.offset=true, print.timestamp=true, "
    "print.headers=true, key.separator=:, line.separator=..., headers.separator=..., null.literal=..., "
    "key.deserializer=..., value.deserializer=..., headers.deserializer=...",
)
@click.option("--property", multiple=True, metavar="NAME=VALUE", help="As --formatter-property, by its old name.")
@click.option("--formatter-config", metavar="FILE")
@click.option("--key-deserializer", metavar="CLASS", help="One of org.apache.kafka.common.serialization.")
@click.option("--value-deserializer", metavar="CLASS", help="One of org.apache.kafka.common.serialization.")
@click.option("--skip-message-on-error", "lenient", is_flag=True)
@click.option("--enable-systest-events", "told", is_flag=True)
@click.option("--command-property", multiple=True, metavar="NAME=VALUE", help="A setting of the consumer.")
@click.option("--consumer-property", multiple=True, metavar="NAME=VALUE")
@click.option("--command-config", metavar="FILE")
@click.option("--consumer.config", "consumer_config", metavar="FILE")
def console_consumer(
    bootstrap_server: str | None,
    topic: str | None,
    include: str | None,
    from_beginning: bool,
    group: str | None,
    partition: int | None,
    offset: str | None,
    max_messages: str | None,
    timeout_ms: int | None,
    isolation_level: str | None,
    name: str,
    formatter_property: tuple[str, ...],
    property: tuple[str, ...],
    formatter_config: str | None,
    key_deserializer: str | None,
    value_deserializer: str | None,
    lenient: bool,
    told: bool,
    command_property: tuple[str, ...],
    consumer_property: tuple[str, ...],
    command_config: str | None,
    consumer_config: str | None,
) -> None:
    """Print the records of topics, one to a line, until Ctrl-C."""
    _check(bootstrap_server, topic, include, partition, offset, from_beginning)
    settings = apart("consumer-property", consumer_property, "command-property", command_property)
    file = apart("consumer.config", consumer_config, "command-config", command_config)
    target = _target(bootstrap_server, file, settings, isolation_level)
    group = _group(group, target.settings, partition)
    beginning = _from_beginning(target.settings, from_beginning, partition)
    place = ("beginning" if beginning else "end") if offset is None else _offset(offset)
    properties = apart("property", property, "formatter-property", formatter_property)
    deserializers = {"key.deserializer": key_deserializer, "value.deserializer": value_deserializer}
    config = {} if formatter_config is None else properties_of(formatter_config, UsageFailure(formatter_config))
    config |= {each: value for each, value in deserializers.items() if value}
    printed = Printed(formatter(name, config | pairs_of(properties), target), lenient)
    alone = group is None and partition is None
    if alone and (include is not None or target.settings.get(RESET, LATEST) not in PLACES):
        group, target = _passing(target)
    wanted = Wanted(
        topics=() if topic is None else (topic,),
        group=group,
        partitions=() if partition is None else (partition,),
        offset=place,
        count=_count(max_messages, told),
        until_end=False,
        idle_ms=timeout_ms if timeout_ms is not None and timeout_ms >= 0 else None,
        shown=printed,
        pattern=_java(include),
        resets=True,
    )
    _consume(wanted, target, printed, told)


def _consume(wanted: Wanted, target: Target, printed: Printed, told: bool) -> None:
    try:
        if wanted.count is None or wanted.count > 0:
            consume(wanted, target, sys.stdout.buffer)
    except ToolFailure:
        sys.stdout.buffer.flush()
        _report(printed.count, told)
        raise
    _report(printed.count, told)


def _report(count: int, told: bool) -> None:
    click.echo(f"Processed a total of {count} messages", err=True)
    if told:
        click.echo("shutdown_complete")


def _check(
    server: str | None,
    topic: str | None,
    include: str | None,
    partition: int | None,
    offset: str | None,
    from_beginning: bool,
) -> None:
    if (topic is None) == (include is None):
        raise UsageFailure("Exactly one of the following arguments is required: [topic], [include]")
    if partition is not None:
        if topic is None:
            raise UsageFailure("The topic is required when partition is specified.")
        if from_beginning and offset is not None:
            raise UsageFailure("Options from-beginning and offset cannot be specified together.")
    elif offset is not None:
        raise UsageFailure("The partition is required when offset is specified.")
    if server is None:
        raise missing_argument("bootstrap-server")


def _offset(offset: str) -> str:
    if offset.lower() not in PLACES and not offset.isdecimal():
        raise UsageFailure(
            f"The provided offset value '{offset}' is incorrect. Valid values are 'earliest', 'latest', or a "
            "non-negative long."
        )
    return PLACES.get(offset.lower(), offset)


def _target(server: str | None, file: str | None, settings: tuple[str, ...], isolation_level: str | None) -> Target:
    given = {} if file is None else properties_of(file, uncaught("java.nio.file.NoSuchFileException", file))
    given |= pairs_of(settings)
    if isolation_level is not None:
        check_choice(isolation_level, "isolation.level", ("read_committed", "read_uncommitted"))
        given["isolation.level"] = isolation_level
    given.setdefault("client.id", "console-consumer")
    return target_of(server)._replace(settings=given)


def _group(group: str | None, settings: Mapping[str, str], partition: int | None) -> str | None:
    named = {each: None for each in (group, settings.get("group.id")) if each is not None}
    if len(named) > 1:
        raise UsageFailure(
            "The group ids provided in different places (directly using '--group', via '--consumer-property', or via "
            f"'--consumer.config') do not match. Detected group ids: {', '.join(map(repr, named))}"
        )
    if named and partition is not None:
        raise UsageFailure("Options group and partition cannot be specified together.")
    return next(iter(named), None)


def _from_beginning(settings: Mapping[str, str], from_beginning: bool, partition: int | None) -> bool:
    reset = settings.get(RESET)
    if from_beginning and reset not in (None, EARLIEST):
        raise ToolFailure(
            f"Can't simultaneously specify --from-beginning and '{RESET}={reset}', please remove one option"
        )
    return from_beginning or (reset == EARLIEST and partition is None)


def _passing(target: Target) -> tuple[str, Target]:
    """A group of this run only, which commits nothing, as Kafka's tool has one."""
    settings = {"enable.auto.commit": "false", **target.settings}
    return f"console-consumer-{random.randrange(GROUPS_MAX)}", target._replace(settings=settings)


def _count(text: str | None, told: bool) -> int | None:
    """None if there is no end. What is no number is found out late, as by Kafka's tool."""
    try:
        return None if text is None or int(text) == -1 else int(text)
    except ValueError:
        _report(0, told)
        message = cannot_parse(str(text), "max-messages")
        raise ToolFailure(f"joptsimple.OptionArgumentConversionException: {message}") from None


def _java(pattern: str | None) -> str | None:
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as bad:
            raise ToolFailure(f"java.util.regex.PatternSyntaxException: {bad}: {pattern}") from None
    return pattern
