"""Injected faults: requests of clients that fail or are delayed because a test says so. A broker or a proxy asks
`Faults.meet` for every request."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Collection
from types import TracebackType
from typing import Final, Self

import ottla.broker.handlers  # noqa: F401 (registers what is served)
from ottla.broker.dispatch import served_apis
from ottla.config.named_options import did_you_mean
from ottla.errors import ErrorCode
from ottla.local.proxy import Interception
from ottla.wire.apis import APIS, METADATA
from ottla.wire.frame import framed, parse_request_header, parse_response_header, response_header
from ottla.wire.messages import decode_request, decode_response, encode_response
from ottla.wire.refusal import refusal
from ottla.wire.schema.metadata import MetadataResponse
from ottla.wire.schema.produce import ProduceRequest

DISCONNECT: Final = "disconnect"
"""Instead of an error: the connection is closed, and the request is not executed."""


class UnusedFault(UserWarning):
    """A fault was injected, and no request met it: the test proves nothing about it."""


class InjectedFault:
    """One injected fault. `hits`: the requests it has met; `cancel`, or the end of `with`, ends it."""

    def __init__(self, owner: Faults, api_key: int, error: ErrorCode | str | None, times: int | None, delay_s: float):
        self.hits = 0
        self.api_key = api_key
        self.error = error
        self.left = times
        self.delay_s = delay_s
        self._owner = owner

    def __str__(self) -> str:
        what = f"delay_ms={self.delay_s * 1000:g}" if self.error is None else f"error={_name(self.error)!r}"
        return f"inject({APIS[self.api_key].name!r}, {what})"

    def cancel(self) -> None:
        self._owner.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


class Faults:
    """Faults that are pending. Added in the test's thread, met in the broker's."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._faults: list[InjectedFault] = []

    def add(
        self, api: str, error: ErrorCode | int | str | None = None, times: int | None = 1, delay_ms: float = 0
    ) -> InjectedFault:
        if error is None and not delay_ms:
            raise ValueError("a fault needs error=... or delay_ms=...")
        if times is not None and times < 1:
            raise ValueError("times must be at least 1; times=None: until it is cancelled")
        fault = InjectedFault(self, api_key_of(api), error_of(error), times, delay_ms / 1000)
        with self._guard:
            self._faults.append(fault)
        return fault

    def remove(self, fault: InjectedFault) -> None:
        with self._guard:
            if fault in self._faults:
                self._faults.remove(fault)
        _warn_unused([fault])

    def clear(self) -> None:
        """End all faults; warns about those that no request has met."""
        with self._guard:
            left, self._faults = self._faults, []
        _warn_unused(left)

    def meet(self, frame: memoryview) -> Interception | None:
        """What to do with the request in `frame` (without its length); None: serve it."""
        if not self._faults:
            return None
        fault = self._taken(int.from_bytes(frame[:2], "big", signed=True))
        if fault is None:
            return None
        code = fault.error
        if code is None:
            return Interception(fault.delay_s)
        if not isinstance(code, ErrorCode):
            return Interception(fault.delay_s, disconnect=True)
        if fault.api_key == METADATA:  # clients need the list of brokers, which only the broker can send
            version = int.from_bytes(frame[2:4], "big", signed=True)
            return Interception(fault.delay_s, rewrite=lambda answer: refused_in(memoryview(answer), version, code))
        answer = refused(frame, code)
        return Interception(fault.delay_s, disconnect=answer is None, answer=answer)

    def _taken(self, api_key: int) -> InjectedFault | None:
        with self._guard:
            for fault in self._faults:
                if fault.api_key == api_key:
                    fault.hits += 1
                    if fault.left is not None:
                        fault.left -= 1
                        if not fault.left:
                            self._faults.remove(fault)
                    return fault
        return None


NOT_SERVED: Final = frozenset(
    """
    LeaderAndIsr StopReplica UpdateMetadata ControlledShutdown SaslHandshake SaslAuthenticate DescribeAcls CreateAcls
    DeleteAcls CreateDelegationToken RenewDelegationToken ExpireDelegationToken DescribeDelegationToken Vote
    BeginQuorumEpoch EndQuorumEpoch DescribeQuorum UpdateFeatures Envelope FetchSnapshot BrokerRegistration
    BrokerHeartbeat UnregisterBroker AllocateProducerIds ControllerRegistration GetTelemetrySubscriptions PushTelemetry
    AssignReplicasToDirs ListConfigResources DescribeUserScramCredentials AlterUserScramCredentials AlterPartition
    AlterReplicaLogDirs DescribeClientQuotas AlterClientQuotas AddRaftVoter RemoveRaftVoter UpdateRaftVoter
    ShareGroupHeartbeat ShareGroupDescribe ShareFetch ShareAcknowledge InitializeShareGroupState ReadShareGroupState
    WriteShareGroupState DeleteShareGroupState ReadShareGroupStateSummary DescribeShareGroupOffsets
    AlterShareGroupOffsets DeleteShareGroupOffsets StreamsGroupHeartbeat StreamsGroupDescribe
    """.lower().split()
)
"""APIs of Kafka, for the error message. Those that are served are found first."""


def _warn_unused(faults: Collection[InjectedFault]) -> None:
    for fault in faults:
        if not fault.hits:
            warnings.warn(
                f"{fault} never fired: no client sent {APIS[fault.api_key].name} in the meantime",
                UnusedFault,
                stacklevel=2,
            )


def _name(error: ErrorCode | str) -> str:
    return error.name if isinstance(error, ErrorCode) else error


def api_key_of(name: str) -> int:
    """`Produce`, `produce`, `OffsetCommit`, `offset_commit`: an API that brokers serve to clients."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    served = {api.name.lower(): api for api in served_apis() if not api.between_brokers}
    if plain in served:
        return served[plain].key
    names = {api.name.lower(): api.name for api in served.values()}
    if plain in {api.name.lower() for api in APIS.values()}:
        raise ValueError(f"{name} is not served to clients: no request would meet this fault")
    if plain in NOT_SERVED:
        raise ValueError(f"{name} is an API of Kafka that Ottla does not serve: no request would meet this fault")
    shown = {plain: repr(each) for plain, each in names.items()}
    hint = did_you_mean(plain, names, f"there are {', '.join(names.values())}", shown=shown)
    raise ValueError(f"there is no API {name!r}{hint}")


def error_of(error: ErrorCode | int | str | None) -> ErrorCode | str | None:
    """Parse a number, or a name as Kafka or librdkafka writes it; `disconnect` is returned as it is."""
    if error is None or error == DISCONNECT:
        return error if error is None else DISCONNECT
    if isinstance(error, int):
        return ErrorCode(error)
    name = error.lower().removeprefix("_")
    if name not in ErrorCode.__members__:
        known = {each: repr(each) for each in (*ErrorCode.__members__, DISCONNECT)}
        hint = did_you_mean(name, known, f"for example 'not_leader_or_follower', or {DISCONNECT!r}", shown=known)
        raise ValueError(f"there is no error {error!r}{hint}")
    return ErrorCode[name]


def refused(frame: memoryview, code: ErrorCode) -> bytes | None:
    """The response frame, with its length, that refuses the request in `frame` (without its length). None: the response
    has no field for an error, or the client expects no response."""
    api_key, version, correlation_id, _, pos = parse_request_header(frame)
    request = decode_request(api_key, version, frame, pos)
    if isinstance(request, ProduceRequest) and request.acks == 0:
        return None
    response = refusal(request, version, code, of_each=True)
    if response is None:
        return None
    header = response_header(api_key, version, correlation_id)
    return framed(header, encode_response(api_key, version, response))


def refused_in(answer: memoryview, version: int, code: ErrorCode) -> bytes:
    """The Metadata response (a frame with its length), with this error for each topic."""
    correlation_id, pos = parse_response_header(answer[4:], METADATA, version)
    response = decode_response(METADATA, version, answer[4:], pos)
    assert isinstance(response, MetadataResponse)
    for topic in response.topics:
        topic.error_code = code
        topic.partitions = []
    header = response_header(METADATA, version, correlation_id)
    return framed(header, encode_response(METADATA, version, response))
