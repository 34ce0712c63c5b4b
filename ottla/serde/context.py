"""SerializationContext: topic, field and headers of a key or value, for serializers that want to know."""

from __future__ import annotations

from typing import Protocol


class SerializationContext(Protocol):
    """What the clients here give, and confluent-kafka's `SerializationContext`."""

    @property
    def topic(self) -> str: ...

    @property
    def field(self) -> str:
        """`key` or `value`."""
