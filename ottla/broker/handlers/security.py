"""SASL of brokers (`net.authentication`); ACL, SCRAM and delegation token APIs, which are disabled for clients."""

from __future__ import annotations

import logging
from collections import Counter

from ottla.broker.context import Context
from ottla.broker.dispatch import Request, serves
from ottla.errors import ErrorCode
from ottla.net.authentication import MECHANISM, NONCE_BYTES, Accepting, AuthenticationFailed
from ottla.wire import apis
from ottla.wire.schema.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from ottla.wire.schema.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from ottla.wire.schema.create_delegation_token import CreateDelegationTokenRequest, CreateDelegationTokenResponse
from ottla.wire.schema.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from ottla.wire.schema.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from ottla.wire.schema.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from ottla.wire.schema.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from ottla.wire.schema.expire_delegation_token import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse
from ottla.wire.schema.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from ottla.wire.schema.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.wire.schema.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

log = logging.getLogger("ottla.broker")

_DISABLED = ErrorCode.security_disabled
_WHY = "No authorizer is configured on the broker"
_NO_SCRAM = "This broker has no SCRAM users: nothing was changed, and nobody has to authenticate"
_NO_TOKENS = ErrorCode.delegation_token_request_not_allowed
"""Kafka's answer on an unauthenticated connection: a token belongs to an authenticated user."""
_ANONYMOUS = ("User", "ANONYMOUS")
_NEVER_MS = -1


@serves(apis.SASL_HANDSHAKE)
def sasl_handshake(context: Context, message: SaslHandshakeRequest, request: Request) -> SaslHandshakeResponse:
    connection = request.connection
    connection.authentication = None
    for_brokers = request.session.listener_name == context.config.inter_broker_endpoint.name
    # Version 0 continues with bytes outside of frames: not supported.
    if not for_brokers or request.session.broker_id is not None or request.version == 0:
        return SaslHandshakeResponse(error_code=ErrorCode.illegal_sasl_state)
    if message.mechanism != MECHANISM:
        return SaslHandshakeResponse(error_code=ErrorCode.unsupported_sasl_mechanism, mechanisms=[MECHANISM])
    connection.authentication = Accepting(context.peers.identity, context.runtime.entropy(NONCE_BYTES))
    return SaslHandshakeResponse(mechanisms=[MECHANISM])


@serves(apis.SASL_AUTHENTICATE)
def sasl_authenticate(context: Context, message: SaslAuthenticateRequest, request: Request) -> SaslAuthenticateResponse:
    connection = request.connection
    accepting = connection.authentication
    if not isinstance(accepting, Accepting):
        return SaslAuthenticateResponse(
            error_code=ErrorCode.illegal_sasl_state, error_message="SaslHandshake comes first, and only once"
        )
    try:
        answer, peer = accepting.receive(message.auth_bytes)
    except AuthenticationFailed as failed:
        connection.authentication = None
        log.warning("a connection from %s is not that of a broker: %s", connection.address, failed)
        context.runtime.call_soon(connection.close, "it has not authenticated")  # after the response
        return SaslAuthenticateResponse(
            error_code=ErrorCode.sasl_authentication_failed, error_message="Authentication failed"
        )
    if peer is not None:
        connection.authentication = None
        connection.authenticated_as_broker(peer)
    return SaslAuthenticateResponse(error_message=None, auth_bytes=answer)


@serves(apis.DESCRIBE_ACLS)
def describe_acls(context: Context, message: DescribeAclsRequest, request: Request) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=_DISABLED, error_message=_WHY)


@serves(apis.CREATE_ACLS)
def create_acls(context: Context, message: CreateAclsRequest, request: Request) -> CreateAclsResponse:
    refused = [AclCreationResult(error_code=_DISABLED, error_message=_WHY) for _ in message.creations]
    return CreateAclsResponse(results=refused)


@serves(apis.DELETE_ACLS)
def delete_acls(context: Context, message: DeleteAclsRequest, request: Request) -> DeleteAclsResponse:
    refused = [DeleteAclsFilterResult(error_code=_DISABLED, error_message=_WHY) for _ in message.filters]
    return DeleteAclsResponse(filter_results=refused)


@serves(apis.DESCRIBE_USER_SCRAM_CREDENTIALS)
def describe_scram(
    context: Context, message: DescribeUserScramCredentialsRequest, request: Request
) -> DescribeUserScramCredentialsResponse:
    """No user has SCRAM credentials."""
    results = []
    for name, times in Counter(user.name for user in message.users or ()).items():
        if times > 1:
            code = ErrorCode.duplicate_resource
            text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        else:
            code = ErrorCode.resource_not_found
            text = f"Attempt to describe a user credential that does not exist: {name}"
        results.append(DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=text))
    return DescribeUserScramCredentialsResponse(error_message=None, results=results)


@serves(apis.ALTER_USER_SCRAM_CREDENTIALS)
def alter_scram(
    context: Context, message: AlterUserScramCredentialsRequest, request: Request
) -> AlterUserScramCredentialsResponse:
    users = sorted({each.name for each in message.deletions} | {each.name for each in message.upsertions})
    refused = [
        AlterUserScramCredentialsResult(user=user, error_code=_DISABLED, error_message=_NO_SCRAM) for user in users
    ]
    return AlterUserScramCredentialsResponse(results=refused)


@serves(apis.CREATE_DELEGATION_TOKEN)
def create_token(
    context: Context, message: CreateDelegationTokenRequest, request: Request
) -> CreateDelegationTokenResponse:
    kind, name = _ANONYMOUS
    return CreateDelegationTokenResponse(
        error_code=_NO_TOKENS,
        principal_type=message.owner_principal_type or kind,
        principal_name=message.owner_principal_name or name,
        token_requester_principal_type=kind,
        token_requester_principal_name=name,
        issue_timestamp_ms=_NEVER_MS,
        expiry_timestamp_ms=_NEVER_MS,
        max_timestamp_ms=_NEVER_MS,
    )


@serves(apis.RENEW_DELEGATION_TOKEN)
def renew_token(
    context: Context, message: RenewDelegationTokenRequest, request: Request
) -> RenewDelegationTokenResponse:
    return RenewDelegationTokenResponse(error_code=_NO_TOKENS, expiry_timestamp_ms=_NEVER_MS)


@serves(apis.EXPIRE_DELEGATION_TOKEN)
def expire_token(
    context: Context, message: ExpireDelegationTokenRequest, request: Request
) -> ExpireDelegationTokenResponse:
    return ExpireDelegationTokenResponse(error_code=_NO_TOKENS, expiry_timestamp_ms=_NEVER_MS)


@serves(apis.DESCRIBE_DELEGATION_TOKEN)
def describe_tokens(
    context: Context, message: DescribeDelegationTokenRequest, request: Request
) -> DescribeDelegationTokenResponse:
    return DescribeDelegationTokenResponse(error_code=_NO_TOKENS)
