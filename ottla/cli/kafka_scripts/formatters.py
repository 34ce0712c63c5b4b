"""Formatters of kafka-console-consumer.sh, by the class names of Kafka 4 and of earlier versions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import click

from ottla.cli.formats import Rendered
from ottla.cli.kafka_scripts import coordinator_formatters as coordinators
from ottla.cli.kafka_scripts.deserializers import Shown, deserializer
from ottla.cli.kafka_scripts.options import ToolFailure, UsageFailure, administer
from ottla.cli.target import Target
from ottla.client.admin import Admin, ResourceKind

TAB: Final = "\t"
PACKAGE: Final = "org.apache.kafka.tools.consumer."
DEFAULT: Final = f"{PACKAGE}DefaultMessageFormatter"
OLD_NAMES: Final = {
    "kafka.tools.DefaultMessageFormatter": DEFAULT,
    "kafka.tools.LoggingMessageFormatter": f"{PACKAGE}LoggingMessageFormatter",
    "kafka.tools.NoOpMessageFormatter": f"{PACKAGE}NoOpMessageFormatter",
    "kafka.coordinator.group.GroupMetadataManager$OffsetsMessageFormatter": f"{PACKAGE}OffsetsMessageFormatter",
    "kafka.coordinator.group.GroupMetadataManager$GroupMetadataMessageFormatter": (
        f"{PACKAGE}GroupMetadataMessageFormatter"
    ),
    "kafka.coordinator.transaction.TransactionLog$TransactionLogMessageFormatter": (
        f"{PACKAGE}TransactionLogMessageFormatter"
    ),
}
"""Class names before Kafka 4.0."""
OF_SHARE_GROUPS: Final = (
    f"{PACKAGE}ShareGroupMessageFormatter",
    f"{PACKAGE}group.share.ShareGroupStateMessageFormatter",
)
FORMATTERS: Final[dict[str, Callable[[], Rendered]]] = {
    f"{PACKAGE}NoOpMessageFormatter": lambda: lambda _: b"",
    f"{PACKAGE}OffsetsMessageFormatter": coordinators.offsets,
    f"{PACKAGE}GroupMetadataMessageFormatter": coordinators.groups,
    f"{PACKAGE}TransactionLogMessageFormatter": coordinators.transactions,
}
"""Formatters without properties. LoggingMessageFormatter prints like the default one; it also logs, but below the log
level of Kafka's tools."""


def is_on(properties: Mapping[str, str], name: str, otherwise: bool = False) -> bool:
    return properties[name].strip().lower() == "true" if name in properties else otherwise


def formatter(name: str, properties: Mapping[str, str], target: Target) -> Rendered:
    name = OLD_NAMES.get(name, name)
    if name in OF_SHARE_GROUPS:
        raise ToolFailure(f"{name}: this cluster has no share groups, and no records of them")
    if name in FORMATTERS:
        return FORMATTERS[name]()
    if name in (DEFAULT, f"{PACKAGE}LoggingMessageFormatter"):
        return default(properties, target)
    raise UsageFailure(name)  # the message of Kafka's tool for an unknown class


def default(properties: Mapping[str, str], target: Target) -> Rendered:
    """Kafka's DefaultMessageFormatter, with its properties."""
    separator = properties.get("key.separator", TAB).encode()
    end = properties.get("line.separator", "\n").encode()
    between = properties.get("headers.separator", ",").encode()
    null = properties.get("null.literal", "null").encode()
    key, value, header = (_deserializer(properties, each) for each in ("key", "value", "headers"))
    parts: list[Rendered] = []
    if is_on(properties, "print.timestamp"):
        kind = functools.cache(functools.partial(_timestamp_type, target))
        parts.append(lambda record: f"{kind(record.topic)}:{record.timestamp}".encode())
    if is_on(properties, "print.partition"):
        parts.append(lambda record: b"Partition:%d" % record.partition)
    if is_on(properties, "print.offset"):
        parts.append(lambda record: b"Offset:%d" % record.offset)
    # Kafka's console consumer gives its formatter neither a delivery count nor an epoch.
    parts += [_constant(f"{name.title()}:NOT_PRESENT") for name in ("delivery", "epoch") if _printed(properties, name)]
    if is_on(properties, "print.headers"):
        parts.append(
            lambda record: (
                between.join(
                    name.encode("utf-8", "surrogateescape") + b":" + header(null if each is None else each)
                    for name, each in record.headers
                )
                or b"NO_HEADERS"
            )
        )
    if is_on(properties, "print.key"):
        parts.append(lambda record: key(null if record.key is None else record.key))
    if is_on(properties, "print.value", True):
        parts.append(lambda record: value(null if record.value is None else record.value))
    if not parts:
        return lambda _: b""
    return lambda record: separator.join([part(record) for part in parts]) + end


def _printed(properties: Mapping[str, str], name: str) -> bool:
    return is_on(properties, f"print.{name}")


def _constant(text: str) -> Rendered:
    data = text.encode()
    return lambda _: data


def _deserializer(properties: Mapping[str, str], of: str) -> Shown:
    """Plain bytes if none is named, or if the class is unknown."""
    option = f"{of}.deserializer"
    if option not in properties:
        return bytes
    own = {name.removeprefix(f"{option}."): value for name, value in properties.items() if name.startswith(option)}
    found = deserializer(properties[option], own, "key" if of == "key" else "value")
    if found is None:
        message = f"Unable to instantiate a deserializer from {properties[option]}"
        click.echo(f"{message}\njava.lang.ClassNotFoundException: {properties[option]}", err=True)
    return found or bytes


def _timestamp_type(target: Target, topic: str) -> str:
    """message.timestamp.type of the topic; requested in another thread, because a loop is running in this one."""

    async def asked(admin: Admin) -> str:
        entries = await admin.describe_configs(ResourceKind.TOPIC, topic)
        return next((each.value or "" for each in entries if each.name == "message.timestamp.type"), "CreateTime")

    with ThreadPoolExecutor(1) as beside:
        return beside.submit(administer, target._replace(settings={}), asked).result()
