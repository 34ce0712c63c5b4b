"""Ottla: a Kafka-compatible broker, and clients for any. Nothing is imported before it is used, so that every entry
point starts fast."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.client.admin import Admin, NewTopic
    from ottla.client.consuming.consumer import Consumer
    from ottla.client.consuming.consumer_coordinator import RebalanceListener
    from ottla.client.consuming.consumer_records import ConsumerRecord
    from ottla.client.errors import ClientError
    from ottla.client.producing.producer import Producer
    from ottla.client.values import GroupMetadata, OffsetAndMetadata, OffsetAndTimestamp, RecordMetadata, TopicPartition

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
    "Consumer": "consuming.consumer",
    "ConsumerRecord": "consuming.consumer_records",
    "NewTopic": "admin",
    "Producer": "producing.producer",
    "RebalanceListener": "consuming.consumer_coordinator",
}
"""Where in `client` a name is defined, unless in `values`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"ottla.client.{_HOMES.get(name, 'values')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
