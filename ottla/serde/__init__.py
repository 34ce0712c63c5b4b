"""Serializers and deserializers: strings, JSON, Avro; with or without a schema registry.

    producer = Producer(value_serializer=AvroSerializer(schema, registry="http://localhost:8081"))
    consumer = Consumer("orders", value_deserializer=AvroDeserializer("http://localhost:8081"))

Each is a callable that takes what to convert and, if it wants to, where it goes (topic, "key" or "value", headers): as
confluent-kafka's own serializers do, which can replace these, and these them.
"""

from ottla.serde.avro_serde import AvroDeserializer, AvroSerializer
from ottla.serde.plain import JsonDeserializer, JsonSerializer, StringDeserializer, StringSerializer
from ottla.serde.registry import RegistryError, SchemaRegistry

__all__ = [
    "AvroDeserializer",
    "AvroSerializer",
    "JsonDeserializer",
    "JsonSerializer",
    "RegistryError",
    "SchemaRegistry",
    "StringDeserializer",
    "StringSerializer",
]
