"""`ottla configs`: describe and alter the settings of topics, brokers, loggers and groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import click

from ottla.cli.failure import Failure, Misused, Suggesting, split_pair
from ottla.cli.output import answer, json_option, print_table
from ottla.cli.target import Target, administer, cluster_options
from ottla.client.admin import Admin, ConfigEntry, ResourceKind
from ottla.client.admin.topic_admin import DEFAULT_SOURCE
from ottla.client.errors import ClientError
from ottla.config.inert_settings import has_no_effect
from ottla.errors import ErrorCode

T = TypeVar("T")

KINDS: Final = {
    "topic": ResourceKind.TOPIC,
    "broker": ResourceKind.BROKER,
    "logger": ResourceKind.LOGGER,
    "group": ResourceKind.GROUP,
}
CLUSTER_SOURCE: Final = 3
SOURCES: Final = {
    1: "topic",
    2: "broker, dynamic",
    3: "all brokers, dynamic",
    4: "broker, file",
    5: "default",
    6: "logger",
    8: "group",
}
"""DescribeConfigs' numbers for where a value comes from."""

kind_argument = click.argument("kind", type=click.Choice(list(KINDS)))
name_argument = click.argument("name")


@click.group("configs", cls=Suggesting)
def command() -> None:
    """Show and change the settings of topics, brokers and groups, and the levels of a broker's loggers.

    NAME is that of a topic or group, the number of a broker, or `all` for all brokers.

    \b
    Example:
      ottla configs set topic orders retention.ms=86400000
      ottla configs set logger 1 ottla.broker=DEBUG
    """


def _name(kind: str, name: str) -> str:
    return "" if kind == "broker" and name == "all" else name


def _administer(target: Target, kind: str, work: Callable[[Admin], Awaitable[T]]) -> T:
    async def asked(admin: Admin) -> T:
        try:
            return await work(admin)
        except ClientError as error:
            unknown = error.code is ErrorCode.invalid_request and "resource type" in str(error)
            if KINDS[kind] is ResourceKind.GROUP and unknown:
                raise Failure(
                    "this cluster has no settings of groups",
                    hint="Its brokers have them for all groups: `ottla configs describe broker ID --all`, group.*",
                ) from None
            raise

    return administer(target, asked)


@command.command("describe")
@kind_argument
@name_argument
@click.option("--all", "everything", is_flag=True, help="Settings at their default, too.")
@cluster_options
@json_option
def describe(kind: str, name: str, everything: bool, target: Target, as_json: bool) -> None:
    """Show settings, and where each comes from: those that were set, or all.

    \b
    Example:
      ottla configs describe topic orders --all
    """

    async def ask(admin: Admin) -> list[ConfigEntry]:
        if KINDS[kind] is ResourceKind.TOPIC:
            await admin.describe_topics([name])  # fails with a clear message if the topic does not exist
        return await admin.describe_configs(KINDS[kind], _name(kind, name))

    entries = [each for each in _administer(target, kind, ask) if everything or _was_set(each, kind)]
    value = [
        {
            "name": each.name,
            "value": each.value,
            "source": SOURCES.get(each.source, str(each.source)),
            "read_only": each.read_only,
            "sensitive": each.sensitive,
            "no_effect": has_no_effect(each.documentation),
        }
        for each in entries
    ]
    rows = [(each.name, _shown(each), _source(each)) for each in entries]
    defaults = "all settings have their default value; --all shows them"
    answer(as_json, value, (lambda: print_table(("SETTING", "VALUE", "FROM"), rows)) if rows else defaults)


def _was_set(entry: ConfigEntry, kind: str) -> bool:
    """Whether a setting was changed. A cluster-wide value that equals the default does not count for a topic: every
    cluster stores min.insync.replicas (KIP-966)."""
    if entry.source == DEFAULT_SOURCE:
        return False
    return kind == "broker" or entry.source != CLUSTER_SOURCE or entry.value != entry.default


def _source(entry: ConfigEntry) -> str:
    source = SOURCES.get(entry.source, str(entry.source))
    return f"{source}; has no effect" if has_no_effect(entry.documentation) else source


def _shown(entry: ConfigEntry) -> str:
    return "(hidden)" if entry.sensitive else (entry.value if entry.value is not None else "-")


@command.command("set")
@kind_argument
@name_argument
@click.argument("settings", nargs=-1, required=True, metavar="SETTING=VALUE...")
@cluster_options
@json_option
def set_(kind: str, name: str, settings: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Change settings, all of them or none.

    \b
    Example:
      ottla configs set topic orders retention.ms=86400000 cleanup.policy=compact
      ottla configs set broker all log.retention.ms=86400000
    """
    put = dict(split_pair(each, "set") for each in settings)
    _administer(target, kind, lambda admin: admin.alter_configs(KINDS[kind], _name(kind, name), put=put))
    answer(as_json, {"kind": kind, "name": name, "set": put}, f"changed {kind} {name}")


@command.command("unset")
@kind_argument
@name_argument
@click.argument("settings", nargs=-1, required=True, metavar="SETTING...")
@cluster_options
@json_option
def unset(kind: str, name: str, settings: tuple[str, ...], target: Target, as_json: bool) -> None:
    """Return settings to their defaults.

    \b
    Example:
      ottla configs unset topic orders retention.ms
    """
    if given := next((each for each in settings if "=" in each), None):
        raise Misused(f"{given!r} is a name with a value", hint="`ottla configs set` changes a value.")
    _administer(target, kind, lambda admin: admin.alter_configs(KINDS[kind], _name(kind, name), remove=settings))
    answer(as_json, {"kind": kind, "name": name, "unset": list(settings)}, f"changed {kind} {name}")
