"""`ottla produce`: write records, from lines of standard input or of files."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import IO, Any, Final, NamedTuple

import click

from ottla.blocking import Producer
from ottla.cli.completion import topic_names
from ottla.cli.failure import Misused, split_pair
from ottla.cli.formats import BadFormat, compiled
from ottla.cli.output import answer, json_option
from ottla.cli.target import (
    PATIENCE_MS,
    Target,
    administer,
    cluster_options,
    failure_of,
    misused,
    no_partition,
    undelivered,
    waits_shown,
)
from ottla.client.admin import Admin, TopicDescription
from ottla.client.consuming.consumer_records import ConsumerRecord
from ottla.client.errors import BadSetting, ClientError, UnknownTopic
from ottla.client.values import RecordMetadata

PARTITIONERS: Final = ("sticky", "round_robin", "shuffled_round_robin", "random", "hash", "priority")
READ_BYTES: Final = 64 * 1024

Headers = list[tuple[str, bytes | None]]


class InputRecord(NamedTuple):
    """A record to be sent."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = []  # noqa: RUF012 (never changed)
    partition: int | None = None
    timestamp_ms: int | None = None


@click.command("produce")
@click.argument("topic", shell_complete=topic_names)
@click.argument("files", nargs=-1, metavar="[FILE...]", type=click.File("rb"))
@click.option("-k", "--key", metavar="KEY", help="The key of every record.")
@click.option("-K", "--key-delimiter", metavar="TEXT", help="Separates key and value in a line.")
@click.option("-D", "--delimiter", default="\\n", show_default=True, metavar="TEXT", help="Separates records.")
@click.option("-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header; repeatable.")
@click.option("-p", "--partition", type=click.IntRange(min=0), metavar="N", help="The partition of every record.")
@click.option("-z", "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none")
@click.option("-Z", "--null", "empty_is_null", is_flag=True, help="Send an empty value as null (a tombstone).")
@click.option(
    "--partitioner",
    type=click.Choice(PARTITIONERS),
    default="sticky",
    show_default=True,
    help="Which partition a record without a key goes to.",
)
@click.option("--from-json", is_flag=True, help="Lines are what `ottla consume --json` prints.")
@json_option
@cluster_options
def command(
    topic: str,
    files: tuple[IO[bytes], ...],
    key: str | None,
    key_delimiter: str | None,
    delimiter: str,
    headers: tuple[str, ...],
    partition: int | None,
    compression: str,
    empty_is_null: bool,
    partitioner: str,
    from_json: bool,
    as_json: bool,
    target: Target,
) -> None:
    """Write records: each line of standard input, or of FILEs, is one.

    \b
    Example:
      echo 'two oranges' | ottla produce orders
      ottla produce orders -K : < keyed-lines
      ottla consume orders --json -e | ottla produce copy --from-json
    """
    common = [(name, value.encode()) for name, value in (split_pair(each, "-H") for each in headers)]
    end = _bytes(delimiter)
    between = _bytes(key_delimiter) if key_delimiter else None
    if partition is not None:
        _check_partition(topic, partition, target)

    def records() -> Iterator[InputRecord]:
        for line in _lines(files or (sys.stdin.buffer,), end):
            if from_json:
                yield _from_json(line)._replace(partition=partition)
                continue
            typed_key: bytes | None = key.encode() if key is not None else None
            value: bytes | None = line
            if between is not None and between in line:
                typed_key, value = line.split(between, 1)
            if empty_is_null and not value:
                value = None
            yield InputRecord(value, typed_key, [*common], partition)

    written = produce(topic, records(), target, partitioner=partitioner, compression_type=compression)
    value = {"topic": topic, "records": sum(written.values()), "partitions": dict(sorted(written.items()))}
    answer(as_json, value, "")


def _check_partition(name: str, number: int, target: Target) -> None:
    """Fail at once if the partition does not exist; a producer would wait until it is added."""

    async def described(admin: Admin) -> TopicDescription | None:
        try:
            return (await admin.describe_topics([name]))[name]
        except UnknownTopic:
            return None  # the first record may create it

    topic = administer(target._replace(settings={}), described)
    if topic is not None and number not in {each.partition for each in topic.partitions}:
        raise no_partition(topic, number)


def _bytes(text: str) -> bytes:
    try:
        return compiled(text)(ConsumerRecord("", 0, 0, 0, None, None, ()))
    except BadFormat as bad:
        raise Misused(f"delimiter: {bad}") from None


def _lines(files: Iterable[IO[bytes]], end: bytes) -> Iterator[bytes]:
    """The text between delimiters; typed lines are returned as soon as they are complete."""
    for file in files:
        if end == b"\n":
            for line in file:
                yield line.removesuffix(b"\n")
            continue
        rest = b""
        while chunk := file.read(READ_BYTES):
            *whole, rest = (rest + chunk).split(end)
            yield from whole
        if rest.rstrip(b"\n"):
            yield rest


def _from_json(line: bytes) -> InputRecord:
    try:
        fields: dict[str, Any] = json.loads(line)
        flat = fields.get("headers") or []
        headers = [(str(name), _encoded(value)) for name, value in zip(flat[::2], flat[1::2], strict=True)]
        return InputRecord(_encoded(fields["payload"]), _encoded(fields.get("key")), headers, None, fields.get("ts"))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Misused(
            f"not a record: {line[:80].decode(errors='replace')}",
            hint="--from-json takes what `ottla consume --json` prints.",
        ) from None


def _encoded(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value, ensure_ascii=False).encode()


class Deliveries:
    """Counts deliveries and errors; called in the producer's thread."""

    def __init__(self) -> None:
        self.written: Counter[int] = Counter()
        self.errors: list[ClientError] = []
        self._guard = threading.Lock()

    def __call__(self, future: Future[RecordMetadata]) -> None:
        error = future.exception()
        with self._guard:
            if error is None:
                self.written[future.result().partition] += 1
            elif isinstance(error, ClientError):
                self.errors.append(error)


def produce(
    topic: str,
    records: Iterable[InputRecord],
    target: Target,
    *,
    prompt: str = "",
    partitioner: str = "sticky",
    sync: bool = False,
    **settings: object,
) -> Counter[int]:
    """Send records, each after the one before is delivered if `sync`; stops at the first error. Returns how many went
    to each partition."""
    try:
        producer = Producer(
            target.bootstrap, config=target.config(**_patience(target), **settings), partitioner=partitioner
        )
    except BadSetting as bad:
        raise misused(bad) from None
    outcome = Deliveries()
    try:
        with waits_shown(), producer:
            for record in _prompted(records, prompt):
                sent = producer.send(
                    topic,
                    record.value,
                    key=record.key,
                    headers=record.headers,
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                sent.add_done_callback(outcome)
                if outcome.errors or (sync and sent.exception() is not None):
                    break
    except ClientError as error:
        raise failure_of([error]) from None
    if outcome.errors:
        kinds = {str(error): error for error in outcome.errors}
        raise undelivered([*kinds.values()][:3], target, topic)
    return outcome.written


def _patience(target: Target) -> dict[str, int]:
    """Timeouts of a command, unless the user sets them: shorter than a program's."""
    if {"delivery.timeout.ms", "request.timeout.ms"} & target.settings.keys():
        return {}
    return {"delivery_timeout_ms": 2 * PATIENCE_MS, "request_timeout_ms": PATIENCE_MS}


def _prompted(records: Iterable[InputRecord], prompt: str) -> Iterator[InputRecord]:
    """Print the prompt before each line, on a terminal."""
    asked = prompt if sys.stdin is not None and sys.stdin.isatty() else ""
    iterator = iter(records)
    while True:
        if asked:
            click.echo(asked, nl=False, err=True)
        record = next(iterator, None)
        if record is None:
            return
        yield record
