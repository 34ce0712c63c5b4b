"""ListConfigResources (KIP-1142): everything that has a configuration, by type and name."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, serves
from ottla.errors import ErrorCode
from ottla.wire.apis import LIST_CONFIG_RESOURCES
from ottla.wire.schema.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)


class ConfigType(IntEnum):
    """Kafka's numbers of the resources that have a configuration."""

    topic = 2
    broker = 4
    broker_logger = 8
    client_metrics = 16
    group = 32


TYPES_FROM: Final = 1
"""The version from which a request says which types it means; before, it means client metrics."""


@serves(LIST_CONFIG_RESOURCES)
def handle(context: Context, message: ListConfigResourcesRequest, request: Request) -> ListConfigResourcesResponse:
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
    """Groups are listed that have settings of their own. Client metrics (KIP-714) are not built: there are none."""
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
