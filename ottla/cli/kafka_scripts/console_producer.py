"""kafka-console-producer.sh: lines of standard input become records.

It sends each line to the next partition, as the course texts describe it (since 2.4 Kafka's own tool fills batches, so
that lines typed quickly go to one partition). The order of the partitions is random in each run: a consumer sees the
lines out of order, as in the texts.
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
    ScriptOptions,
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
@click.option("--request-required-acks")
@click.option("--sync", is_flag=True, help="Wait for every record before the next line is read.")
@_tuned
def console_producer(**options: Any) -> None:
    """Each line of standard input becomes a record."""
    given = ScriptOptions(**options)
    if given.topic is None:
        raise missing_argument("topic")
    if given.bootstrap_server is None and given.broker_list is None:
        raise UsageFailure("Error while validating the bootstrap address\n")
    file = apart("command-config", given.command_config, "producer.config", given.producer_config)
    settings = apart("command-property", given.command_property, "producer-property", given.producer_property)
    properties = apart("reader-property", given.reader_property, "property", given.property)
    if given.line_reader not in (READER, OLD_READER):
        raise ToolFailure(f"java.lang.ClassNotFoundException: {given.line_reader}")
    reader = LineReader(_loaded(given.reader_config) | pairs_of(properties))
    config = _loaded(file) | pairs_of(settings) | _explicit(given)
    check_choice(config.get("compression.type", "none"), "compression.type", CODECS)
    check_choice(config.get("acks", "all"), "acks", ACKS)
    config.setdefault("client.id", "console-producer")
    produce(
        given.topic,
        reader.records(sys.stdin.buffer),
        target_of(given.bootstrap_server, given.broker_list)._replace(settings=config),
        prompt=">",
        partitioner="shuffled_round_robin",
        sync=given.sync,
        enable_idempotence=config.get("acks", "all") in ("all", "-1") and config.get("retries") != "0",
    )


def _loaded(file: str | None) -> dict[str, str]:
    return {} if file is None else properties_of(file, ToolFailure(f"java.nio.file.NoSuchFileException: {file}"))


def _explicit(given: ScriptOptions) -> dict[str, str]:
    """Settings from options of their own, which go before those of --command-property."""
    codec, acks = given.compression_codec, given.request_required_acks
    config = {"compression.type": codec or "gzip"} if codec is not None else {}
    if acks is not None:
        config["acks"] = acks
    for option, (setting, _) in TUNING.items():
        value = getattr(given, option.replace("-", "_"))
        if value is None:
            continue
        least = -1 if setting == SEND_BUFFER else 0
        if value < least:
            raise ToolFailure(
                f"org.apache.kafka.common.config.ConfigException: Invalid value {value} for configuration {setting}: "
                f"Value must be at least {least}"
            )
        if setting != SEND_BUFFER:
            config[setting] = str(value)
    return config
