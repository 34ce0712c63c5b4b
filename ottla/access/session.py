"""The session of a connection: its principal and its listener. Pure.

A broker is a principal like any other: after authentication (`net.authentication`) it may use inter-broker APIs
(`CLUSTER_ACTION`), for itself only.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.errors import BadFrame, ErrorCode, Refused
from ottla.wire import messages
from ottla.wire.acl import AclOperation
from ottla.wire.schema.default_principal_data import DefaultPrincipalData


class Principal(NamedTuple):
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")
PRINCIPAL_VERSION: Final = 0


def broker_principal(broker_id: int) -> Principal:
    return Principal("Broker", str(broker_id))


def encode_principal(principal: Principal) -> bytes:
    """The principal in an Envelope, as Kafka encodes it."""
    data = DefaultPrincipalData(type_=principal.kind, name=principal.name)
    return PRINCIPAL_VERSION.to_bytes(2, "big") + messages.encode(data, PRINCIPAL_VERSION)


def decode_principal(data: bytes) -> Principal:
    version = int.from_bytes(data[:2], "big")
    if version != PRINCIPAL_VERSION:
        raise BadFrame(f"a principal in version {version}")
    decoded = messages.decoder_of(DefaultPrincipalData, version)(memoryview(data), 2)
    assert isinstance(decoded, DefaultPrincipalData)
    return Principal(decoded.type_, decoded.name)


class Session:
    """`broker_id`: the authenticated broker at the other end; None for clients. A forwarded session is that of a client
    of another broker, which forwards the request (Envelope, KIP-590)."""

    __slots__ = ("address", "broker_id", "forwarded", "listener_name", "principal")

    def __init__(
        self,
        listener_name: str,
        *,
        principal: Principal = ANONYMOUS,
        broker_id: int | None = None,
        address: str = "?",
        forwarded: bool = False,
    ) -> None:
        self.listener_name = listener_name
        self.principal = principal
        self.broker_id = broker_id
        self.address = address
        self.forwarded = forwarded

    def authenticated_as_broker(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.principal = broker_principal(broker_id)

    def refusal(self, operation: AclOperation) -> Refused | None:
        """The error if this operation on the cluster is not allowed. Without an authorizer all are allowed, except
        inter-broker APIs for clients."""
        if operation is AclOperation.CLUSTER_ACTION and self.broker_id is None:
            return Refused(ErrorCode.cluster_authorization_failed, "This API is for requests between brokers only.")
        return None

    def check_is_broker(self, broker_id: int) -> None:
        """A replica id moves the high watermark (CVE-2018-1288), so only the authenticated broker itself may send it.
        Below 0: no broker."""
        if broker_id >= 0 and self.broker_id != broker_id:
            raise Refused(ErrorCode.cluster_authorization_failed, "A broker may send this for itself only.")
