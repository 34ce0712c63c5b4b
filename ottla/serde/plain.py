"""Serializers of strings and JSON."""

from __future__ import annotations

import json
from typing import Any

from ottla.serde.registry import Framing, SchemaRegistry, SerializationContext, unframed


class StringSerializer:
    def __init__(self, encoding: str = "utf-8") -> None:
        self._encoding = encoding

    def __call__(self, value: object, context: SerializationContext | None = None) -> bytes | None:
        return None if value is None else str(value).encode(self._encoding)


class StringDeserializer:
    def __init__(self, encoding: str = "utf-8") -> None:
        self._encoding = encoding

    def __call__(self, data: bytes | None, context: SerializationContext | None = None) -> str | None:
        return None if data is None else data.decode(self._encoding)


class JsonSerializer:
    """Plain JSON; with a registry, behind the id of its JSON schema, as Confluent's clients write it. Nothing is
    checked against the schema."""

    def __init__(
        self,
        schema: dict[str, Any] | None = None,
        *,
        registry: SchemaRegistry | str | None = None,
        subject: str | None = None,
    ) -> None:
        self._framing = None
        if registry is not None:
            if schema is None:
                raise ValueError("a registry needs a schema: JsonSerializer(schema, registry=...)")
            self._framing = Framing(registry, json.dumps(schema), "JSON", subject)

    def __call__(self, value: object, context: SerializationContext | None = None) -> bytes | None:
        if value is None:
            return None
        data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        return data if self._framing is None else self._framing.framed(data, context)


class JsonDeserializer:
    """Plain JSON, or behind the id of a schema: which of the two is seen from the first byte."""

    def __call__(self, data: bytes | None, context: SerializationContext | None = None) -> Any:
        if data is None:
            return None
        if data[:1] == b"\0":
            _, data = unframed(data)
        return json.loads(data)
