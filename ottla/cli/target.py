"""Target cluster of a command: the options -b and -X, admin sessions, and failures from the errors of clients."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

import click

from ottla.cli.failure import Failure, Misused, TryAgain, split_pair
from ottla.cli.output import answer
from ottla.client.admin import Admin, Partition, ResourceKind, TopicDescription, parse_bootstrap
from ottla.client.errors import BadSetting, ClientError, NoAnswer, TimedOut, Unreachable
from ottla.client.values import TopicPartition
from ottla.errors import ErrorCode

T = TypeVar("T")

DEFAULT_BOOTSTRAP: Final = "localhost:9092"
PARTITIONS_SHOWN_MAX: Final = 5
MIN_IN_SYNC: Final = "min.insync.replicas"
PATIENCE_MS: Final = 15_000
"""How long a command waits for an answer: less than a program would, because a person waits at the terminal."""

HINTS: Final = {
    ErrorCode.leader_not_available: "`ottla topics describe` shows which brokers have its replicas: start one of them.",
    ErrorCode.not_enough_replicas: "Fewer replicas are in sync than min.insync.replicas asks for: "
    "`ottla topics describe --under-replicated` shows where brokers are missing.",
    ErrorCode.non_empty_group: "Stop its consumers first; `ottla groups describe` shows them.",
    ErrorCode.group_id_not_found: "`ottla groups list` shows the groups there are.",
    ErrorCode.group_subscribed_to_topic: "Its members still read that topic: stop them first.",
    ErrorCode.unknown_member_id: "The group has members: stop its consumers first.",
    ErrorCode.invalid_replication_factor: "There must be as many brokers as replicas.",
    ErrorCode.transactional_id_not_found: "`ottla transactions list` shows the transactional ids there are.",
    ErrorCode.message_too_large: "Raise max.message.bytes of the topic: `ottla configs set topic NAME "
    "max.message.bytes=...`, and -X max.request.size=... here.",
}
"""What to do about errors that brokers return."""


class Target(NamedTuple):
    """The cluster that a command works on, and the client settings to use."""

    bootstrap: str
    settings: Mapping[str, str]

    def config(self, **defaults: object) -> dict[str, Any]:
        """For `config=` of a client; settings of the user override the command's defaults. A command tries every
        bootstrap address once, so that a wrong one fails at once."""
        own = {name.replace("_", "."): value for name, value in defaults.items()}
        return {"default.api.timeout.ms": PATIENCE_MS, "bootstrap.timeout.ms": 0} | own | dict(self.settings)


def _checked_bootstrap(_: click.Context, __: click.Parameter, value: str) -> str:
    try:
        parse_bootstrap(value)
    except ValueError as problem:
        raise click.BadParameter(f"{problem}; for example {DEFAULT_BOOTSTRAP}") from None
    return value


def _checked_settings(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    return dict(split_pair(each, "-X") for each in value)


bootstrap_option = click.option(
    "-b",
    "--bootstrap-server",
    "bootstrap",
    metavar="HOST:PORT,...",
    envvar="OTTLA_BOOTSTRAP_SERVERS",
    default=DEFAULT_BOOTSTRAP,
    show_default=True,
    callback=_checked_bootstrap,
    help="Brokers to start from.",
)
settings_option = click.option(
    "-X",
    "client_settings",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_checked_settings,
    help="A setting of the client, by Kafka's name; repeatable.",
)


def cluster_options(command: Callable[..., T]) -> Callable[..., T]:
    """Adds -b and -X; the command receives both as `target`."""

    @bootstrap_option
    @settings_option
    @functools.wraps(command)
    def with_target(*args: Any, bootstrap: str, client_settings: Mapping[str, str], **others: Any) -> T:
        return command(*args, target=Target(bootstrap, client_settings), **others)

    return with_target


class _Waits(logging.Handler):
    """Prints on standard error what clients log while they wait."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"ottla: {record.getMessage()}", err=True)


@contextmanager
def waits_shown() -> Iterator[None]:
    """Print why the command's clients wait ("still trying")."""
    logger, handler = logging.getLogger("ottla.client"), _Waits(logging.WARNING)
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run it; an error of a client ends the command."""
    try:
        with waits_shown():
            return asyncio.run(work)
    except ClientError as error:
        raise failure_of([error]) from None


def administer(target: Target | str, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Run `work` with an admin client; an error ends the command."""
    if isinstance(target, str):
        target = Target(target, {})
    try:
        admin = Admin(target.bootstrap, config=target.config())
    except BadSetting as bad:
        raise misused(bad) from None

    async def session() -> T:
        async with admin:
            return await work(admin)

    return run(session())


def no_partition(topic: TopicDescription, number: int) -> Failure:
    return Failure(f"topic {topic.name} has no partition {number}; it has {len(topic.partitions)}")


def partitions_of(topics: Iterable[TopicDescription]) -> dict[TopicPartition, Partition]:
    return {TopicPartition(topic.name, each.partition): each for topic in topics for each in topic.partitions}


def without_leader(topics: Iterable[TopicDescription]) -> list[TopicPartition]:
    return [tp for tp, each in partitions_of(topics).items() if each.leader < 0]


def no_leader(partitions: Sequence[TopicPartition]) -> TryAgain:
    """Offline partitions: they serve no reads and no writes until a broker with a replica is back."""
    shown = ", ".join(map(str, partitions[:PARTITIONS_SHOWN_MAX]))
    shown += ", …" if len(partitions) > PARTITIONS_SHOWN_MAX else ""
    verb = "has" if len(partitions) == 1 else "have"
    return TryAgain(f"{shown} {verb} no leader now", hint=HINTS[ErrorCode.leader_not_available])


def too_few_in_sync(topic: TopicDescription, needed: int) -> TryAgain | None:
    """acks=all is refused while fewer replicas are in sync than `min.insync.replicas` asks for."""
    short = [each for each in topic.partitions if len(each.in_sync) < needed]
    if not short:
        return None
    first = short[0]
    missing = sorted(set(first.replicas) - set(first.in_sync))
    others = f" (and {len(short) - 1} partitions more)" if len(short) > 1 else ""
    return TryAgain(
        f"{topic.name}-{first.partition}{others} has {len(first.in_sync)} of {len(first.replicas)} replicas in sync, "
        f"fewer than min.insync.replicas={needed}: writes with acks=all are refused",
        hint=f"Start {_brokers(missing)} caught up; "
        "`ottla topics describe --under-replicated` shows where brokers are missing.",
    )


def _brokers(missing: Sequence[int]) -> str:
    if len(missing) == 1:
        return f"broker {missing[0]} again, or wait until it has"
    return f"brokers {', '.join(map(str, missing[:-1]))} and {missing[-1]} again, or wait until they have"


def undelivered(errors: Sequence[ClientError], target: Target, topic: str) -> Failure:
    """Why records were not delivered; for a timeout, the state of the topic is the likely cause."""
    if not all(isinstance(error, TimedOut) for error in errors):
        return failure_of(errors)

    async def look(admin: Admin) -> tuple[TopicDescription, int]:
        described = (await admin.describe_topics([topic]))[topic]
        configs = await admin.describe_configs(ResourceKind.TOPIC, topic)
        return described, next(int(each.value or 1) for each in configs if each.name == MIN_IN_SYNC)

    described, needed = administer(target._replace(settings={}), look)
    if partitions := without_leader([described]):
        return no_leader(partitions)
    return too_few_in_sync(described, needed) or failure_of(errors)


def misused(bad: BadSetting) -> Misused:
    return Misused(f"-X: {bad}")


def failure_of(errors: Sequence[ClientError]) -> Failure:
    """One failure for one or several errors; TryAgain only if all of them are retriable."""
    kind = TryAgain if all(error.retriable for error in errors) else Failure
    message = "\n  ".join(str(error) for error in errors)
    hints = dict.fromkeys(hint for error in errors if (hint := _hint(error)))
    return kind(message, hint="\n  ".join(hints) or None)


def _hint(error: ClientError) -> str | None:
    hint = error.hint or HINTS.get(error.code)
    if type(error) in (Unreachable, NoAnswer):
        return f"{hint} Another address: -b HOST:PORT, or OTTLA_BOOTSTRAP_SERVERS."
    return hint


async def errors_of(work: Awaitable[None]) -> Mapping[object, ClientError]:
    """What failed, of a call about several topics or groups."""
    try:
        await work
    except ClientError as error:
        if not error.errors:
            raise
        return error.errors
    return {}


def report_each(
    done: str,
    what: str,
    names: Iterable[str],
    errors: Mapping[object, ClientError],
    *,
    as_json: bool,
    ignored: type[ClientError] | None = None,
) -> None:
    """Print the names that succeeded; fail with the errors of the others, except `ignored` ones."""
    succeeded = [name for name in dict.fromkeys(names) if name not in errors]
    failed = {name: error for name, error in errors.items() if not (ignored and isinstance(error, ignored))}
    value = {done: succeeded, "failed": {str(name): str(error) for name, error in failed.items()}}
    answer(as_json, value, "\n".join(f"{done} {what} {name}" for name in succeeded))
    if failed:
        raise failure_of(list(failed.values()))


def parse_partition(text: str) -> TopicPartition:
    """`orders-0`, or `orders:0`."""
    topic, mark, number = text.rpartition(":" if ":" in text else "-")
    if not mark or not topic or not number.isdecimal():
        raise Misused(f"{text!r} is not a partition", hint="A partition is written orders-0.")
    return TopicPartition(topic, int(number))
