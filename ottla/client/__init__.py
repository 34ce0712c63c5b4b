"""Clients of a cluster, Ottla's or any that speaks Kafka's protocol: producer, consumer, administration.

`values` has what users write, `errors` what they catch. `core` finds brokers and carries requests; `group` joins
consumer groups; `producing`, `consuming` and `admin` are built on these and know nothing of each other. Names are
imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ottla.client.admin import Admin, NewTopic
    from ottla.client.consuming.consumer import Consumer
    from ottla.client.consuming.consumer_records import ConsumerRecord
    from ottla.client.consuming.subscription import RebalanceListener
    from ottla.client.errors import ClientError
    from ottla.client.producing.producer import Producer
    from ottla.client.values import (
        GroupMetadata,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        RecordMetadata,
        TopicPartition,
    )

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
]

_HOMES: Final = {
    "Admin": "admin",
    "ClientError": "errors",
    "Consumer": "consuming.consumer",
    "ConsumerRecord": "consuming.consumer_records",
    "NewTopic": "admin",
    "Producer": "producing.producer",
    "RebalanceListener": "consuming.subscription",
}
"""Where a name is defined; the others are in `values`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'values')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
