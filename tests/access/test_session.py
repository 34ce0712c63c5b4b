"""Session of a connection: its principal, and the requests that it allows."""

from __future__ import annotations

import pytest

from ottla.access.session import ANONYMOUS, Principal, Session, decode_principal, encode_principal
from ottla.errors import BadFrame, ErrorCode, Refused
from ottla.wire.acl import AclOperation
from ottla.wire.apis import ADD_PARTITIONS_TO_TXN, APIS


def refusal(act, *args):
    with pytest.raises(Refused) as caught:
        act(*args)
    return caught.value.code


def refused_operations(session):
    operations = {api.cluster_operation(version) for api in APIS.values() for version in range(api.min, api.max + 1)}
    return {operation for operation in operations - {None} if session.refusal(operation)}


def test_clients_may_use_all_apis_except_inter_broker_apis():
    session = Session("PLAINTEXT")
    assert session.principal == ANONYMOUS
    assert refused_operations(session) == {AclOperation.CLUSTER_ACTION}
    refused = session.refusal(AclOperation.CLUSTER_ACTION)
    assert refused is not None
    assert refused.code == ErrorCode.cluster_authorization_failed


def test_a_broker_may_use_inter_broker_apis_for_itself_only():
    session = Session("REPLICATION")
    assert refusal(session.check_is_broker, 2) == ErrorCode.cluster_authorization_failed
    session.authenticated_as_broker(2)
    assert str(session.principal) == "Broker:2"
    assert refused_operations(session) == set()
    session.check_is_broker(2)
    session.check_is_broker(-1)
    assert refusal(session.check_is_broker, 3) == ErrorCode.cluster_authorization_failed


def test_some_versions_of_an_api_are_for_brokers_only():
    api = APIS[ADD_PARTITIONS_TO_TXN]
    assert [api.operation_of(version) for version in (3, 4)] == [AclOperation.WRITE, AclOperation.CLUSTER_ACTION]
    assert not api.between_brokers
    assert [api.cluster_operation(version) for version in (3, 4)] == [None, AclOperation.CLUSTER_ACTION]


def test_every_api_names_its_resource_and_operation():
    needs_no_right = [api.name for api in APIS.values() if api.resource is None]
    assert needs_no_right == ["SaslHandshake", "ApiVersions", "SaslAuthenticate", "DescribeCluster"]
    assert all((api.resource is None) == (api.operation is None) for api in APIS.values())


def test_an_encoded_principal_is_decoded():
    principal = Principal("User", "Zoë")
    assert decode_principal(encode_principal(principal)) == principal
    with pytest.raises(BadFrame):
        decode_principal(b"\0\1" + encode_principal(principal)[2:])
