"""Avro, through fastavro: plain, or in Confluent's wire format with a registry. Needs `ottla[avro]`."""

from __future__ import annotations

import io
import json
from types import ModuleType
from typing import Any

from ottla.serde.registry import Framing, SchemaRegistry, SerializationContext, registry_of, unframed


def _fastavro() -> ModuleType:
    """Imported on first use: it is an optional package."""
    try:
        import fastavro
    except ImportError as missing:
        raise ImportError("Avro needs fastavro: pip install 'ottla[avro]'", name=missing.name) from None
    return fastavro


class AvroSerializer:
    """`schema` as a dictionary or as JSON text. Without a registry the bytes are Avro's alone, and readers must know
    the schema from elsewhere."""

    def __init__(
        self, schema: dict[str, Any] | str, *, registry: SchemaRegistry | str | None = None, subject: str | None = None
    ) -> None:
        self._avro = _fastavro()
        plain = json.loads(schema) if isinstance(schema, str) else schema
        self._schema = self._avro.parse_schema(plain)
        self._framing = None if registry is None else Framing(registry, json.dumps(plain), "AVRO", subject)

    def __call__(self, value: Any, context: SerializationContext | None = None) -> bytes | None:
        if value is None:
            return None
        buffer = io.BytesIO()
        self._avro.schemaless_writer(buffer, self._schema, value)
        data = buffer.getvalue()
        return data if self._framing is None else self._framing.framed(data, context)


class AvroDeserializer:
    """With a registry: each record is read by its writer's schema, and returned in `schema` if given. Without one
    `schema` is the writer's."""

    def __init__(
        self, registry: SchemaRegistry | str | None = None, *, schema: dict[str, Any] | str | None = None
    ) -> None:
        self._avro = _fastavro()
        if registry is None and schema is None:
            raise ValueError("Avro cannot be read without a schema: give one, or a registry")
        plain = json.loads(schema) if isinstance(schema, str) else schema
        self._schema = None if plain is None else self._avro.parse_schema(plain)
        self._registry = None if registry is None else registry_of(registry)
        self._writers: dict[int, Any] = {}

    def __call__(self, data: bytes | None, context: SerializationContext | None = None) -> Any:
        if data is None:
            return None
        if self._registry is None:
            return self._avro.schemaless_reader(io.BytesIO(data), self._schema, None)
        schema_id, rest = unframed(data)
        return self._avro.schemaless_reader(io.BytesIO(rest), self._writer(schema_id), self._schema)

    def _writer(self, schema_id: int) -> Any:
        writer = self._writers.get(schema_id)
        if writer is None:
            assert self._registry is not None
            named: dict[str, Any] = {}
            found = self._registry.schema(schema_id)
            self._learn(found.references, named)
            writer = self._writers[schema_id] = self._avro.parse_schema(json.loads(found.text), named_schemas=named)
        return writer

    def _learn(self, references: tuple[tuple[str, str, int], ...], named: dict[str, Any]) -> None:
        """Referenced schemas come first."""
        assert self._registry is not None
        for _, subject, version in references:
            found = self._registry.version(subject, version)
            self._learn(found.references, named)
            self._avro.parse_schema(json.loads(found.text), named_schemas=named)
