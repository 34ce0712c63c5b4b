"""kio as the oracle: random messages as kio's dataclasses, and the same as ours."""

from __future__ import annotations

import dataclasses
import datetime
import io
import random
import sys
import types
import typing
import uuid
from functools import cache
from importlib import import_module
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from ottla.wire.tree import ZERO_UUID, Message
from tools.generate_messages import API_KEYS, DATA

EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}

APIS = [api_key_map[key] for key in API_KEYS if key in api_key_map]
CASES = [
    (api, kind, v) for api in APIS for kind in ("request", "response") for v in sorted(schema_name_map[api])
]
CASES += [(name, "data", v) for name in DATA for v in sorted(schema_name_map[name])]
"""Every message there is: API, kind, version."""


@cache
def kio_class(api: str, kind: str, version: int) -> Any:
    module = import_module(f"kio.schema.{api}.v{version}.{kind}")
    return next(
        cls
        for cls in vars(module).values()
        if getattr(cls, "__module__", "") == module.__name__ and cls.__type__ is EntityType[kind]
    )


def our_class(api: str, kind: str, version: int) -> type[Message]:
    name = kio_class(api, kind, version).__name__
    return typing.cast(type[Message], getattr(import_module(f"ottla.wire.schema.{api}"), name))


def kio_bytes(message: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


def kio_message(cls: Any, data: bytes) -> Any:
    message, size = entity_reader(cls)(data, 0)
    assert size == len(data)
    return message


def random_message(cls: Any, chance: random.Random) -> Any:
    values = {}
    for field in dataclasses.fields(cls):
        if "tag" in field.metadata and field.default is not dataclasses.MISSING and chance.random() < 0.5:
            values[field.name] = field.default
        else:
            values[field.name] = random_value(field.type, field, chance)
    return cls(**values)


def random_value(kind: Any, field: Any, chance: random.Random) -> Any:
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        # kio writes a tagged field as if it could not be null.
        if "tag" not in field.metadata and chance.random() < 0.3:
            return None
        return random_value(typing.get_args(kind)[0], field, chance)
    if typing.get_origin(kind) is tuple:
        element = typing.get_args(kind)[0]
        count = chance.choice((0, 1, 2, 3, 20 if dataclasses.is_dataclass(element) else 200))
        return tuple(random_value(element, field, chance) for _ in range(count))
    if dataclasses.is_dataclass(kind):
        return random_message(kind, chance)
    return random_primitive(field.metadata["kafka_type"], chance)


def random_primitive(kafka_type: str, chance: random.Random) -> Any:
    match kafka_type:
        case "string":
            length = chance.choice((0, 1, 5, 5, 5, 126, 127, 128, 400))
            return "".join(chance.choice("abc-._é漢𝄞\0") for _ in range(length))
        case "bytes" | "records":
            return chance.randbytes(chance.choice((0, 1, 16, 126, 127, 128, 20_000)))
        case "uuid":
            return uuid.UUID(bytes=chance.randbytes(16))
        case "bool":
            return chance.random() < 0.5
        case "float64":
            return chance.uniform(-1e9, 1e9)
        case "error_code":
            return chance.choice(list(ErrorCode))
        case "uint16":
            return chance.randrange(2**16)
        case "timedelta_i32" | "timedelta_i64":
            return datetime.timedelta(milliseconds=chance.randrange(-(2**31), 2**31))
        case "datetime_i64":
            return EPOCH + datetime.timedelta(milliseconds=chance.randrange(2**40))
    half = 1 << BITS[kafka_type] - 1
    return chance.choice((0, 1, -1, half - 1, -half, chance.randrange(-half, half)))


def ours(message: Any, cls: type | None = None) -> Any:
    """kio's tree as ours. Fields that this version lacks keep their defaults."""
    root = cls or getattr(
        import_module(f"ottla.wire.schema.{type(message).__module__.split('.')[2]}"), type(message).__name__
    )
    values = {}
    for field in dataclasses.fields(message):
        kafka_type = field.metadata.get("kafka_type", "")
        timed = kafka_type in ("timedelta_i32", "timedelta_i64", "datetime_i64")
        name = field.name + ("_ms" if timed else "")
        values[name] = our_value(getattr(message, field.name), kafka_type, root, name)
    return root(**values)


def our_value(value: Any, kafka_type: str, owner: Any, name: str) -> Any:
    if isinstance(value, tuple):
        return [our_value(item, kafka_type, owner, name) for item in value]
    if dataclasses.is_dataclass(value):
        kind = next(line.split()[1] for line in owner.FIELDS if line.startswith(f"{name} "))
        return ours(value, getattr(sys.modules[owner.__module__], kind.removeprefix("[]")))
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // datetime.timedelta(milliseconds=1)
    if value is None:
        return {"uuid": ZERO_UUID, "datetime_i64": -1}.get(kafka_type)
    return int(value) if isinstance(value, ErrorCode) else value
