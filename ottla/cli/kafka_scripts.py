"""The commands of Apache Kafka's `bin` directory that the texts about it use, with its options and its output.

They stand in `bin/` of the repository, and are not installed: a machine may have Kafka's own. Whoever types into the
console producer sees every line go to the next partition, as the texts tell it (Kafka's own tool has filled batches
since 2.4, which puts everything that is typed quickly into one partition).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Final

import click

from ottla.cli import topics as ottla_topics
from ottla.cli.cluster import Target
from ottla.cli.consume import Wanted, consume
from ottla.cli.failure import Guarded, Misused, split_pair
from ottla.cli.formats import Rendered, text
from ottla.cli.produce import Sent, produce
from ottla.client.addresses import parse_bootstrap
from ottla.config.properties import parse_properties

SPACE: Final = "\t"


class Scripts(click.Group):
    command_class = Guarded  # each runs by itself, see `main`


@click.group(cls=Scripts)
def cli() -> None:
    """Kafka's console commands, on Ottla's client."""


def _target(*servers: str | None, settings: tuple[str, ...], file: str | None) -> Target:
    """Where to, by whichever name the option had."""
    bootstrap = next((each for each in servers if each), None)
    if bootstrap is None:
        raise Misused("no broker was named", hint="Say --bootstrap-server localhost:9092.")
    try:
        parse_bootstrap(bootstrap)
    except ValueError as problem:
        raise Misused(str(problem), hint="For example --bootstrap-server localhost:9092.") from None
    given: dict[str, str] = {}
    if file is not None:
        try:
            with open(file, encoding="utf-8") as lines:
                given = dict(parse_properties(lines.read()))
        except OSError as failure:
            raise Misused(f"{file}: {failure.strerror}") from None
    return Target(bootstrap, given | dict(split_pair(each, "--property") for each in settings))


def _flag(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(name, "false").strip().lower() == "true"


@cli.command("kafka-console-producer.sh")
@click.option("--broker-list", help="As --bootstrap-server, by its old name.")
@click.option("--bootstrap-server")
@click.option("--topic", required=True)
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
@click.option("--compression-codec", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none")
@click.option("--request-required-acks", "acks", default="all", show_default=True)
@click.option("--sync", is_flag=True, help="Accepted; every line is waited for at the end anyway.")
def console_producer(
    broker_list: str | None,
    bootstrap_server: str | None,
    topic: str,
    properties: tuple[str, ...],
    settings: tuple[str, ...],
    file: str | None,
    compression_codec: str,
    acks: str,
    sync: bool,
) -> None:
    """Each line of standard input becomes a record."""
    target = _target(bootstrap_server, broker_list, settings=settings, file=file)
    reader = dict(split_pair(each, "--property") for each in properties)
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
        partitioner="round_robin",
        acks=acks,
        enable_idempotence=acks in ("all", "-1"),
        compression_type=compression_codec,
    )


@cli.command("kafka-console-consumer.sh")
@click.option("--bootstrap-server")
@click.option("--topic", required=True)
@click.option("--from-beginning", is_flag=True)
@click.option("--group", metavar="ID")
@click.option("--partition", type=click.IntRange(min=0))
@click.option("--offset", help="earliest, latest, or a number; with --partition.")
@click.option("--max-messages", type=click.IntRange(min=1))
@click.option("--timeout-ms", type=click.IntRange(min=1))
@click.option("--isolation-level", type=click.Choice(["read_uncommitted", "read_committed"]))
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
    topic: str,
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
    if offset is not None and partition is None:
        raise Misused("--offset is about one partition", hint="Say --partition too.")
    target = _target(bootstrap_server, settings=settings, file=file)
    if isolation_level is not None:
        target = target._replace(settings={"isolation.level": isolation_level, **target.settings})
    if group is None and "group.id" in target.settings:
        group = target.settings["group.id"]
    if group is not None and partition is not None:
        raise Misused("a group deals the partitions out itself", hint="Leave out --group or --partition.")
    wanted = Wanted(
        topics=(topic,),
        group=group,
        partitions=() if partition is None else (partition,),
        offset=offset or ("beginning" if from_beginning else "end"),
        count=max_messages,
        until_end=False,
        idle_ms=timeout_ms,
        shown=shown(dict(split_pair(each, "--property") for each in properties)),
    )
    printed = consume(wanted, target, sys.stdout.buffer)
    click.echo(f"Processed a total of {printed} messages", err=True)


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


ACTIONS: Final = ("create", "list", "describe", "alter", "delete")


@cli.command("kafka-topics.sh")
@click.option("--bootstrap-server")
@click.option("--zookeeper", help="Not any more: brokers are asked.")
@click.option("--create", "action", flag_value="create")
@click.option("--list", "action", flag_value="list")
@click.option("--describe", "action", flag_value="describe")
@click.option("--alter", "action", flag_value="alter")
@click.option("--delete", "action", flag_value="delete")
@click.option("--topic", "topics", multiple=True)
@click.option("--partitions", type=click.IntRange(min=1))
@click.option("--replication-factor", type=click.IntRange(min=1))
@click.option("--config", "configs", multiple=True, metavar="NAME=VALUE")
@click.option("--if-not-exists", is_flag=True)
@click.option("--if-exists", is_flag=True)
@click.option("--exclude-internal", is_flag=True)
@click.option("--command-config", "file", metavar="FILE")
@click.pass_context
def kafka_topics(
    ctx: click.Context,
    bootstrap_server: str | None,
    zookeeper: str | None,
    action: str | None,
    topics: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    if_exists: bool,
    exclude_internal: bool,
    file: str | None,
) -> None:
    """Create, list, describe, alter and delete topics."""
    if zookeeper is not None and bootstrap_server is None:
        raise Misused("topics are made by brokers", hint="Say --bootstrap-server localhost:9092, not --zookeeper.")
    if action is None:
        raise Misused("nothing to do", hint=f"Say one of {', '.join(f'--{each}' for each in ACTIONS)}.")
    if not topics and action in ("create", "alter", "delete"):
        raise Misused(f"--{action} needs --topic NAME")
    target = _target(bootstrap_server, settings=(), file=file)
    arguments = [
        "-b",
        target.bootstrap,
        *(part for name, value in target.settings.items() for part in ("-X", f"{name}={value}")),
    ]
    if action == "list":
        arguments += [] if exclude_internal else ["--internal"]
    else:
        arguments += [name for each in topics for name in each.split(",")]
    if action in ("create", "alter"):
        arguments += [part for each in configs for part in ("--config", each)]
        arguments += [] if partitions is None else ["--partitions", str(partitions)]
    if action == "create":
        arguments += [] if replication_factor is None else ["--replication-factor", str(replication_factor)]
        arguments += ["--if-not-exists"] if if_not_exists else []
    if action == "delete":
        arguments += ["--if-exists"] if if_exists else []
    verb = ottla_topics.command.get_command(ctx, action)
    assert verb is not None
    with verb.make_context(action, arguments, parent=ctx) as verb_context:
        verb.invoke(verb_context)


def main() -> None:
    """`python -m ottla.cli.kafka_scripts NAME ...`: what each script in `bin/` runs."""
    name, arguments = (sys.argv[1], sys.argv[2:]) if sys.argv[1:] and sys.argv[1] in cli.commands else ("", [])
    if name:
        cli.commands[name].main(arguments, prog_name=name)
    cli(prog_name="ottla.cli.kafka_scripts")


if __name__ == "__main__":
    main()
