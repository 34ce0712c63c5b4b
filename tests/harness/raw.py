"""A client made of a socket, for what well-behaved clients never send and what they never show.

Requests and answers are plain dictionaries, the same for every version of an API: what a version lacks is
left out, what is not given is zero. kio does the bytes, so nothing of the broker's own codec takes part.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import itertools
import socket
import struct
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Any

from crc32c import crc32c
from kio.index import load_entity_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from tests.conftest import Served

SOCKET_TIMEOUT_S = 15.0
Entity = Any


class Closed(Exception):
    """The broker closed the connection."""


def build(kind: type[Entity], fields: dict[str, Any]) -> Entity:
    """A kio entity from whatever the dictionary has of its fields."""
    hints = typing.get_type_hints(kind)
    values = {}
    for field in dataclasses.fields(kind):
        if field.name in fields:
            values[field.name] = convert(hints[field.name], fields[field.name])
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            values[field.name] = zero(hints[field.name])
    return kind(**values)


def parts(hint: Any) -> tuple[Any, bool]:
    """A type hint without its None, and whether it had one."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return kinds[0], True
    return hint, False


def is_duration(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, datetime.timedelta)


def convert(hint: Any, value: Any) -> Any:
    kind, _ = parts(hint)
    if value is None:
        return None
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        return tuple(convert(item, each) for each in value)
    if dataclasses.is_dataclass(kind):
        return build(typing.cast(type, kind), value)
    if is_duration(kind) and isinstance(value, int):
        return datetime.timedelta(milliseconds=value)
    return value


def zero(hint: Any) -> Any:
    kind, nullable = parts(hint)
    if nullable:
        return None
    if typing.get_origin(kind) is tuple:
        return ()
    if dataclasses.is_dataclass(kind):
        return build(typing.cast(type, kind), {})
    if is_duration(kind):
        return datetime.timedelta(0)
    return {bool: False, str: "", bytes: b""}.get(underlying(kind), 0)


def underlying(kind: Any) -> Any:
    while hasattr(kind, "__supertype__"):
        kind = kind.__supertype__
    return next((base for base in (bool, str, bytes) if isinstance(kind, type) and issubclass(kind, base)), int)


def plain(value: Any) -> Any:
    """Entities as dictionaries, error codes and durations as numbers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, ErrorCode):
        return int(value.value)
    if isinstance(value, datetime.timedelta):
        return round(value.total_seconds() * 1000)
    return value


class Connection:
    """One TCP connection to a broker, and nothing between the test and the bytes."""

    def __init__(self, broker: Served, timeout_s: float = SOCKET_TIMEOUT_S) -> None:
        self.socket = socket.create_connection((broker.host, broker.port), timeout=timeout_s)
        self.correlation_ids = itertools.count(1)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_frame(self, payload: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(payload)) + payload)

    def receive_exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                chunk = self.socket.recv(count - len(data))
            except ConnectionError as error:
                raise Closed from error
            if not chunk:
                raise Closed(f"after {len(data)} of {count} bytes")
            data += chunk
        return data

    def receive_frame(self) -> bytes:
        (length,) = struct.unpack(">i", self.receive_exactly(4))
        return self.receive_exactly(length)

    def assert_closed(self) -> None:
        """The broker ends the connection without another byte."""
        try:
            rest = self.socket.recv(64)
        except ConnectionError:
            return
        assert rest == b"", f"the broker answered {rest.hex()} instead of closing"

    def send_request(self, api: str, version: int, fields: dict[str, Any]) -> int:
        kind = load_entity_schema(api, version, EntityType.request)
        correlation_id = next(self.correlation_ids)
        self.send_frame(encode_request(kind, correlation_id, fields))
        return correlation_id

    def receive_response(self, api: str, version: int, correlation_id: int | None = None) -> dict[str, Any]:
        payload = self.receive_frame()
        kind: Entity = load_entity_schema(api, version, EntityType.response)
        header, header_bytes = entity_reader(kind.__header_schema__)(payload, 0)
        if correlation_id is not None:
            assert header.correlation_id == correlation_id, "an answer to another request"
        body, body_bytes = entity_reader(kind)(payload, header_bytes)
        assert header_bytes + body_bytes == len(payload), "bytes left over after the answer"
        answer = plain(body)
        assert isinstance(answer, dict)
        return answer

    def call(self, api: str, version: int, **fields: Any) -> dict[str, Any]:
        return self.receive_response(api, version, self.send_request(api, version, fields))


def encode_request(kind: Entity, correlation_id: int, fields: dict[str, Any]) -> bytes:
    header = build(
        kind.__header_schema__,
        {
            "request_api_key": kind.__api_key__,
            "request_api_version": kind.__version__,
            "correlation_id": correlation_id,
            "client_id": "raw",
        },
    )
    buffer = io.BytesIO()
    entity_writer(kind.__header_schema__)(buffer, header)
    entity_writer(kind)(buffer, build(kind, fields))
    return buffer.getvalue()


def header_v1(api_key: int, version: int, correlation_id: int = 1, client_id: bytes = b"raw") -> bytes:
    """A request header written by hand, for keys and versions that do not exist."""
    return struct.pack(">hhih", api_key, version, correlation_id, len(client_id)) + client_id


def varint(number: int) -> bytes:
    """Zigzag, as inside records."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def record(offset_delta: int, value: bytes, key: bytes | None = None, timestamp_delta: int = 0) -> bytes:
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta)
    body += varint(-1) if key is None else varint(len(key)) + key
    body += varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def batch(values: Sequence[bytes] = (b"v",), **lies: Any) -> bytes:
    """A record batch; any header field, `records` and `crc` may be given a false value."""
    records = lies.get("records", b"".join(record(i, value) for i, value in enumerate(values)))
    timestamp = lies.get("base_timestamp", 1_750_000_000_000)
    checked = struct.pack(
        ">hiqqqhii",
        lies.get("attributes", 0),
        lies.get("last_offset_delta", len(values) - 1),
        timestamp,
        lies.get("max_timestamp", timestamp),
        lies.get("producer_id", -1),
        lies.get("producer_epoch", -1),
        lies.get("base_sequence", -1),
        lies.get("record_count", len(values)),
    )
    checked += records
    crc = lies.get("crc", crc32c(checked))
    length = lies.get("length", 9 + len(checked))
    start = struct.pack(
        ">qiibI", lies.get("base_offset", 0), length, lies.get("leader_epoch", -1), lies.get("magic", 2), crc
    )
    return start + checked


def produce_fields(topic: str, records: bytes | None, acks: int = -1, partition: int = 0) -> dict[str, Any]:
    return {
        "acks": acks,
        "timeout": 10_000,
        "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": records}]}],
    }


def produce(connection: Connection, topic: str, records: bytes | None, **options: Any) -> dict[str, Any]:
    """Send one batch to one partition; the partition's answer."""
    version = options.pop("version", 9)
    answer = connection.call("produce", version, **produce_fields(topic, records, **options))
    partition: dict[str, Any] = answer["responses"][0]["partition_responses"][0]
    return partition


def fetch_fields(topic: str, offset: int = 0, **options: Any) -> dict[str, Any]:
    """A sessionless Fetch of partition 0."""
    partition = {
        "partition": options.pop("partition", 0),
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": options.pop("partition_max_bytes", 1 << 20),
    }
    base = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 24, "session_epoch": -1}
    named = {"topic": topic, "topic_id": options.pop("topic_id", None), "partitions": [partition]}
    return {**base, "topics": [named], **options}


def fetch_request(topic: str, partitions: Iterable[int]) -> bytes:
    """The bytes of a Fetch of up to 1 MB of each partition, from offset 0 on."""
    fields: dict[str, Any] = fetch_fields(topic)
    first = fields["topics"][0]["partitions"][0]
    fields["topics"][0]["partitions"] = [{**first, "partition": index} for index in partitions]
    frame = encode_request(load_entity_schema("fetch", 11, EntityType.request), 1, {**fields, "rack_id": ""})
    return struct.pack(">i", len(frame)) + frame


def fetch(connection: Connection, topic: str, offset: int = 0, **options: Any) -> dict[str, Any]:
    """Fetch one partition; its answer."""
    version = options.pop("version", 11)
    answer = connection.call("fetch", version, **fetch_fields(topic, offset, **options))
    partition: dict[str, Any] = answer["responses"][0]["partitions"][0]
    return partition
