"""Confluent's wire format: a zero byte, the schema's id in four bytes, then the data.

The id is that of a registry, under which the writer has registered its schema as a version of a subject. By default the
subject is named after the topic: `orders-value`, `orders-key`.
"""

from __future__ import annotations

import struct
from typing import Final, Protocol

from ottla.serde.registry import SchemaRegistry, registry_of

_FRAME: Final = struct.Struct(">bI")
MAGIC: Final = 0


class SerializationContext(Protocol):
    """What the clients here give, and confluent-kafka's `SerializationContext`."""

    @property
    def topic(self) -> str: ...

    @property
    def field(self) -> str:
        """`key` or `value`."""


class Framing:
    """Registers a schema at its first use, once for each subject."""

    def __init__(self, registry: SchemaRegistry | str, schema: str, kind: str, subject: str | None) -> None:
        self._registry = registry_of(registry)
        self._schema = schema
        self._kind = kind
        self._subject = subject

    def framed(self, data: bytes, context: SerializationContext | None) -> bytes:
        subject = self._subject
        if subject is None:
            if context is None:
                raise ValueError("there is no topic to name the subject after: give one, subject=...")
            subject = f"{context.topic}-{context.field}"
        return _FRAME.pack(MAGIC, self._registry.register(subject, self._schema, self._kind)) + data


def unframed(data: bytes) -> tuple[int, bytes]:
    """The schema's id, and what it describes."""
    if len(data) < _FRAME.size or data[0] != MAGIC:
        raise ValueError(f"no schema id stands before the data: it begins with {bytes(data[:5])!r}")
    return _FRAME.unpack_from(data)[1], data[_FRAME.size :]
