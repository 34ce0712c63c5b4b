"""Records as the user of a consumer gets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from ottla.client.embedded import TopicPartition
from ottla.client.errors import ClientError
from ottla.client.positions import PositionError
from ottla.errors import ErrorCode
from ottla.wire.records import Headers, Record

K = TypeVar("K")
V = TypeVar("V")

Deserializer = Callable[[Any], Any]


class ConsumerRecord(NamedTuple, Generic[K, V]):
    """One record; key and value as the deserializers left them, bytes if there are none."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: K
    value: V
    headers: Headers


class NotDeserialized(PositionError):
    """A deserializer failed. The position stays at the record: `seek` beyond it skips it."""

    hint = "Seek to `offset` + 1 to go on behind the record."


class Opener:
    """Makes users' records out of the log's."""

    def __init__(self, key: Deserializer | None, value: Deserializer | None) -> None:
        self._key = key
        self._value = value
        self.plain = key is None and value is None

    def one(self, place: TopicPartition, record: Record) -> ConsumerRecord[Any, Any]:
        if self.plain:
            return ConsumerRecord(place[0], place[1], *record)
        offset, timestamp, key, value, headers = record
        try:
            if self._key is not None:
                key = self._key(key)
            if self._value is not None:
                value = self._value(value)
        except Exception as error:
            raise self._failed(place, offset, error) from error
        return ConsumerRecord(place[0], place[1], offset, timestamp, key, value, headers)

    def many(self, place: TopicPartition, records: list[Record]) -> list[ConsumerRecord[Any, Any]]:
        """As many as go well, at least one: the error of the first is raised."""
        topic, partition = place
        if self.plain:
            return [ConsumerRecord(topic, partition, *record) for record in records]
        opened: list[ConsumerRecord[Any, Any]] = []
        for record in records:
            try:
                opened.append(self.one(place, record))
            except ClientError:
                if not opened:
                    raise
                break
        return opened

    def _failed(self, place: TopicPartition, offset: int, error: Exception) -> NotDeserialized:
        message = f"{place} at offset {offset}: the deserializer failed: {type(error).__name__}: {error}"
        return NotDeserialized(message, place, offset, ErrorCode.corrupt_message)
