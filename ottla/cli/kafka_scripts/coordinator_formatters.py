"""Formatters for records of `__consumer_offsets` and `__transaction_state`: JSON as Kafka's own formatters print it.

One object after the other, without line ends, as Kafka's own do.
"""

from __future__ import annotations

import base64
import json
import struct
from typing import Any, Final, NamedTuple

from ottla.cli.formats import Rendered
from ottla.cli.kafka_scripts.options import ToolFailure
from ottla.client.consuming.consumer_records import ConsumerRecord
from ottla.coordinator import group_records, transaction_records
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
"""Fields whose names differ from Kafka's."""


def _schema(name: str, versions: tuple[int, int], flexible_from: int, fields: dict[str, Any]) -> type[Message]:
    """A message class from its fields (as `ottla.wire.tree` describes them) and their defaults."""
    defaults = {field.split()[0]: default for field, default in fields.items()}

    def __init__(self: Struct, **values: Any) -> None:
        for each, default in defaults.items():
            setattr(self, each, values.get(each, [] if default is UNSET else default))

    __init__.__kwdefaults__ = defaults
    kind = {"API_KEY": -1, "KIND": "data", "VERSIONS": versions, "FLEXIBLE_FROM": flexible_from}
    body = {"__module__": __name__, "__slots__": tuple(defaults), "__init__": __init__, "FIELDS": tuple(fields), **kind}
    return type(name, (Message,), body)


OffsetCommitValue: Final = _schema(
    "OffsetCommitValue",
    (0, 4),
    4,
    {
        "offset int64 0+": 0,
        "leader_epoch int32 3+": -1,
        "metadata string 0+": "",
        "commit_timestamp int64 0+": 0,
        "expire_timestamp int64 1-1": -1,
        "topic_id uuid 4+ tag 0": ZERO_UUID,
    },
)
PartitionsSchema: Final = _schema(
    "PartitionsSchema", (0, 1), 1, {"topic string 0+": "", "partition_ids []int32 0+": UNSET}
)
TransactionLogValue: Final = _schema(
    "TransactionLogValue",
    (0, 1),
    1,
    {
        "producer_id int64 0+": 0,
        "previous_producer_id int64 1+ tag 0": -1,
        "next_producer_id int64 1+ tag 1": -1,
        "producer_epoch int16 0+": 0,
        "next_producer_epoch int16 1+ tag 3": -1,
        "transaction_timeout_ms int32 0+": 0,
        "transaction_status int8 0+": 0,
        "transaction_partitions []PartitionsSchema 0+ null 0+": UNSET,
        "transaction_last_update_timestamp_ms int64 0+": 0,
        "transaction_start_timestamp_ms int64 0+": 0,
        "client_transaction_version int16 1+ tag 2": 0,
    },
)


class _RecordKind(NamedTuple):
    """The records that a formatter prints, and their decoder."""

    numbers: tuple[int, ...]
    coder: Any
    value: type[Message]


_OFFSETS: Final = _RecordKind((0, 1), group_records, OffsetCommitValue)
_GROUPS: Final = _RecordKind((2,), group_records, GroupMetadataValue)
_TRANSACTIONS: Final = _RecordKind((0,), transaction_records, TransactionLogValue)


def offsets() -> Rendered:
    return lambda record: _rendered(_OFFSETS, record)


def groups() -> Rendered:
    return lambda record: _rendered(_GROUPS, record)


def transactions() -> Rendered:
    return lambda record: _rendered(_TRANSACTIONS, record)


def _rendered(kind: _RecordKind, record: ConsumerRecord[Any, Any]) -> bytes:
    """Empty for a record of another kind. ToolFailure for a record that cannot be decoded."""
    if record.key is None:
        return b""
    try:
        number = _number(record.key, "key")
        if number not in kind.numbers:
            return b""
        key = {_camel(name): part for name, part in _key(kind, number, record.key).items()}
        fields: dict[str, Any] = {"key": {"type": number, "data": key}, "value": None}
        if record.value is not None:
            version = _number(record.value, "value")
            fields["value"] = {"version": version, "data": _data(kind, version, record.value)}
    except Unreadable as problem:
        raise ToolFailure(
            f"java.lang.RuntimeException: Could not read record at offset {record.offset} due to: {problem}"
        ) from None
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


class Unreadable(Exception):
    """Bytes that are not a record of a coordinator."""


def _number(data: bytes, what: str) -> int:
    if len(data) < _SHORT.size:
        raise Unreadable(f"Could not read version from {what}'s buffer.")
    return int(_SHORT.unpack_from(data)[0])


def _key(kind: _RecordKind, number: int, data: bytes) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = kind.coder.decode_key(data)._asdict()
        return fields
    except Fault as problem:
        raise Unreadable(f"Could not read record with version {number} from key's buffer due to: {problem}.") from None


def _data(kind: _RecordKind, version: int, data: bytes) -> dict[str, Any]:
    try:
        return _fields(messages.decode(kind.value, version, data, _SHORT.size, whole=False), version)
    except (BadFrame, struct.error, IndexError, UnicodeDecodeError) as problem:
        raise Unreadable(
            f"Could not read record with version {version} from value's buffer due to: {problem}."
        ) from None


def _fields(tree: Struct, version: int) -> dict[str, Any]:
    """Fields of this version, in the order of the schema; tagged fields only with a value other than the default."""
    unset = type(tree)()
    fields: dict[str, Any] = {}
    for field in tree.FIELDS:
        name, form, versions, *rest = field.split()
        first, _, last = versions.partition("-")
        if not int(first.rstrip("+")) <= version <= int(last or version):
            continue
        value = getattr(tree, name)
        if "tag" not in rest or value != getattr(unset, name):
            fields[_camel(name)] = _shown(value, form, version)
    return fields


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
