"""The session of a connection: who is at its other end, and through which listener they came. Pure.

A broker is a principal like any other: one that has proved to belong to this cluster (`net.authentication`) may do what
brokers do among each other (`CLUSTER_ACTION`), and speaks for itself only.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.errors import BadFrame, ErrorCode, Refused
from ottla.wire import messages
from ottla.wire.acl import AclOperation
from ottla.wire.apis import Api
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
    """As Kafka's brokers tell each other on whose behalf they forward a request."""
    data = DefaultPrincipalData(type_=principal.kind, name=principal.name)
    return PRINCIPAL_VERSION.to_bytes(2, "big") + messages.encode(data, PRINCIPAL_VERSION)


def decode_principal(data: bytes) -> Principal:
    version = int.from_bytes(data[:2], "big")
    if version != PRINCIPAL_VERSION:
        raise BadFrame(f"a principal in version {version}")
    told = messages.decoder_of(DefaultPrincipalData, version)(memoryview(data), 2)
    assert isinstance(told, DefaultPrincipalData)
    return Principal(told.type_, told.name)


class Session:
    """`broker_id` is that of the broker at the other end, once it has proved to be that; None for everybody else. A
    forwarded session is that of a client of another broker, which carries its request here (Envelope, KIP-590)."""

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

    def may(self, operation: AclOperation | None) -> bool:
        """On the cluster as a whole. Without an authorizer everybody may do everything but what brokers do."""
        return operation is not AclOperation.CLUSTER_ACTION or self.broker_id is not None

    def check_api(self, api: Api, version: int) -> None:
        if not self.may(api.operation_of(version)):
            raise Refused(ErrorCode.cluster_authorization_failed, "Only brokers ask this, and only each other.")

    def check_speaks_for(self, broker_id: int) -> None:
        """Who says that it is a replica moves the high watermark (CVE-2018-1288): not on anybody's mere word. Below 0
        stands for no broker at all."""
        if broker_id >= 0 and self.broker_id != broker_id:
            raise Refused(ErrorCode.cluster_authorization_failed, "Only a broker can ask this, and only for itself.")
