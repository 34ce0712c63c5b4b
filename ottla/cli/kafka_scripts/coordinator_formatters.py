"""Records of `__consumer_offsets` and `__transaction_state` as JSON: what Kafka's formatters for them print.

One object after the other, without a line end between them, as Kafka's own write them.
"""

from __future__ import annotations

import base64
import json
import struct
from typing import Any, Final, NamedTuple

from ottla.cli.formats import Rendered
from ottla.cli.kafka_scripts.options import ToolFailure
from ottla.client.consuming.consumer_records import ConsumerRecord
from ottla.coordinator import group_records as group_records
from ottla.coordinator import transaction_records
from ottla.coordinator.group_record_values import GroupMetadataValue
from ottla.errors import BadFrame, Fault
from ottla.wire import messages
from ottla.wire.tree import UNSET, ZERO_UUID, Message, Struct

_SHORT: Final = struct.Struct(">h")
_RENAMED: Final = {
    "current_state_timestamp_ms": "currentStateTimestamp",
    "rebalance_timeout_ms": "rebalanceTimeout",
    "session_timeout_ms": "sessionTimeout",
    "group_id": "group",
}
"""Where our name is not Kafka's in another spelling."""


class OffsetCommitValue(Message):
    __slots__ = ("commit_timestamp", "expire_timestamp", "leader_epoch", "metadata", "offset", "topic_id")
    API_KEY = -1
    KIND = "data"
    VERSIONS = (0, 4)
    FLEXIBLE_FROM = 4
    FIELDS = (
        "offset int64 0+",
        "leader_epoch int32 3+",
        "metadata string 0+",
        "commit_timestamp int64 0+",
        "expire_timestamp int64 1-1",
        "topic_id uuid 4+ tag 0",
    )

    def __init__(
        self,
        *,
        offset: int = 0,
        leader_epoch: int = -1,
        metadata: str = "",
        commit_timestamp: int = 0,
        expire_timestamp: int = -1,
        topic_id: bytes = ZERO_UUID,
    ) -> None:
        self.offset: int = offset
        self.leader_epoch: int = leader_epoch
        self.metadata: str = metadata
        self.commit_timestamp: int = commit_timestamp
        self.expire_timestamp: int = expire_timestamp
        self.topic_id: bytes = topic_id


class PartitionsSchema(Struct):
    __slots__ = ("partition_ids", "topic")
    FIELDS = (
        "topic string 0+",
        "partition_ids []int32 0+",
    )

    def __init__(self, *, topic: str = "", partition_ids: list[int] = UNSET) -> None:
        self.topic: str = topic
        self.partition_ids: list[int] = [] if partition_ids is UNSET else partition_ids


class TransactionLogValue(Message):
    __slots__ = (
        "client_transaction_version",
        "next_producer_epoch",
        "next_producer_id",
        "previous_producer_id",
        "producer_epoch",
        "producer_id",
        "transaction_last_update_timestamp_ms",
        "transaction_partitions",
        "transaction_start_timestamp_ms",
        "transaction_status",
        "transaction_timeout_ms",
    )
    API_KEY = -1
    KIND = "data"
    VERSIONS = (0, 1)
    FLEXIBLE_FROM = 1
    FIELDS = (
        "producer_id int64 0+",
        "previous_producer_id int64 1+ tag 0",
        "next_producer_id int64 1+ tag 1",
        "producer_epoch int16 0+",
        "next_producer_epoch int16 1+ tag 3",
        "transaction_timeout_ms int32 0+",
        "transaction_status int8 0+",
        "transaction_partitions []PartitionsSchema 0+ null 0+",
        "transaction_last_update_timestamp_ms int64 0+",
        "transaction_start_timestamp_ms int64 0+",
        "client_transaction_version int16 1+ tag 2",
    )

    def __init__(
        self,
        *,
        producer_id: int = 0,
        previous_producer_id: int = -1,
        next_producer_id: int = -1,
        producer_epoch: int = 0,
        next_producer_epoch: int = -1,
        transaction_timeout_ms: int = 0,
        transaction_status: int = 0,
        transaction_partitions: list[PartitionsSchema] | None = UNSET,
        transaction_last_update_timestamp_ms: int = 0,
        transaction_start_timestamp_ms: int = 0,
        client_transaction_version: int = 0,
    ) -> None:
        self.producer_id: int = producer_id
        self.previous_producer_id: int = previous_producer_id
        self.next_producer_id: int = next_producer_id
        self.producer_epoch: int = producer_epoch
        self.next_producer_epoch: int = next_producer_epoch
        self.transaction_timeout_ms: int = transaction_timeout_ms
        self.transaction_status: int = transaction_status
        self.transaction_partitions: list[PartitionsSchema] | None = (
            [] if transaction_partitions is UNSET else transaction_partitions
        )
        self.transaction_last_update_timestamp_ms: int = transaction_last_update_timestamp_ms
        self.transaction_start_timestamp_ms: int = transaction_start_timestamp_ms
        self.client_transaction_version: int = client_transaction_version


class _Kind(NamedTuple):
    """Which records a formatter prints, and how it reads them."""

    numbers: tuple[int, ...]
    coder: Any
    value: type[Message]


_OFFSETS: Final = _Kind((0, 1), group_records, OffsetCommitValue)
_GROUPS: Final = _Kind((2,), group_records, GroupMetadataValue)
_TRANSACTIONS: Final = _Kind((0,), transaction_records, TransactionLogValue)


def offsets() -> Rendered:
    return lambda record: _rendered(_OFFSETS, record)


def groups() -> Rendered:
    return lambda record: _rendered(_GROUPS, record)


def transactions() -> Rendered:
    return lambda record: _rendered(_TRANSACTIONS, record)


def _rendered(kind: _Kind, record: ConsumerRecord[Any, Any]) -> bytes:
    """Nothing for a record of another kind. ToolFailure for what is none at all."""
    if record.key is None:
        return b""
    try:
        number = _number(record.key, "key")
        if number not in kind.numbers:
            return b""
        key = {_camel(name): part for name, part in _key(kind, number, record.key).items()}
        told: dict[str, Any] = {"key": {"type": number, "data": key}, "value": None}
        if record.value is not None:
            version = _number(record.value, "value")
            told["value"] = {"version": version, "data": _data(kind, version, record.value)}
    except Unreadable as problem:
        raise ToolFailure(
            f"java.lang.RuntimeException: Could not read record at offset {record.offset} due to: {problem}"
        ) from None
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()


class Unreadable(Exception):
    """Bytes that are no record of a coordinator."""


def _number(data: bytes, what: str) -> int:
    if len(data) < _SHORT.size:
        raise Unreadable(f"Could not read version from {what}'s buffer.")
    return int(_SHORT.unpack_from(data)[0])


def _key(kind: _Kind, number: int, data: bytes) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = kind.coder.decode_key(data)._asdict()
        return fields
    except Fault as problem:
        raise Unreadable(f"Could not read record with version {number} from key's buffer due to: {problem}.") from None


def _data(kind: _Kind, version: int, data: bytes) -> dict[str, Any]:
    try:
        return _fields(messages.decode(kind.value, version, data, _SHORT.size, whole=False), version)
    except (BadFrame, struct.error, IndexError, UnicodeDecodeError) as problem:
        raise Unreadable(
            f"Could not read record with version {version} from value's buffer due to: {problem}."
        ) from None


def _fields(tree: Struct, version: int) -> dict[str, Any]:
    """What this version has, in the order of the schema; tagged fields only where they say something."""
    unset = type(tree)()
    told: dict[str, Any] = {}
    for field in tree.FIELDS:
        name, form, versions, *rest = field.split()
        first, _, last = versions.partition("-")
        if not int(first.rstrip("+")) <= version <= int(last or version):
            continue
        value = getattr(tree, name)
        if "tag" not in rest or value != getattr(unset, name):
            told[_camel(name)] = _shown(value, form, version)
    return told


def _shown(value: Any, form: str, version: int) -> Any:
    if isinstance(value, list):
        return [_shown(each, form.removeprefix("[]"), version) for each in value]
    if isinstance(value, Struct):
        return _fields(value, version)
    if form == "uuid":
        return base64.urlsafe_b64encode(value).decode().rstrip("=")
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _camel(name: str) -> str:
    if name in _RENAMED:
        return _RENAMED[name]
    head, *others = name.split("_")
    return head + "".join(other.title() for other in others)
