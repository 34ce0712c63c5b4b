"""Records as the user of a consumer gets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from ottla.client.embedded import TopicPartition
from ottla.client.errors import ClientError
from ottla.client.positions import PositionError
from ottla.client.serialization import converter
from ottla.errors import ErrorCode
from ottla.wire.records import Headers, Record

K = TypeVar("K")
V = TypeVar("V")

Deserializer = Callable[..., Any]
"""Of one argument, or of two: see `serialization`."""


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
        self._key = None if key is None else converter(key, "key")
        self._value = None if value is None else converter(value, "value")
        self.plain = key is None and value is None

    def one(self, place: TopicPartition, record: Record) -> ConsumerRecord[Any, Any]:
        if self.plain:
            return ConsumerRecord(place[0], place[1], *record)
        offset, timestamp, key, value, headers = record
        try:
            if self._key is not None:
                key = self._key(key, place[0], headers)
            if self._value is not None:
                value = self._value(value, place[0], headers)
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


Records = list[ConsumerRecord[Any, Any]]


class Shelf:
    """Records that were taken from a consumer to be shown one by one, in another thread than the consumer's.

    All of its state is one tuple, so whoever looks from elsewhere sees a moment that was.
    """

    def __init__(self) -> None:
        self._state: tuple[Records, int] = ([], 0)
        self.done = False
        """The record shown last has been dealt with."""

    def fill(self, records: Records) -> None:
        self._state = records, 0

    def next(self) -> ConsumerRecord[Any, Any] | None:
        records, at = self._state
        if at >= len(records):
            return None
        self._state = records, at + 1
        return records[at]

    def rest(self) -> Records:
        records, at = self._state
        return records[at:]

    def unseen(self) -> dict[TopicPartition, int]:
        """The first record of each partition that was not shown."""
        return _firsts(self.rest())

    def unconfirmed(self) -> dict[TopicPartition, int]:
        """The same, counting the one that was shown last: whoever got it may not be done with it."""
        records, at = self._state
        return _firsts(records[at if self.done else max(0, at - 1) :])


def _firsts(records: Records) -> dict[TopicPartition, int]:
    firsts: dict[TopicPartition, int] = {}
    for record in records:
        firsts.setdefault(TopicPartition(record.topic, record.partition), record.offset)
    return firsts
