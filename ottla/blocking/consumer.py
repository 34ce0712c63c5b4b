"""Blocking consumer.

Iteration takes many records from the loop's thread at once and returns them one by one from a buffer that both threads
read: commits and positions count the records that the user has seen.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar, Unpack

from ottla.blocking.thread import Blocking, blocking
from ottla.client.consuming import consumer
from ottla.client.consuming.consumer_coordinator import RebalanceListener
from ottla.client.consuming.consumer_records import ConsumerRecord, Deserializer, RecordBuffer
from ottla.client.core.settings import ConsumerOptions
from ottla.client.values import TopicPartition

P = ParamSpec("P")
T = TypeVar("T")

WAIT_MS: Final = 1000
"""Timeout of one poll of an iterating consumer; then it polls again."""


def _in_loop(method: Callable[Concatenate[Any, P], T], *, put_back: bool = False) -> Callable[Concatenate[Any, P], T]:
    """A method of the client that is not async, called in the loop's thread."""

    @functools.wraps(method)
    def call(self: Consumer, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if put_back:
            self._put_back()
        return self._call(lambda: method(self._client, *args, **kwargs))

    return call


def _put_back_first(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """A blocking method that changes positions: records that are in the buffer are fetched again."""
    call = blocking(method)

    @functools.wraps(method)
    def call_after(self: Consumer, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._put_back()
        return call(self, *args, **kwargs)

    return call_after


class Consumer(Blocking[consumer.Consumer]):
    """Reads records, for one thread at a time. See `ottla.Consumer` for the settings. A rebalance listener runs in the
    loop's thread, and must not call this consumer."""

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
        """When the next poll is due for max.poll.interval.ms, even if the buffer has records."""

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
        """The next record, or None after the timeout."""
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

    getmany = _put_back_first(consumer.Consumer.getmany)
    getmany_arrow = _put_back_first(consumer.Consumer.getmany_arrow)

    def _put_back(self) -> None:
        """Empty the buffer: records that the user has not seen are fetched again."""
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
        """Call a function in the loop's thread; or here, if the client is not started yet."""

        async def called() -> T:
            return act()

        return act() if self._thread is None else self._run(called())

    # Subscription.

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

    unsubscribe = _in_loop(consumer.Consumer.unsubscribe, put_back=True)
    assign = _in_loop(consumer.Consumer.assign, put_back=True)
    assignment = _in_loop(consumer.Consumer.assignment)
    subscription = _in_loop(consumer.Consumer.subscription)
    group_metadata = _in_loop(consumer.Consumer.group_metadata)

    # Positions.

    seek = _in_loop(consumer.Consumer.seek, put_back=True)
    seek_to_beginning = _put_back_first(consumer.Consumer.seek_to_beginning)
    seek_to_end = _put_back_first(consumer.Consumer.seek_to_end)
    seek_to_time = _put_back_first(consumer.Consumer.seek_to_time)
    seek_to_committed = _put_back_first(consumer.Consumer.seek_to_committed)
    position = blocking(consumer.Consumer.position)
    topic_id = _in_loop(consumer.Consumer.topic_id)
    highwater = _in_loop(consumer.Consumer.highwater)
    pause = _in_loop(consumer.Consumer.pause, put_back=True)
    resume = _in_loop(consumer.Consumer.resume)
    paused = _in_loop(consumer.Consumer.paused)

    def lag(self) -> dict[TopicPartition, int]:
        lags = self._call(self._client.lag)
        for record in self._record_buffer.rest():
            tp = TopicPartition(record.topic, record.partition)
            if tp in lags:
                lags[tp] += 1
        return lags

    # Commits and offsets.

    commit = blocking(consumer.Consumer.commit)
    committed = blocking(consumer.Consumer.committed)
    beginning_offsets = blocking(consumer.Consumer.beginning_offsets)
    end_offsets = blocking(consumer.Consumer.end_offsets)
    offsets_for_times = blocking(consumer.Consumer.offsets_for_times)
    partitions_for = blocking(consumer.Consumer.partitions_for)
