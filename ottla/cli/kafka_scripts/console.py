"""kafka-console-producer.sh and kafka-console-consumer.sh.

The console producer sends every line to the next partition, as the texts about Kafka tell it (Kafka's own tool has
filled batches since 2.4, which puts everything that is typed quickly into one partition). It takes the partitions in an
order that chance decides once per run, as they came in no particular order in the Kafka of the texts: so lines come out
of order, as on their screen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Final

import click

from ottla.cli.consume import Wanted, consume
from ottla.cli.failure import Misused
from ottla.cli.formats import Rendered, text
from ottla.cli.kafka_scripts.options import (
    Number,
    Script,
    ToolFailure,
    UsageFailure,
    missing_argument,
    pairs_of,
    target_of,
    uncaught,
)
from ottla.cli.produce import Sent, produce

SPACE: Final = "\t"


def _flag(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(name, "false").strip().lower() == "true"


def _unparsed(_: str, message: str) -> UsageFailure:
    return UsageFailure(message)


def _unreadable(message: str) -> ToolFailure:
    return uncaught("joptsimple.OptionArgumentConversionException", message)


def _check_choice(value: str, setting: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ToolFailure(
            f"org.apache.kafka.common.config.ConfigException: Invalid value {value} for configuration {setting}: "
            f"String must be one of: {', '.join(choices)}"
        )


@click.command(
    "kafka-console-producer.sh",
    cls=Script,
    about="This tool helps to read data from standard input and publish it to Kafka.",
    unparsed=_unparsed,
)
@click.option("--broker-list", help="As --bootstrap-server, by its old name.")
@click.option("--bootstrap-server")
@click.option("--topic")
@click.option(
    "--property",
    "--reader-property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="parse.key=true, key.separator=:, null.marker=...",
)
@click.option("--producer-property", "--command-property", "settings", multiple=True, metavar="NAME=VALUE")
@click.option("--producer.config", "--command-config", "file", metavar="FILE")
@click.option("--compression-codec", default="none", metavar="CODEC")
@click.option("--request-required-acks", "acks", default="all", show_default=True)
@click.option("--sync", is_flag=True, help="Accepted; every line is waited for at the end anyway.")
def console_producer(
    broker_list: str | None,
    bootstrap_server: str | None,
    topic: str | None,
    properties: tuple[str, ...],
    settings: tuple[str, ...],
    file: str | None,
    compression_codec: str,
    acks: str,
    sync: bool,
) -> None:
    """Each line of standard input becomes a record."""
    if topic is None:
        raise missing_argument("topic")
    if bootstrap_server is None and broker_list is None:
        raise UsageFailure("Error while validating the bootstrap address\n")
    target = target_of(bootstrap_server, broker_list, settings=settings, file=file)
    _check_choice(compression_codec, "compression.type", ("none", "gzip", "snappy", "lz4", "zstd"))
    _check_choice(acks, "acks", ("all", "-1", "0", "1"))
    reader = pairs_of(properties)
    separator = reader.get("key.separator", SPACE).encode()
    null = reader.get("null.marker", "").encode()
    keyed = _flag(reader, "parse.key")

    def records() -> Iterator[Sent]:
        for number, line in enumerate(sys.stdin.buffer, 1):
            value: bytes | None = line.rstrip(b"\r\n")
            key: bytes | None = None
            if keyed:
                assert value is not None
                if separator not in value:
                    raise Misused(f"line {number} has no key", hint=f"A line is KEY{separator.decode()}VALUE.")
                key, value = value.split(separator, 1)
            yield Sent(None if null and value == null else value, None if null and key == null else key)

    produce(
        topic,
        records(),
        target,
        prompt=">",
        partitioner="shuffled_round_robin",
        acks=acks,
        enable_idempotence=acks in ("all", "-1"),
        compression_type=compression_codec,
    )


@click.command(
    "kafka-console-consumer.sh",
    cls=Script,
    about="This tool helps to read data from Kafka topics and outputs it to standard output.",
    unparsed=_unparsed,
    unreadable=_unreadable,
)
@click.option("--bootstrap-server")
@click.option("--topic")
@click.option("--from-beginning", is_flag=True)
@click.option("--group", metavar="ID")
@click.option("--partition", type=Number())
@click.option("--offset", help="earliest, latest, or a number; with --partition.")
@click.option("--max-messages", type=Number())
@click.option("--timeout-ms", type=Number())
@click.option("--isolation-level", metavar="LEVEL")
@click.option(
    "--property",
    "--formatter-property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="print.key=true, print.partition=true, print.offset=true, print.timestamp=true, key.separator=:",
)
@click.option("--consumer-property", "--command-property", "settings", multiple=True, metavar="NAME=VALUE")
@click.option("--consumer.config", "--command-config", "file", metavar="FILE")
def console_consumer(
    bootstrap_server: str | None,
    topic: str | None,
    from_beginning: bool,
    group: str | None,
    partition: int | None,
    offset: str | None,
    max_messages: int | None,
    timeout_ms: int | None,
    isolation_level: str | None,
    properties: tuple[str, ...],
    settings: tuple[str, ...],
    file: str | None,
) -> None:
    """Print the records of a topic, one to a line, until Ctrl-C."""
    if bootstrap_server is None:
        raise missing_argument("bootstrap-server")
    if topic is None:
        raise UsageFailure("Exactly one of the following arguments is required: [topic], [include]")
    if offset is not None:
        _check_offset(offset, partition, from_beginning)
    if group is not None and partition is not None:
        raise UsageFailure("Options group and partition cannot be specified together.")
    target = target_of(bootstrap_server, settings=settings, file=file)
    if isolation_level is not None:
        _check_choice(isolation_level, "isolation.level", ("read_committed", "read_uncommitted"))
        target = target._replace(settings={"isolation.level": isolation_level, **target.settings})
    named = {each: None for each in (group, target.settings.get("group.id")) if each is not None}
    if len(named) > 1:
        raise UsageFailure(
            "The group ids provided in different places (directly using '--group', via '--consumer-property', or via "
            f"'--consumer.config') do not match. Detected group ids: {', '.join(map(repr, named))}"
        )
    group = next(iter(named), None)
    if group is not None and partition is not None:
        raise Misused("a group deals the partitions out itself", hint="Leave out group.id or --partition.")
    wanted = Wanted(
        topics=(topic,),
        group=group,
        partitions=() if partition is None else (partition,),
        offset=offset or ("beginning" if from_beginning else "end"),
        count=None if max_messages is None or max_messages < 0 else max_messages,
        until_end=False,
        idle_ms=timeout_ms,
        shown=shown(pairs_of(properties)),
    )
    printed = consume(wanted, target, sys.stdout.buffer)
    click.echo(f"Processed a total of {printed} messages", err=True)


def _check_offset(offset: str, partition: int | None, from_beginning: bool) -> None:
    if partition is None:
        raise UsageFailure("The partition is required when offset is specified.")
    if from_beginning:
        raise UsageFailure("Options from-beginning and offset cannot be specified together.")
    if offset.lower() not in ("earliest", "latest") and not offset.isdecimal():
        raise UsageFailure(
            f"The provided offset value '{offset}' is incorrect. Valid values are 'earliest', 'latest', or a "
            "non-negative long."
        )


def shown(properties: Mapping[str, str]) -> Rendered:
    """As the properties of Kafka's DefaultMessageFormatter say."""
    separator = properties.get("key.separator", SPACE).encode()
    end = properties.get("line.separator", "\n").encode()
    null = properties.get("null.literal", "null").encode()
    parts: list[Rendered] = []
    if _flag(properties, "print.timestamp"):
        parts.append(lambda record: f"CreateTime:{record.timestamp}".encode())
    if _flag(properties, "print.partition"):
        parts.append(lambda record: f"Partition:{record.partition}".encode())
    if _flag(properties, "print.offset"):
        parts.append(lambda record: f"Offset:{record.offset}".encode())
    if _flag(properties, "print.headers"):
        parts.append(
            lambda record: b",".join(f"{name}:".encode() + text(each) for name, each in record.headers) or b"NO_HEADERS"
        )
    if _flag(properties, "print.key"):
        parts.append(lambda record: null if record.key is None else text(record.key))
    if properties.get("print.value", "true").lower() != "false":
        parts.append(lambda record: null if record.value is None else text(record.value))
    return lambda record: separator.join([part(record) for part in parts]) + end
