"""DescribeClientQuotas, AlterClientQuotas: client quotas are not implemented."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, serves
from ottla.errors import ErrorCode, Refused
from ottla.wire.apis import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS
from ottla.wire.schema.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntityData,
    AlterClientQuotasResponseEntryData,
)
from ottla.wire.schema.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

_NOT_BUILT: Final = "This broker has no client quotas: nothing was changed, and no client is limited."
_ENTITY_TYPES: Final = ("user", "client-id", "ip")
_TYPE_CHARS_SHOWN: Final = 100


class _Match(IntEnum):
    """The match types of a filter (KIP-546)."""

    exact = 0
    default = 1
    specified = 2


@serves(DESCRIBE_CLIENT_QUOTAS)
def describe(context: Context, message: DescribeClientQuotasRequest, request: Request) -> DescribeClientQuotasResponse:
    try:
        _check_filter(message.components)
    except Refused as refused:
        return DescribeClientQuotasResponse(error_code=refused.code, error_message=refused.message, entries=None)
    return DescribeClientQuotasResponse(error_message=None, entries=[])


def _check_filter(components: list[ComponentData]) -> None:
    """Refuses invalid filters as Kafka does."""
    seen: set[str] = set()
    for component in components:
        kind, match = component.entity_type, component.match_type
        if not kind:
            raise Refused(ErrorCode.invalid_request, "Invalid empty entity type.")
        if kind not in _ENTITY_TYPES:
            raise Refused(ErrorCode.unsupported_version, f"Unsupported entity type {kind[:_TYPE_CHARS_SHOWN]}")
        if kind in seen:
            raise Refused(ErrorCode.invalid_request, f"Entity type {kind} cannot appear more than once in the filter.")
        seen.add(kind)
        if match not in _Match.__members__.values():
            raise Refused(ErrorCode.invalid_request, f"Unknown match type {match}.")
        if (component.match is not None) is not (match == _Match.exact):
            raise Refused(ErrorCode.invalid_request, f"Match type {_Match(match).name} and the given name do not fit.")
    if "ip" in seen and len(seen) > 1:
        raise Refused(ErrorCode.invalid_request, "An ip cannot be asked for together with users or client ids.")


@serves(ALTER_CLIENT_QUOTAS)
def alter(context: Context, message: AlterClientQuotasRequest, request: Request) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[
            AlterClientQuotasResponseEntryData(
                error_code=ErrorCode.unsupported_version,
                error_message=_NOT_BUILT,
                entity=[
                    AlterClientQuotasResponseEntityData(entity_type=part.entity_type, entity_name=part.entity_name)
                    for part in entry.entity
                ],
            )
            for entry in message.entries
        ]
    )
