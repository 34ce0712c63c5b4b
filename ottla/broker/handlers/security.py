"""What a broker without authentication and authorisation says to those who ask for either."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.dispatch import Request, serves
from ottla.errors import ErrorCode
from ottla.wire import apis
from ottla.wire.schema.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from ottla.wire.schema.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from ottla.wire.schema.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from ottla.wire.schema.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from ottla.wire.schema.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from ottla.wire.schema.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from ottla.broker.broker import Broker

_DISABLED = ErrorCode.security_disabled
_WHY = "No authorizer is configured on the broker"


@serves(apis.SASL_HANDSHAKE)
def sasl_handshake(broker: Broker, message: SaslHandshakeRequest, request: Request) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.illegal_sasl_state)


@serves(apis.DESCRIBE_ACLS)
def describe_acls(broker: Broker, message: DescribeAclsRequest, request: Request) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=_DISABLED, error_message=_WHY)


@serves(apis.CREATE_ACLS)
def create_acls(broker: Broker, message: CreateAclsRequest, request: Request) -> CreateAclsResponse:
    refused = [AclCreationResult(error_code=_DISABLED, error_message=_WHY) for _ in message.creations]
    return CreateAclsResponse(results=refused)


@serves(apis.DELETE_ACLS)
def delete_acls(broker: Broker, message: DeleteAclsRequest, request: Request) -> DeleteAclsResponse:
    refused = [DeleteAclsFilterResult(error_code=_DISABLED, error_message=_WHY) for _ in message.filters]
    return DeleteAclsResponse(filter_results=refused)


@serves(apis.DESCRIBE_USER_SCRAM_CREDENTIALS)
def describe_scram(
    broker: Broker, message: DescribeUserScramCredentialsRequest, request: Request
) -> DescribeUserScramCredentialsResponse:
    return DescribeUserScramCredentialsResponse(error_code=_DISABLED, error_message=_WHY)


@serves(apis.ALTER_USER_SCRAM_CREDENTIALS)
def alter_scram(
    broker: Broker, message: AlterUserScramCredentialsRequest, request: Request
) -> AlterUserScramCredentialsResponse:
    users = sorted({each.name for each in message.deletions} | {each.name for each in message.upsertions})
    return AlterUserScramCredentialsResponse(
        results=[AlterUserScramCredentialsResult(user=user, error_code=_DISABLED, error_message=_WHY) for user in users]
    )
