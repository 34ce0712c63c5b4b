"""Blocking producer.

Records go to the loop's thread through a queue. Waking that thread is expensive: it is done once for all records that
are sent while it is busy.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack

from ottla.blocking.thread import Blocking, blocking
from ottla.client.core.settings import ProducerOptions
from ottla.client.producing import producer
from ottla.client.producing.partitioners import Function, Partitioner
from ottla.client.producing.produce_requests import AppendResult
from ottla.client.producing.producer import HeadersGiven, Serializer
from ottla.client.values import OpenTransaction, RecordMetadata
from ottla.wire.records import Headers

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

QUEUED_MAX: Final = 10_000
"""Size of the queue: `send` waits while it is full."""
TAKEN_MAX: Final = 256
"""Records that the loop takes over in one iteration."""

_Offered = tuple[str, bytes | None, bytes | None, Headers, int | None, int | None, "Future[RecordMetadata]"]


class Producer(Blocking[producer.Producer]):
    """Writes records, from any thread. See `ottla.Producer` for the settings."""

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        partitioner: str | Function | Partitioner = "sticky",
        **settings: Unpack[ProducerOptions],
    ) -> None:
        super().__init__(
            producer.Producer(
                bootstrap_servers,
                config=config,
                key_serializer=key_serializer,
                value_serializer=value_serializer,
                partitioner=partitioner,
                **settings,
            )
        )
        self._queue: deque[tuple[_Offered, float]] = deque()
        """Records, and the time of each `send`."""
        self._guard = threading.Lock()
        self._room = threading.Condition(self._guard)
        self._taking = False
        """Whether the loop's thread was woken, and reads the queue until it is empty."""
        self._drained: asyncio.Event | None = None
        self._moved_at = 0.0
        """When a record was last taken over: from then on, a record waits for memory."""

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: HeadersGiven = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Future[RecordMetadata]:
        """Send a record; the future has its partition and offset once it is acknowledged. Waits while the queue is
        full."""
        thread = self._started()
        sent_at = time.monotonic()
        future: Future[RecordMetadata] = Future()
        ready = self._client.prepared(topic, value, key, headers, partition, timestamp_ms)
        offered = (topic, *ready, partition, timestamp_ms, future)
        with self._guard:
            while len(self._queue) >= QUEUED_MAX:
                self._room.wait()
            self._queue.append((offered, sent_at))
            if not self._taking:
                self._taking = True
                thread.loop.call_soon_threadsafe(self._take)
        return future

    def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: HeadersGiven = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send a record, and wait until it is acknowledged."""
        sent = self.send(topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)
        return sent.result()

    def send_arrow(
        self,
        topic: str,
        table: pa.Table | pa.RecordBatch,
        *,
        key: str | None = None,
        value: str | None = "value",
        headers: str | None = None,
        partition: str | None = None,
        timestamp: str | None = None,
    ) -> Future[int]:
        """Send all rows of a table, after the records sent before. See `ottla.Producer`."""
        thread = self._started()

        async def sent() -> asyncio.Future[int]:
            await self._taken_over()
            return await self._client.send_arrow(
                topic, table, key=key, value=value, headers=headers, partition=partition, timestamp=timestamp
            )

        async def outcome(future: asyncio.Future[int]) -> int:
            return await future

        return asyncio.run_coroutine_threadsafe(outcome(self._run(sent())), thread.loop)

    def flush(self) -> None:
        """Wait until everything sent so far is delivered or has failed; each future has the outcome."""
        self._run(self._after_queue(self._client.flush))

    partitions_for = blocking(producer.Producer.partitions_for)

    # Transactions.

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """A transaction: committed at the end of the block, aborted if an exception leaves it or the commit fails."""
        self.begin_transaction()
        try:
            yield self
        except BaseException:
            self.abort_transaction()
            raise
        self._run(self._after_queue(self._client.commit_or_abort))

    init_transactions = blocking(producer.Producer.init_transactions)
    begin_transaction = blocking(producer.Producer.begin_transaction)
    send_offsets_to_transaction = blocking(producer.Producer.send_offsets_to_transaction)

    def commit_transaction(self) -> None:
        self._run(self._after_queue(self._client.commit_transaction))

    def hand_over_transaction(self) -> OpenTransaction:
        """Deliver everything, and leave the end to `Admin.end_transaction`. See `ottla.Producer`."""
        return self._run(self._after_queue(self._client.hand_over_transaction))

    def abort_transaction(self) -> None:
        self._run(self._after_queue(self._client.abort_transaction))

    def _stop(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._thread is not None and not self._thread.loop.is_closed():
            self._run(self._taken_over())
        super()._stop(kind, error, trace)

    # In the loop's thread.

    def _take(self) -> None:
        """Take records over, at most TAKEN_MAX. A record that has to wait blocks the records behind it: max_block_ms
        ends for all of them at once, unless memory becomes free for one after another."""
        for _ in range(TAKEN_MAX):
            with self._guard:
                if not self._queue:
                    self._taking = False
                    drained, self._drained = self._drained, None
                    if drained is not None:
                        drained.set()
                    return
                offered, sent_at = self._queue.popleft()
                if len(self._queue) == QUEUED_MAX // 2:
                    self._room.notify_all()
            if not offered[-1].set_running_or_notify_cancel():
                continue  # cancelled by the user
            try:
                verdict = self._client.offer(*offered)
            except Exception as error:  # noqa: BLE001 (a partitioner of the user may raise anything)
                self._refuse(offered, error)
                continue
            if verdict is not AppendResult.ACCEPTED:
                assert self._thread is not None
                waiting = self._thread.loop.create_task(self._insist(offered, sent_at, verdict), name="a record waits")
                waiting.add_done_callback(lambda _: self._take())
                return
            self._moved_at = time.monotonic()
        assert self._thread is not None
        self._thread.loop.call_soon(self._take)

    async def _insist(self, offered: _Offered, sent_at: float, verdict: AppendResult) -> None:
        behind: set[str] = set()
        waited_s = time.monotonic() - max(sent_at, self._moved_at)
        if verdict is AppendResult.METADATA_MISSING:
            behind = self._topics_queued()
            # Behind other records, its topic may not have been requested so far.
            waited_s = time.monotonic() - sent_at if self._client.heard_of(offered[0]) else 0.0
        try:
            with self._client.looking_for(behind):
                await self._client.insist_on(*offered, waited_s=waited_s)
            self._moved_at = time.monotonic()
        except Exception as error:  # noqa: BLE001 (as above)
            self._refuse(offered, error)

    def _refuse(self, offered: _Offered, error: Exception) -> None:
        self._client.not_taken(error)
        offered[-1].set_exception(error)

    def _topics_queued(self) -> set[str]:
        with self._guard:
            return {offered[0] for offered, _ in self._queue}

    async def _taken_over(self) -> None:
        with self._guard:
            if not self._taking:
                return
            drained = self._drained = self._drained or asyncio.Event()
        await drained.wait()

    async def _after_queue(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run it when the client has taken over every record that was sent before."""
        await self._taken_over()
        return await work()
