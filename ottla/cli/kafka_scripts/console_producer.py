"""kafka-console-producer.sh: lines of standard input become records.

It sends every line to the next partition, as the texts about Kafka tell it (Kafka's own tool has filled batches since
2.4, which puts everything that is typed quickly into one partition). It takes the partitions in an order that chance
decides once per run, as they came in no particular order in the Kafka of the texts: so lines come out of order, as on
their screen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import click

from ottla.cli.kafka_scripts.line_reader import OLD_READER, READER, LineReader
from ottla.cli.kafka_scripts.options import (
    Number,
    Script,
    ToolFailure,
    UsageFailure,
    apart,
    check_choice,
    missing_argument,
    pairs_of,
    properties_of,
    target_of,
)
from ottla.cli.produce import produce

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS: Final = ("all", "-1", "0", "1")
SEND_BUFFER: Final = "send.buffer.bytes"
TUNING: Final = {
    "timeout": ("linger.ms", "How long a record waits for others of its batch"),
    "request-timeout-ms": ("request.timeout.ms", "How long a request waits for its answer"),
    "message-send-max-retries": ("retries", "How often a record is sent again"),
    "retry-backoff-ms": ("retry.backoff.ms", "The pause before it is sent again"),
    "socket-buffer-size": (SEND_BUFFER, "Accepted, without effect: the system sizes the buffers of sockets"),
    "max-memory-bytes": ("buffer.memory", "The memory for records that are not sent yet"),
    "batch-size": ("batch.size", "The bytes of a batch"),
    "max-partition-memory-bytes": ("batch.size", "As --batch-size, which it goes before, by its old name"),
    "metadata-expiry-ms": ("metadata.max.age.ms", "How old the client's idea of the cluster may become"),
    "max-block-ms": ("max.block.ms", "How long the producer waits for memory, or for the topic"),
}
"""Options that set a setting of the producer, in the order in which Kafka's tool takes them."""


def _tuned(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, (setting, text) in TUNING.items():
        text = text if setting == SEND_BUFFER else f"{text}: {setting}."
        command = click.option(f"--{name}", type=Number(), help=text)(command)
    return command


@click.command(
    "kafka-console-producer.sh",
    cls=Script,
    about="This tool helps to read data from standard input and publish it to Kafka.",
    unparsed=lambda _, message: UsageFailure(message),
)
@click.option("--broker-list", help="As --bootstrap-server, by its old name.")
@click.option("--bootstrap-server")
@click.option("--topic")
@click.option("--line-reader", default=READER, metavar="CLASS", help=f"What reads the lines: {READER}.")
@click.option(
    "--reader-property",
    multiple=True,
    metavar="NAME=VALUE",
    help="parse.key=true, key.separator=:, parse.headers=true, headers.delimiter=..., headers.separator=..., "
    "headers.key.separator=..., null.marker=..., ignore.error=true",
)
@click.option("--property", multiple=True, metavar="NAME=VALUE", help="As --reader-property, by its old name.")
@click.option("--reader-config", metavar="FILE")
@click.option("--command-property", multiple=True, metavar="NAME=VALUE", help="A setting of the producer.")
@click.option("--producer-property", multiple=True, metavar="NAME=VALUE")
@click.option("--command-config", metavar="FILE")
@click.option("--producer.config", "producer_config", metavar="FILE")
@click.option("--compression-codec", is_flag=False, flag_value="gzip", metavar="CODEC")
@click.option("--request-required-acks", "acks")
@click.option("--sync", is_flag=True, help="Wait for every record before the next line is read.")
@_tuned
def console_producer(
    broker_list: str | None,
    bootstrap_server: str | None,
    topic: str | None,
    line_reader: str,
    reader_property: tuple[str, ...],
    property: tuple[str, ...],
    reader_config: str | None,
    command_property: tuple[str, ...],
    producer_property: tuple[str, ...],
    command_config: str | None,
    producer_config: str | None,
    compression_codec: str | None,
    acks: str | None,
    sync: bool,
    **tuning: int | None,
) -> None:
    """Each line of standard input becomes a record."""
    if topic is None:
        raise missing_argument("topic")
    if bootstrap_server is None and broker_list is None:
        raise UsageFailure("Error while validating the bootstrap address\n")
    file = apart("command-config", command_config, "producer.config", producer_config)
    settings = apart("command-property", command_property, "producer-property", producer_property)
    properties = apart("reader-property", reader_property, "property", property)
    if line_reader not in (READER, OLD_READER):
        raise ToolFailure(f"java.lang.ClassNotFoundException: {line_reader}")
    reader = LineReader(_loaded(reader_config) | pairs_of(properties))
    given = _loaded(file) | pairs_of(settings) | _explicit(compression_codec, acks, tuning)
    check_choice(given.get("compression.type", "none"), "compression.type", CODECS)
    check_choice(given.get("acks", "all"), "acks", ACKS)
    given.setdefault("client.id", "console-producer")
    target = target_of(bootstrap_server, broker_list)._replace(settings=given)
    produce(
        topic,
        reader.records(sys.stdin.buffer),
        target,
        prompt=">",
        partitioner="shuffled_round_robin",
        sync=sync,
        enable_idempotence=given.get("acks", "all") in ("all", "-1") and given.get("retries") != "0",
    )


def _loaded(file: str | None) -> dict[str, str]:
    return {} if file is None else properties_of(file, ToolFailure(f"java.nio.file.NoSuchFileException: {file}"))


def _explicit(codec: str | None, acks: str | None, tuning: dict[str, int | None]) -> dict[str, str]:
    """What options say goes before what --command-property says."""
    told = {"compression.type": codec or "gzip"} if codec is not None else {}
    if acks is not None:
        told["acks"] = acks
    for option, (setting, _) in TUNING.items():
        value = tuning[option.replace("-", "_")]
        if value is None:
            continue
        least = -1 if setting == SEND_BUFFER else 0
        if value < least:
            raise ToolFailure(
                f"org.apache.kafka.common.config.ConfigException: Invalid value {value} for configuration {setting}: "
                f"Value must be at least {least}"
            )
        if setting != SEND_BUFFER:
            told[setting] = str(value)
    return told
