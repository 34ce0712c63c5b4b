"""Blocking consumer.

Iterating takes records from the loop's thread by the hundred and shows them one by one, from a buffer that both threads
can look at: so commits and positions mean what the user has seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack

from ottla.blocking.thread import Blocking
from ottla.client.consuming import consumer
from ottla.client.consuming.consumer_coordinator import RebalanceListener
from ottla.client.consuming.consumer_records import ConsumerRecord, Deserializer, RecordBuffer
from ottla.client.core.settings import ConsumerOptions
from ottla.client.values import Given, GroupMetadata, OffsetAndTimestamp, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

WAIT_MS: Final = 1000
"""So long one look for records takes, before there is another."""


class Consumer(Blocking[consumer.Consumer]):
    """Reads records, for one thread at a time. See `ottla.Consumer` for the settings. A listener's methods run in the
    loop's thread, and may not call this consumer."""

    def __init__(
        self,
        *topics: str,
        bootstrap_servers: str | Iterable[str] | None = None,
        config: Mapping[str, Any] | None = None,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        **settings: Unpack[ConsumerOptions],
    ) -> None:
        super().__init__(
            consumer.Consumer(
                *topics,
                bootstrap_servers=bootstrap_servers,
                config=config,
                key_deserializer=key_deserializer,
                value_deserializer=value_deserializer,
                **settings,
            )
        )
        self._record_buffer = RecordBuffer()
        self._poll_at = 0.0
        """When the group should hear again that somebody takes records, though none have to be fetched."""

    # Records.

    def __iter__(self) -> Iterator[ConsumerRecord[Any, Any]]:
        return self

    def __next__(self) -> ConsumerRecord[Any, Any]:
        return self.getone()

    def getone(self) -> ConsumerRecord[Any, Any]:
        """The next record, as soon as there is one."""
        while (record := self.next_within(WAIT_MS)) is None:
            pass
        return record

    def next_within(self, timeout_ms: int) -> ConsumerRecord[Any, Any] | None:
        """The next record, if there is one in that time."""
        if time.monotonic() >= self._poll_at and self._client.record_buffer is not None:
            self._poll_at = time.monotonic() + self._call(self._client.polled)
        record = self._record_buffer.next()
        if record is None:
            self._run(self._refill(timeout_ms))
            record = self._record_buffer.next()
        return record

    async def _refill(self, timeout_ms: int) -> None:
        """In the loop's thread, so that no commit falls between taking the records and putting them into the buffer."""
        self._client.record_buffer = self._record_buffer
        self._record_buffer.done = True
        taken = await self._client.getmany(timeout_ms=timeout_ms)
        self._record_buffer.fill([each for records in taken.values() for each in records])
        self._record_buffer.done = False

    def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[Any, Any]]]:
        """The records that have come, by partition; waits up to `timeout_ms` for the first."""
        self._put_back()
        return self._run(self._client.getmany(*partitions, timeout_ms=timeout_ms, max_records=max_records))

    def getmany_arrow(
        self,
        *partitions: TopicPartition,
        timeout_ms: int = 0,
        max_bytes: int | None = None,
        columns: Sequence[str] | None = None,
        until: Mapping[TopicPartition, int] | None = None,
    ) -> dict[TopicPartition, list[pa.RecordBatch]]:
        """What `getmany` gives, as Arrow columns. See `ottla.Consumer`."""
        self._put_back()
        return self._run(
            self._client.getmany_arrow(
                *partitions, timeout_ms=timeout_ms, max_bytes=max_bytes, columns=columns, until=until
            )
        )

    def _put_back(self) -> None:
        """The user wants something else first: what was not shown is fetched again."""
        unseen = self._record_buffer.unseen()
        self._client.record_buffer = None
        self._record_buffer.clear()
        if unseen:
            self._call(lambda: self._seek_back(unseen))

    def _seek_back(self, unseen: Mapping[TopicPartition, int]) -> None:
        assigned = self._client.assignment()
        for tp, offset in unseen.items():
            if tp in assigned:
                self._client.seek(tp, offset)

    def _stop(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._record_buffer.done = kind is None
        super()._stop(kind, error, trace)

    def _call(self, act: Callable[[], T]) -> T:
        """A plain call, made in the loop's thread; or here, if the client is not started yet."""

        async def called() -> T:
            return act()

        return act() if self._thread is None else self._run(called())

    # What to read.

    def subscribe(
        self,
        topics: Collection[str] | str = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> Self:
        self._put_back()
        self._call(lambda: self._client.subscribe(topics, pattern=pattern, listener=listener))
        return self

    def unsubscribe(self) -> None:
        self._put_back()
        self._call(self._client.unsubscribe)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._put_back()
        self._call(lambda: self._client.assign(partitions))

    def assignment(self) -> set[TopicPartition]:
        return self._call(self._client.assignment)

    def subscription(self) -> set[str]:
        return self._call(self._client.subscription)

    def group_metadata(self) -> GroupMetadata:
        return self._call(self._client.group_metadata)

    # Positions.

    def seek(self, partition: TopicPartition, offset: int, *, until: int | None = None) -> None:
        self._put_back()
        self._call(lambda: self._client.seek(partition, offset, until=until))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        self._put_back()
        self._run(self._client.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        self._put_back()
        self._run(self._client.seek_to_end(*partitions))

    def seek_to_time(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        self._put_back()
        self._run(self._client.seek_to_time(timestamp_ms, *partitions))

    def seek_to_committed(self, *partitions: TopicPartition) -> None:
        self._put_back()
        self._run(self._client.seek_to_committed(*partitions))

    def position(self, partition: TopicPartition) -> int:
        return self._run(self._client.position(partition))

    def topic_id(self, partition: TopicPartition) -> bytes:
        return self._call(lambda: self._client.topic_id(partition))

    def highwater(self, partition: TopicPartition) -> int | None:
        return self._call(lambda: self._client.highwater(partition))

    def lag(self) -> dict[TopicPartition, int]:
        lags = self._call(self._client.lag)
        for record in self._record_buffer.rest():
            tp = TopicPartition(record.topic, record.partition)
            if tp in lags:
                lags[tp] += 1
        return lags

    def pause(self, *partitions: TopicPartition) -> None:
        self._put_back()
        self._call(lambda: self._client.pause(*partitions))

    def resume(self, *partitions: TopicPartition) -> None:
        self._call(lambda: self._client.resume(*partitions))

    def paused(self) -> set[TopicPartition]:
        return self._call(self._client.paused)

    # Commits.

    def commit(self, offsets: Given | None = None) -> None:
        self._run(self._client.commit(offsets))

    def committed(self, partition: TopicPartition) -> int | None:
        return self._run(self._client.committed(partition))

    # Questions.

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._run(self._client.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._run(self._client.end_offsets(partitions))

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return self._run(self._client.offsets_for_times(times))

    def partitions_for(self, topic: str) -> set[int]:
        return self._run(self._client.partitions_for(topic))
