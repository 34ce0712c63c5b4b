"""Ottla: a Kafka-compatible broker, and clients for any. Nothing is imported before it is used, so that every entry
point starts fast."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.client import (
        Admin,
        ClientError,
        Consumer,
        ConsumerRecord,
        GroupMetadata,
        NewTopic,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        Producer,
        RebalanceListener,
        RecordMetadata,
        TopicPartition,
    )

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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module("ottla.client"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
