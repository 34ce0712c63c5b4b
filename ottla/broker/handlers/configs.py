"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources: topics, brokers, groups, loggers.

The controller changes settings, which are kept in the store. The level of a logger belongs to one broker's process:
that broker changes it, and it is lost at the next start.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TypeVar

from ottla import logs
from ottla.broker.context import Context
from ottla.broker.dispatch import Request, Response, serves
from ottla.broker.forwarding import by_controller
from ottla.cluster.controller import unknown_topic_error
from ottla.cluster.requests import ConfigAlteration, ConfigEdit, ConfigOp, ConfigResult
from ottla.config.describe import Row, describe_broker, describe_dynamic, describe_group, describe_topic, scrub_row
from ottla.config.setting import INT_MAX, ConfigSource
from ottla.errors import ErrorCode, Refused
from ottla.wire import messages
from ottla.wire.apis import ALTER_CONFIGS, DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS, LIST_CONFIG_RESOURCES
from ottla.wire.schema import alter_configs as full
from ottla.wire.schema import incremental_alter_configs as incremental
from ottla.wire.schema.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from ottla.wire.schema.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

log = logging.getLogger("ottla.broker")

Resource = full.AlterConfigsResource | incremental.AlterConfigsResource
A = TypeVar("A", full.AlterConfigsResourceResponse, incremental.AlterConfigsResourceResponse)

TYPES_FROM = 1
"""The version of ListConfigResources from which a request names types; before, it means client metrics (KIP-1142)."""
NAME_CHARS_SHOWN = 100
LOGGER_SOURCE = 6
LOGGER_KIND = 0
"""The config source of a logger's level in DescribeConfigs, and an unknown config type."""


class ConfigType(IntEnum):
    """Kafka's numbers of the resources that have a configuration."""

    topic = 2
    broker = 4
    broker_logger = 8
    client_metrics = 16
    group = 32


@serves(DESCRIBE_CONFIGS)
def describe(context: Context, message: DescribeConfigsRequest, request: Request) -> DescribeConfigsResponse:
    results = []
    for (kind, name), keys in _asked(message.resources).items():
        result = DescribeConfigsResult(resource_type=kind, resource_name=name, error_message=None)
        try:
            rows = _rows(context, kind, name)
            result.configs = [
                _described(row, message.include_synonyms, message.include_documentation)
                for row in rows
                if not keys or row.name in keys
            ]
        except Refused as refused:
            result.error_code, result.error_message = refused.code, refused.message
        results.append(result)
    return DescribeConfigsResponse(results=results)


def _asked(resources: Sequence[DescribeConfigsResource]) -> dict[tuple[int, str], set[str]]:
    """Each resource once, and the settings it is asked for; empty: all."""
    asked: dict[tuple[int, str], set[str]] = {}
    for each in resources:
        which = (each.resource_type, each.resource_name)
        known = asked.get(which)
        if known is None or not each.configuration_keys:
            asked[which] = set(each.configuration_keys or ())
        elif known:
            known.update(each.configuration_keys)
    return asked


def _rows(context: Context, kind: int, name: str) -> list[Row]:
    if kind == ConfigType.topic:
        topic = context.image.topic(name)
        if topic is None:
            raise Refused(unknown_topic_error(name))
        return describe_topic(topic.configs, context.config)
    if kind == ConfigType.broker:
        if not name:
            return describe_dynamic(context.image.broker_configs.get(None, {}), ConfigSource.DYNAMIC_CLUSTER)
        if _broker_id(name) != context.id:
            raise Refused(ErrorCode.invalid_request, f"ask broker {name} itself: this is broker {context.id}")
        return sorted([*describe_broker(context.config), scrub_row(context.scrubber.status())])
    if kind == ConfigType.broker_logger:
        _check_is_this(context, name)
        return [_logger_row(*each) for each in logs.levels().items()]
    if kind == ConfigType.group:
        if not name:
            raise Refused(ErrorCode.invalid_request, "Group name must not be empty")
        return describe_group(context.image.group_configs.get(name, {}), context.config)
    raise Refused(ErrorCode.invalid_request, f"there is no configuration of resource type {kind}")


def _logger_row(name: str, level: str) -> Row:
    return Row(name, level, LOGGER_SOURCE, False, False, (), LOGGER_KIND, "")


def _check_is_this(context: Context, name: str) -> None:
    if not name:
        raise Refused(ErrorCode.invalid_request, "Broker id must not be empty")
    if _broker_id(name) != context.id:
        raise Refused(ErrorCode.invalid_request, f"Unexpected broker id, expected {context.id} but received {name}")


def _broker_id(name: str) -> int:
    if not (name.isascii() and name.isdigit() and len(name) <= len(str(INT_MAX)) and int(name) <= INT_MAX):
        raise Refused(ErrorCode.invalid_request, f"{name[:NAME_CHARS_SHOWN]!r} is no broker id")
    return int(name)


def _described(row: Row, synonyms: bool, documentation: bool) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=row.name,
        value=None if row.sensitive else row.value,
        read_only=row.read_only,
        config_source=row.source,
        is_sensitive=row.sensitive,
        synonyms=[DescribeConfigsSynonym(name=s.name, value=s.value, source=s.source) for s in row.synonyms]
        if synonyms
        else [],
        config_type=row.kind,
        documentation=row.doc if documentation else None,
    )


@serves(ALTER_CONFIGS)
@by_controller
async def alter(context: Context, message: full.AlterConfigsRequest, request: Request) -> full.AlterConfigsResponse:
    """Replaces all settings of a resource: those not in the request go back to their defaults."""
    responses = []
    for resource in message.resources:
        edits = [ConfigEdit(each.name, each.value) for each in resource.configs]
        result = await _alter(context, resource, edits, replace=True, validate_only=message.validate_only)
        responses.append(_altered(full.AlterConfigsResourceResponse, resource, result.code, result.message))
    return full.AlterConfigsResponse(responses=responses)


@serves(INCREMENTAL_ALTER_CONFIGS)
async def alter_incrementally(
    context: Context, message: incremental.IncrementalAlterConfigsRequest, request: Request
) -> Response:
    ours = [each for each in message.resources if each.resource_type == ConfigType.broker_logger]
    if not ours:
        return await _alter_in_cluster(context, message, request)
    times = Counter(each.resource_name for each in ours)
    responses = []
    for resource in ours:
        code, text = ErrorCode.none, None
        try:
            if times[resource.resource_name] > 1:
                raise Refused(ErrorCode.invalid_request, "Each resource must appear at most once.")
            _check_is_this(context, resource.resource_name)
            _alter_levels(resource.configs, validate_only=message.validate_only)
        except Refused as refused:
            code, text = refused.code, refused.message
        responses.append(_altered(incremental.AlterConfigsResourceResponse, resource, code, text))
    others = [each for each in message.resources if each.resource_type != ConfigType.broker_logger]
    if others:
        rest = incremental.IncrementalAlterConfigsRequest(resources=others, validate_only=message.validate_only)
        answer = await _alter_in_cluster(context, rest, request)
        if isinstance(answer, bytes):  # from the controller, another broker
            answer = messages.decode_response(INCREMENTAL_ALTER_CONFIGS, request.version, answer)
        assert isinstance(answer, incremental.IncrementalAlterConfigsResponse)
        responses += answer.responses
    return incremental.IncrementalAlterConfigsResponse(responses=responses)


def _alter_levels(edits: Sequence[incremental.AlterableConfig], *, validate_only: bool) -> None:
    """All edits or none."""
    known = logs.levels()
    for edit in edits:
        if edit.config_operation not in (ConfigOp.set, ConfigOp.delete):
            raise Refused(ErrorCode.invalid_request, "The level of a logger can be set and deleted, nothing else.")
        if edit.name not in known:
            raise Refused(ErrorCode.invalid_config, f"Logger {edit.name[:NAME_CHARS_SHOWN]} does not exist!")
        if edit.config_operation == ConfigOp.delete and edit.name == logs.ROOT:
            raise Refused(ErrorCode.invalid_request, "Removing the log level of the root logger is not allowed")
        if edit.config_operation == ConfigOp.set and edit.value not in logs.KAFKA_LEVELS:
            allowed = ", ".join(logs.KAFKA_LEVELS)
            raise Refused(ErrorCode.invalid_config, f"{edit.name}: a level is one of {allowed}")
    if not validate_only:
        for edit in edits:
            level = edit.value if edit.config_operation == ConfigOp.set else None
            logs.set_level(edit.name, level)
            log.info("the level of logger %s is now %s", edit.name, logs.levels()[edit.name])


@by_controller
async def _alter_in_cluster(
    context: Context, message: incremental.IncrementalAlterConfigsRequest, request: Request
) -> incremental.IncrementalAlterConfigsResponse:
    responses = []
    for resource in message.resources:
        edits = [ConfigEdit(each.name, each.value, each.config_operation) for each in resource.configs]
        result = await _alter(context, resource, edits, replace=False, validate_only=message.validate_only)
        responses.append(_altered(incremental.AlterConfigsResourceResponse, resource, result.code, result.message))
    return incremental.IncrementalAlterConfigsResponse(responses=responses)


def _altered(answer: type[A], resource: Resource, code: ErrorCode, text: str | None) -> A:
    return answer(
        error_code=code, error_message=text, resource_type=resource.resource_type, resource_name=resource.resource_name
    )


async def _alter(
    context: Context, resource: Resource, edits: Sequence[ConfigEdit], *, replace: bool, validate_only: bool
) -> ConfigResult:
    name = resource.resource_name
    try:
        if len({edit.name for edit in edits}) != len(edits):
            raise Refused(ErrorCode.invalid_request, "a setting is named more than once")
        if resource.resource_type == ConfigType.topic:
            alteration = ConfigAlteration(name, edits, replace)
            (result,) = await context.cluster.alter_topic_configs([alteration], validate_only=validate_only)
        elif resource.resource_type == ConfigType.group:
            alteration = ConfigAlteration(name, edits, replace)
            (result,) = await context.cluster.alter_group_configs([alteration], validate_only=validate_only)
        elif resource.resource_type == ConfigType.broker:
            alteration = ConfigAlteration(_broker_id(name) if name else None, edits, replace)
            (result,) = await context.cluster.alter_broker_configs([alteration], validate_only=validate_only)
        else:
            raise Refused(ErrorCode.invalid_request, f"resource type {resource.resource_type} has no configuration")
        return result
    except Refused as refused:
        return ConfigResult(name, refused.code, refused.message)


@serves(LIST_CONFIG_RESOURCES)
def list_config_resources(
    context: Context, message: ListConfigResourcesRequest, request: Request
) -> ListConfigResourcesResponse:
    if request.version < TYPES_FROM:
        wanted: set[int] = {ConfigType.client_metrics}
    else:
        wanted = set(message.resource_types) or set(ConfigType)
    if not wanted <= set(ConfigType):
        return ListConfigResourcesResponse(error_code=ErrorCode.unsupported_version)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in ConfigType
            if kind in wanted
            for name in _names(context, kind)
        ]
    )


def _names(context: Context, kind: ConfigType) -> Iterable[str]:
    """Of groups, those with settings of their own. There are no client metrics (KIP-714)."""
    image = context.image
    match kind:
        case ConfigType.topic:
            return image.topics
        case ConfigType.broker | ConfigType.broker_logger:
            return map(str, image.brokers)
        case ConfigType.group:
            return image.group_configs
        case ConfigType.client_metrics:
            return ()
