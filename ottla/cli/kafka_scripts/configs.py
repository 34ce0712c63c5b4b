"""kafka-configs.sh: describe and alter the settings of topics, brokers, broker loggers and groups."""

from __future__ import annotations

import re
from typing import Any, Final

import click

from ottla.cli.failure import Failure
from ottla.cli.kafka_scripts.options import (
    NO_CONTROLLERS,
    Script,
    ScriptOptions,
    ToolFailure,
    administer,
    arguments,
    kafka_exception,
    one_action,
    properties_of,
    refuse_together,
    target_of,
)
from ottla.client.admin import Admin, ConfigEntry, ResourceKind
from ottla.client.errors import ClientError, NotUnderstood

KINDS: Final = {
    "topics": ResourceKind.TOPIC,
    "brokers": ResourceKind.BROKER,
    "broker-loggers": ResourceKind.LOGGER,
    "groups": ResourceKind.GROUP,
}
NOT_HERE: Final = ("clients", "users", "ips", "client-metrics")
SHORT_OPTIONS: Final = {
    "topic": "topics",
    "broker": "brokers",
    "broker_defaults": "brokers",
    "broker_logger": "broker-loggers",
    "group": "groups",
    "client": "clients",
    "client_defaults": "clients",
    "user": "users",
    "user_defaults": "users",
    "ip": "ips",
    "ip_defaults": "ips",
    "client_metrics": "client-metrics",
}
"""Options that stand for --entity-type and --entity-name."""
NO_QUOTAS: Final = "this cluster has no quotas, users or client metrics to describe or alter"
ENTITY_TYPES: Final = "topics, clients, users, brokers, ips, client-metrics, groups, broker-loggers"
SOURCES: Final = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
    8: "DYNAMIC_GROUP_CONFIG",
}
DYNAMIC: Final = {"topics": 1, "brokers": 2, "groups": 8}
ALL_BROKERS: Final = ""
DYNAMIC_DEFAULT: Final = 3
COMMA: Final = re.compile(r",(?=[^\]]*(?:\[|$))")
"""A comma outside of square brackets."""


@click.command(
    "kafka-configs.sh",
    cls=Script,
    about="This tool helps to manipulate and describe entity config for a topic, client, user, broker, ip, "
    "client-metrics or group",
)
@click.option("--bootstrap-server")
@click.option("--bootstrap-controller", help=NO_CONTROLLERS)
@click.option("--describe", is_flag=True)
@click.option("--alter", is_flag=True)
@click.option("--all", is_flag=True)
@click.option("--entity-type", multiple=True)
@click.option("--entity-name", multiple=True)
@click.option("--entity-default", is_flag=True)
@click.option("--topic")
@click.option("--broker")
@click.option("--broker-defaults", is_flag=True)
@click.option("--broker-logger")
@click.option("--group")
@click.option("--client", help=NO_QUOTAS)
@click.option("--client-defaults", is_flag=True, help=NO_QUOTAS)
@click.option("--user", help=NO_QUOTAS)
@click.option("--user-defaults", is_flag=True, help=NO_QUOTAS)
@click.option("--ip", help=NO_QUOTAS)
@click.option("--ip-defaults", is_flag=True, help=NO_QUOTAS)
@click.option("--client-metrics", help=NO_QUOTAS)
@click.option("--add-config", metavar="NAME=VALUE,NAME=[V1,V2],...")
@click.option("--add-config-file", metavar="FILE")
@click.option("--delete-config", multiple=True, metavar="NAME,...")
@click.option("--force", is_flag=True, help="Accepted.")
@click.option("--command-config", metavar="FILE")
def kafka_configs(**options: Any) -> None:
    """Describe and alter settings."""
    given = ScriptOptions(**options)
    action = one_action(given, ("describe", "alter"))
    refuse_together(given, ["describe"], ("add-config", "add-config-file", "delete-config"))
    if given.bootstrap_server is not None and given.bootstrap_controller is not None:
        raise ToolFailure("Only one of --bootstrap-server or --bootstrap-controller can be specified")
    if given.bootstrap_controller is not None:
        raise ToolFailure(NO_CONTROLLERS)
    if given.bootstrap_server is None:
        raise ToolFailure("Either --bootstrap-server or --bootstrap-controller must be specified.")
    kind, name = _entity(given)
    if kind in NOT_HERE:
        raise ToolFailure(f"{kind}: {NO_QUOTAS}")
    if kind in ("brokers", "broker-loggers") and name and not name.isdecimal():
        raise ToolFailure(f"The entity name for {kind} must be a valid integer broker id, but it is: {name}")
    if given.describe and given.entity_default and kind == "topics":
        raise ToolFailure("--entity-default must not be specified with --describe of topics")
    target = target_of(given.bootstrap_server, file=given.command_config)
    if action == "describe":
        administer(target, lambda admin: _describe(admin, kind, name, given.all), _refused)
        return
    if name is None:
        raise ToolFailure(f"An entity name must be specified with --alter of {kind}")
    put = _added(given.add_config, given.add_config_file)
    removed = [each.strip() for text in given.delete_config for each in text.split(",")]
    if not put and not removed:
        raise ToolFailure(
            "At least one of --add-config, --add-config-file, or --delete-config must be specified with --alter"
        )
    administer(target, lambda admin: admin.alter_configs(KINDS[kind], name, put=put, remove=removed), _refused)
    if name:
        click.echo(f"Completed updating config for {kind[:-1]} {name}.")
    else:
        click.echo(f"Completed updating default config for {kind} in the cluster.")


def _refused(error: ClientError) -> Failure:
    return _failed(f"java.util.concurrent.ExecutionException: {kafka_exception(error)}")


def _failed(reason: str) -> Failure:
    """The arguments of the script, and the first line of the stack trace of Kafka's tool."""
    return ToolFailure(f"Error while executing config command with args '{' '.join(arguments())}'\n{reason}")


def _entity(given: ScriptOptions) -> tuple[str, str | None]:
    """Type and name of the entity; None stands for all of the type."""
    short = [
        (kind, ALL_BROKERS if option == "broker_defaults" else str(getattr(given, option)))
        for option, kind in SHORT_OPTIONS.items()
        if given.has(option)
    ]
    kinds = [*given.entity_type, *(kind for kind, _ in short)]
    if doubled := [kind for kind in dict.fromkeys(kinds) if kinds.count(kind) > 1]:
        raise ToolFailure(f"Duplicate entity type(s) specified: {','.join(doubled)}")
    if short and (given.entity_type or given.entity_name or given.entity_default):
        raise ToolFailure("--entity-{type,name,default} should not be used in conjunction with specific entity flags")
    if short:
        return short[0]
    if not given.entity_type:
        raise ToolFailure("At least one entity type must be specified")
    kind = given.entity_type[0]
    if len(given.entity_type) > 1:
        raise ToolFailure(f"{kind}: {NO_QUOTAS}")
    if kind in NOT_HERE:
        return kind, None
    if kind not in KINDS:
        raise ToolFailure(
            f"Invalid entity type {kind}, the entity type must be one of {ENTITY_TYPES} "
            "with a --bootstrap-server or --bootstrap-controller argument"
        )
    if given.entity_default:
        return kind, ALL_BROKERS
    return kind, given.entity_name[0] if given.entity_name else None


def _added(text: str | None, file: str | None) -> dict[str, str]:
    if text is not None and file is not None:
        raise ToolFailure("Only one of --add-config or --add-config-file must be specified")
    if file is not None:
        return properties_of(file, _failed(f"java.nio.file.NoSuchFileException: {file}"))
    pairs = [each.split("=", 1) for each in COMMA.split(text)] if text else []
    if not all(len(pair) == 2 for pair in pairs):
        raise ToolFailure(
            'requirement failed: Invalid entity config: all configs to be added must be in the format "key=val" or  '
            '"key=[val1,val2]" to group values which contain commas.'
        )
    return {name.strip(): value.strip().replace("[", "").replace("]", "").strip() for name, value in pairs}


async def _describe(admin: Admin, kind: str, name: str | None, everything: bool) -> None:
    known = await _known(admin, kind)
    if name is not None and not everything and name not in (*known, ALL_BROKERS):
        click.echo(f"The {kind[:-1]} '{name}' doesn't exist and doesn't have dynamic config.")
        return
    entities = [name] if name is not None else [*known, *([ALL_BROKERS] if kind.startswith("broker") else [])]
    for entity in entities:
        if entity == ALL_BROKERS:
            click.echo(f"Default configs for {kind} in the cluster are:")
        else:
            click.echo(f"{'All' if everything else 'Dynamic'} configs for {kind[:-1]} {entity} are:")
        for entry in await admin.describe_configs(KINDS[kind], entity):
            if everything or _is_dynamic(entry, kind, entity):
                click.echo(_line(entry))


async def _known(admin: Admin, kind: str) -> list[str]:
    if kind == "topics":
        return [topic.name for topic in await admin.list_topics(internal=True)]
    if kind == "groups":
        return await _groups(admin)
    return [str(broker.node_id) for broker in (await admin.describe_cluster()).brokers]


async def _groups(admin: Admin) -> list[str]:
    """Groups that exist, and groups that only have settings."""
    listed = {each.group_id for each in await admin.list_groups()}
    try:
        return sorted(listed | set(await admin.list_config_resources(ResourceKind.GROUP)))
    except NotUnderstood:
        return sorted(listed)


def _is_dynamic(entry: ConfigEntry, kind: str, entity: str) -> bool:
    if kind == "broker-loggers":
        return True
    wanted = DYNAMIC_DEFAULT if kind == "brokers" and entity == ALL_BROKERS else DYNAMIC[kind]
    return entry.source == wanted


def _line(entry: ConfigEntry) -> str:
    def shown(value: str | None) -> str:
        return "null" if value is None else value

    synonyms = ", ".join(
        f"{SOURCES.get(each.source, 'UNKNOWN')}:{each.name}={shown(each.value)}" for each in entry.synonyms
    )
    sensitive = str(entry.sensitive).lower()
    return f"  {entry.name}={shown(entry.value)} sensitive={sensitive} synonyms={{{synonyms}}}"
