"""kafka-console-consumer.sh: print the records of topics with a formatter."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

from ottla.cli.consume import ConsumeOptions, consume
from ottla.cli.formats import Rendered
from ottla.cli.kafka_scripts.formatters import DEFAULT, formatter
from ottla.cli.kafka_scripts.options import (
    Number,
    Script,
    ScriptOptions,
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
from ottla.cli.target import Target
from ottla.client.consuming.consumer_records import ConsumerRecord

RESET: Final = "auto.offset.reset"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
STARTS: Final = {EARLIEST: "beginning", LATEST: "end"}
GROUPS_MAX: Final = 100_000


def _unreadable(message: str) -> ToolFailure:
    return uncaught("joptsimple.OptionArgumentConversionException", message)


class Printed:
    """Formats and counts records. A record that cannot be formatted ends the command, or is skipped if `lenient`."""

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
@click.option("--formatter", default=DEFAULT, metavar="CLASS", help=f"How records are printed: {DEFAULT}.")
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
@click.option("--skip-message-on-error", is_flag=True)
@click.option("--enable-systest-events", is_flag=True)
@click.option("--command-property", multiple=True, metavar="NAME=VALUE", help="A setting of the consumer.")
@click.option("--consumer-property", multiple=True, metavar="NAME=VALUE")
@click.option("--command-config", metavar="FILE")
@click.option("--consumer.config", "consumer_config", metavar="FILE")
def console_consumer(**options: Any) -> None:
    """Print the records of topics, one to a line, until Ctrl-C."""
    given = ScriptOptions(**options)
    _check(given)
    settings = apart("consumer-property", given.consumer_property, "command-property", given.command_property)
    file = apart("consumer.config", given.consumer_config, "command-config", given.command_config)
    target = _target(given.bootstrap_server, file, settings, given.isolation_level)
    group = _group(given.group, target.settings, given.partition)
    beginning = _from_beginning(target.settings, given.from_beginning, given.partition)
    properties = apart("property", given.property, "formatter-property", given.formatter_property)
    deserializers = {"key.deserializer": given.key_deserializer, "value.deserializer": given.value_deserializer}
    file = given.formatter_config
    config = {} if file is None else properties_of(file, UsageFailure(file))
    config |= {each: value for each, value in deserializers.items() if value}
    shown = formatter(given.formatter, config | pairs_of(properties), target)
    printed = Printed(shown, given.skip_message_on_error)
    alone = group is None and given.partition is None
    if alone and (given.include is not None or target.settings.get(RESET, LATEST) not in STARTS):
        group, target = _temporary_group(target)
    wanted = ConsumeOptions(
        topics=() if given.topic is None else (given.topic,),
        group=group,
        partitions=() if given.partition is None else (given.partition,),
        offset=("beginning" if beginning else "end") if given.offset is None else _offset(given.offset),
        count=_count(given.max_messages, given.enable_systest_events),
        until_end=False,
        idle_ms=given.timeout_ms if given.timeout_ms is not None and given.timeout_ms >= 0 else None,
        shown=printed,
        pattern=_java(given.include),
        resets=True,
    )
    _consume(wanted, target, printed, given.enable_systest_events)


def _consume(wanted: ConsumeOptions, target: Target, printed: Printed, events: bool) -> None:
    try:
        if wanted.count is None or wanted.count > 0:
            consume(wanted, target, sys.stdout.buffer)
    except ToolFailure:
        sys.stdout.buffer.flush()
        _report(printed.count, events)
        raise
    _report(printed.count, events)


def _report(count: int, events: bool) -> None:
    click.echo(f"Processed a total of {count} messages", err=True)
    if events:
        click.echo("shutdown_complete")


def _check(given: ScriptOptions) -> None:
    if (given.topic is None) == (given.include is None):
        raise UsageFailure("Exactly one of the following arguments is required: [topic], [include]")
    if given.partition is not None:
        if given.topic is None:
            raise UsageFailure("The topic is required when partition is specified.")
        if given.from_beginning and given.offset is not None:
            raise UsageFailure("Options from-beginning and offset cannot be specified together.")
    elif given.offset is not None:
        raise UsageFailure("The partition is required when offset is specified.")
    if given.bootstrap_server is None:
        raise missing_argument("bootstrap-server")


def _offset(offset: str) -> str:
    if offset.lower() not in STARTS and not offset.isdecimal():
        raise UsageFailure(
            f"The provided offset value '{offset}' is incorrect. Valid values are 'earliest', 'latest', or a "
            "non-negative long."
        )
    return STARTS.get(offset.lower(), offset)


def _target(server: str | None, file: str | None, settings: tuple[str, ...], isolation_level: str | None) -> Target:
    config = {} if file is None else properties_of(file, uncaught("java.nio.file.NoSuchFileException", file))
    config |= pairs_of(settings)
    if isolation_level is not None:
        check_choice(isolation_level, "isolation.level", ("read_committed", "read_uncommitted"))
        config["isolation.level"] = isolation_level
    config.setdefault("client.id", "console-consumer")
    return target_of(server)._replace(settings=config)


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


def _temporary_group(target: Target) -> tuple[str, Target]:
    """A group of this run that commits nothing, as Kafka's tool uses one."""
    settings = {"enable.auto.commit": "false", **target.settings}
    return f"console-consumer-{random.randrange(GROUPS_MAX)}", target._replace(settings=settings)


def _count(text: str | None, events: bool) -> int | None:
    """None: no limit. Checked after the other options, as by Kafka's tool."""
    try:
        return None if text is None or int(text) == -1 else int(text)
    except ValueError:
        _report(0, events)
        message = cannot_parse(str(text), "max-messages")
        raise ToolFailure(f"joptsimple.OptionArgumentConversionException: {message}") from None


def _java(pattern: str | None) -> str | None:
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as bad:
            raise ToolFailure(f"java.util.regex.PatternSyntaxException: {bad}: {pattern}") from None
    return pattern
