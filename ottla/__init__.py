"""Ottla: a Kafka-compatible broker, and clients for any. Nothing is imported before it is used, so that every entry
point starts fast."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.client.admin import Admin, NewTopic
    from ottla.client.consumer import Consumer
    from ottla.client.consumer_records import ConsumerRecord
    from ottla.client.deliveries import RecordMetadata
    from ottla.client.embedded import TopicPartition
    from ottla.client.errors import ClientError
    from ottla.client.group_offsets import GroupMetadata, OffsetAndMetadata
    from ottla.client.offset_queries import OffsetAndTimestamp
    from ottla.client.producer import Producer
    from ottla.client.subscription import RebalanceListener

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "ClientError",
    "Consumer",
    "ConsumerRecord",
    "GroupMetadata",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Producer",
    "RebalanceListener",
    "RecordMetadata",
    "TopicPartition",
    "__version__",
]

_HOMES = {
    "Admin": "admin",
    "ClientError": "errors",
    "Consumer": "consumer",
    "ConsumerRecord": "consumer_records",
    "GroupMetadata": "group_offsets",
    "NewTopic": "admin",
    "OffsetAndMetadata": "group_offsets",
    "OffsetAndTimestamp": "offset_queries",
    "Producer": "producer",
    "RebalanceListener": "subscription",
    "RecordMetadata": "deliveries",
    "TopicPartition": "embedded",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"ottla.client.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
