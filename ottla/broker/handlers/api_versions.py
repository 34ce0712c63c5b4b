"""ApiVersions: all APIs that have a handler; inter-broker APIs are advertised to brokers only."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, served_apis, serves
from ottla.errors import ErrorCode
from ottla.wire.apis import API_VERSIONS, APIS, Api
from ottla.wire.schema.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

TRANSACTIONS = "transaction.version"
FEATURES = (("group.version", 1), (TRANSACTIONS, 2))
"""Features (KIP-584): the consumer group protocol (KIP-848) and transactions version 2 (KIP-890)."""

_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@serves(API_VERSIONS)
def handle(context: Context, message: ApiVersionsRequest, request: Request) -> ApiVersionsResponse:
    names_itself = request.route.api.flexible(request.version)  # KIP-511
    if names_itself and not all(map(_NAME.fullmatch, (message.client_software_name, message.client_software_version))):
        return ApiVersionsResponse(error_code=ErrorCode.invalid_request)
    advertised = [api for api in served_apis() if request.session.broker_id is not None or not api.between_brokers]
    return ApiVersionsResponse(
        api_keys=[_row(api) for api in advertised],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=1, max_version=level) for name, level in FEATURES
        ],
        finalized_features_epoch=0,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in _finalized(context)
        ],
    )


def _finalized(context: Context) -> Iterator[tuple[str, int]]:
    """The features in the versions that clients should use."""
    for name, level in FEATURES:
        yield name, min(level, context.config.ottla_transaction_version) if name == TRANSACTIONS else level


def unsupported_version(context: Context) -> ApiVersionsResponse:
    """The answer to an unknown version of ApiVersions: the versions that are served (KIP-511)."""
    return ApiVersionsResponse(error_code=ErrorCode.unsupported_version, api_keys=[_row(APIS[API_VERSIONS])])


def _row(api: Api) -> ApiVersion:
    low = api.min if api.advertised_min is None else api.advertised_min
    return ApiVersion(api_key=api.key, min_version=low, max_version=api.max)
