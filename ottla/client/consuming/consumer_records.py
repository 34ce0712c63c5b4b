"""ConsumerRecord, its deserialization, and the buffer of records that are shown in another thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from ottla.client.consuming.subscription_state import PositionError
from ottla.client.core.serialization import converter
from ottla.client.errors import ClientError
from ottla.client.values import TopicPartition
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

    hint = "Seek to `offset` + 1 to skip the record."


class RecordDeserializer:
    """Makes users' records out of the log's."""

    def __init__(self, key: Deserializer | None, value: Deserializer | None) -> None:
        self._key = None if key is None else converter(key, "key")
        self._value = None if value is None else converter(value, "value")
        self.plain = key is None and value is None

    def one(self, tp: TopicPartition, record: Record) -> ConsumerRecord[Any, Any]:
        if self.plain:
            return ConsumerRecord(tp[0], tp[1], *record)
        offset, timestamp, key, value, headers = record
        try:
            if self._key is not None:
                key = self._key(key, tp[0], headers)
            if self._value is not None:
                value = self._value(value, tp[0], headers)
        except Exception as error:
            raise self._failed(tp, offset, error) from error
        return ConsumerRecord(tp[0], tp[1], offset, timestamp, key, value, headers)

    def many(self, tp: TopicPartition, records: list[Record]) -> list[ConsumerRecord[Any, Any]]:
        """As many as go well, at least one: the error of the first is raised."""
        topic, partition = tp
        if self.plain:
            return [ConsumerRecord(topic, partition, *record) for record in records]
        opened: list[ConsumerRecord[Any, Any]] = []
        for record in records:
            try:
                opened.append(self.one(tp, record))
            except ClientError:
                if not opened:
                    raise
                break
        return opened

    def _failed(self, tp: TopicPartition, offset: int, error: Exception) -> NotDeserialized:
        message = f"{tp} at offset {offset}: the deserializer failed: {type(error).__name__}: {error}"
        return NotDeserialized(message, tp, offset, ErrorCode.corrupt_message)


Records = list[ConsumerRecord[Any, Any]]


class RecordBuffer:
    """Records that were taken from a consumer to be shown one by one, in another thread than the consumer's.

    The progress is one tuple, so another thread always reads a consistent state. Revoked partitions are reported by the
    consumer's thread: no more of their records are returned, also if they are assigned again, because they then start
    at the committed offset. Until they are removed, their skipped records count as not returned.
    """

    def __init__(self) -> None:
        self._state: tuple[Records, int, Records] = ([], 0, [])
        """The records, how many of them are behind us, and those among them that were passed over."""
        self._hidden: frozenset[TopicPartition] = frozenset()
        """Being given up, or given up: not to be shown."""
        self._gone: frozenset[TopicPartition] = frozenset()
        """Given up: they say nothing any more of how far the user has come."""
        self.done = False
        """The record shown last has been dealt with."""

    def fill(self, records: Records) -> None:
        """When the last ones are behind us."""
        passed_over = self._kept(self._state[2])
        self._state = records, 0, passed_over
        self._hidden = self._gone = frozenset()

    def clear(self) -> None:
        """After an error the caller knows the next position."""
        self._state = [], 0, []

    def hide(self, partitions: Iterable[TopicPartition]) -> None:
        self._hidden |= frozenset(partitions)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        self._gone |= frozenset(partitions)

    def next(self) -> ConsumerRecord[Any, Any] | None:
        records, at, passed_over = self._state
        if not self._hidden and at < len(records):
            self._state = records, at + 1, passed_over
            return records[at]
        passed_over = passed_over.copy()
        shown = None
        while at < len(records) and shown is None:
            record = records[at]
            at += 1
            if TopicPartition(record.topic, record.partition) in self._hidden:
                passed_over.append(record)
            else:
                shown = record
        self._state = records, at, passed_over
        return shown

    def rest(self) -> Records:
        """Records that were not returned."""
        records, at, passed_over = self._state
        return self._kept(passed_over + records[at:])

    def unseen(self) -> dict[TopicPartition, int]:
        """The first record of each partition that was not shown."""
        return _firsts(self.rest())

    def unconfirmed(self) -> dict[TopicPartition, int]:
        """The same, including the record that was returned last: its processing may not be complete."""
        records, at, passed_over = self._state
        return _firsts(self._kept(passed_over + records[at if self.done else max(0, at - 1) :]))

    def _kept(self, records: Records) -> Records:
        gone = self._gone
        return [each for each in records if TopicPartition(each.topic, each.partition) not in gone] if gone else records


def _firsts(records: Records) -> dict[TopicPartition, int]:
    firsts: dict[TopicPartition, int] = {}
    for record in records:
        firsts.setdefault(TopicPartition(record.topic, record.partition), record.offset)
    return firsts
