"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, for topics and brokers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.broker.dispatch import Request, serves
from ottla.broker.forwarding import by_controller
from ottla.cluster.requests import ConfigAlteration, ConfigEdit, ConfigResult
from ottla.config.describe import Row, describe_broker, describe_dynamic, describe_topic
from ottla.config.setting import INT_MAX, Source
from ottla.errors import ErrorCode, Refused
from ottla.wire.apis import ALTER_CONFIGS, DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS
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

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

TOPIC = 2
BROKER = 4
NAME_CHARS_SHOWN = 100


@serves(DESCRIBE_CONFIGS)
def describe(broker: Broker, message: DescribeConfigsRequest, request: Request) -> DescribeConfigsResponse:
    results = []
    for (kind, name), keys in _asked(message.resources).items():
        result = DescribeConfigsResult(resource_type=kind, resource_name=name, error_message=None)
        try:
            rows = _rows(broker, kind, name)
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
    """Each resource once, however often it is named, and the settings asked for; none: all."""
    asked: dict[tuple[int, str], set[str]] = {}
    for each in resources:
        which = (each.resource_type, each.resource_name)
        known = asked.get(which)
        if known is None or not each.configuration_keys:
            asked[which] = set(each.configuration_keys or ())
        elif known:
            known.update(each.configuration_keys)
    return asked


def _rows(broker: Broker, kind: int, name: str) -> list[Row]:
    if kind == TOPIC:
        topic = broker.image.topic(name)
        if topic is None:
            raise Refused(broker.why_unknown(name))
        return describe_topic(topic.configs, broker.config)
    if kind == BROKER:
        if not name:
            return describe_dynamic(broker.image.broker_configs.get(None, {}), Source.DYNAMIC_CLUSTER)
        if _broker_id(name) != broker.id:
            raise Refused(ErrorCode.invalid_request, f"ask broker {name} itself: this is broker {broker.id}")
        return describe_broker(broker.config)
    raise Refused(ErrorCode.invalid_request, f"there is no configuration of resource type {kind}")


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
async def alter(broker: Broker, message: full.AlterConfigsRequest, request: Request) -> full.AlterConfigsResponse:
    """All settings of a resource at once: what is not mentioned goes back to its default."""
    responses = []
    for resource in message.resources:
        edits = [ConfigEdit(each.name, each.value) for each in resource.configs]
        result = await _alter(broker, resource, edits, replace=True, validate_only=message.validate_only)
        responses.append(
            full.AlterConfigsResourceResponse(
                error_code=result.code,
                error_message=result.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return full.AlterConfigsResponse(responses=responses)


@serves(INCREMENTAL_ALTER_CONFIGS)
@by_controller
async def alter_incrementally(
    broker: Broker, message: incremental.IncrementalAlterConfigsRequest, request: Request
) -> incremental.IncrementalAlterConfigsResponse:
    responses = []
    for resource in message.resources:
        edits = [ConfigEdit(each.name, each.value, each.config_operation) for each in resource.configs]
        result = await _alter(broker, resource, edits, replace=False, validate_only=message.validate_only)
        responses.append(
            incremental.AlterConfigsResourceResponse(
                error_code=result.code,
                error_message=result.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return incremental.IncrementalAlterConfigsResponse(responses=responses)


async def _alter(
    broker: Broker,
    resource: full.AlterConfigsResource | incremental.AlterConfigsResource,
    edits: Sequence[ConfigEdit],
    *,
    replace: bool,
    validate_only: bool,
) -> ConfigResult:
    name = resource.resource_name
    try:
        if len({edit.name for edit in edits}) != len(edits):
            raise Refused(ErrorCode.invalid_request, "a setting is named more than once")
        if resource.resource_type == TOPIC:
            alteration = ConfigAlteration(name, edits, replace)
            (result,) = await broker.cluster.alter_topic_configs([alteration], validate_only=validate_only)
        elif resource.resource_type == BROKER:
            alteration = ConfigAlteration(_broker_id(name) if name else None, edits, replace)
            (result,) = await broker.cluster.alter_broker_configs([alteration], validate_only=validate_only)
        else:
            raise Refused(ErrorCode.invalid_request, f"resource type {resource.resource_type} has no configuration")
        return result
    except Refused as refused:
        return ConfigResult(name, refused.code, refused.message)
