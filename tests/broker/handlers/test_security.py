"""Delegation token APIs are refused, as Kafka does on unauthenticated connections."""

from __future__ import annotations

from pathlib import Path

from ottla.errors import ErrorCode
from ottla.wire.schema.create_delegation_token import CreateDelegationTokenRequest, CreateDelegationTokenResponse
from ottla.wire.schema.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from ottla.wire.schema.expire_delegation_token import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse
from ottla.wire.schema.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from tests.harness.in_process import Client, brokers, run

NOT_ALLOWED = ErrorCode.delegation_token_request_not_allowed


def test_delegation_token_requests_are_refused_in_every_version(tmp_path: Path):
    async def test() -> None:
        async with brokers(tmp_path, 1) as (broker,), Client.to(broker) as client:
            for version in (1, 2, 3):
                made = await client.call(CreateDelegationTokenRequest(), CreateDelegationTokenResponse, version)
                assert (made.error_code, made.token_id, made.hmac) == (NOT_ALLOWED, "", b"")
                assert (made.principal_type, made.principal_name) == ("User", "ANONYMOUS")
                assert (made.issue_timestamp_ms, made.expiry_timestamp_ms, made.max_timestamp_ms) == (-1, -1, -1)
                shown = await client.call(DescribeDelegationTokenRequest(), DescribeDelegationTokenResponse, version)
                assert (shown.error_code, shown.tokens) == (NOT_ALLOWED, [])
            for version in (1, 2):
                renewal, ending = RenewDelegationTokenRequest(hmac=b"x"), ExpireDelegationTokenRequest(hmac=b"x")
                renewed = await client.call(renewal, RenewDelegationTokenResponse, version)
                ended = await client.call(ending, ExpireDelegationTokenResponse, version)
                for answer in (renewed, ended):
                    assert (answer.error_code, answer.expiry_timestamp_ms) == (NOT_ALLOWED, -1)

    run(test)
