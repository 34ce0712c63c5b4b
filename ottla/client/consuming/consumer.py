"""Consumer: carries out what `fetcher` and the group member decide.

    async with Consumer("orders", bootstrap_servers="localhost:9092", group_id="kitchen") as consumer:
        async for record in consumer:
            print(record.value)

Automatic commits (enable_auto_commit) count records as processed when the next call for records comes, or when the
consumer is stopped in an orderly way. So a process that dies reads some records twice, and misses none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from ottla.client.consuming.consumer_coordinator import ConsumerCoordinator, RebalanceListener
from ottla.client.consuming.consumer_records import (
    ConsumerRecord,
    Deserializer,
    NotDeserialized,
    RecordBuffer,
    RecordDeserializer,
)
from ottla.client.consuming.fetcher import Fetcher
from ottla.client.consuming.subscription_state import NO_LIMIT, ConsumerSettings
from ottla.client.core.client import Client
from ottla.client.core.list_offsets import list_offsets
from ottla.client.core.metadata import MetadataSettings
from ottla.client.core.settings import ClientSettings, ConsumerOptions, GroupSettings, Settings
from ottla.client.core.wait_reasons import Obstacle, of_partition
from ottla.client.errors import BadSetting, ClientError
from ottla.client.group.member import MemberSettings
from ottla.client.values import (
    EARLIEST,
    LATEST,
    Given,
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
    offsets_given,
)
from ottla.wire.records import Record

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.runtime import Runtime

T = TypeVar("T")

PARTS: Final = (ClientSettings, MetadataSettings, ConsumerSettings, MemberSettings, GroupSettings)
AHEAD_MAX: Final = 500
"""So many records `getone` takes at once, to give them out one by one."""


class Consumer(Client):
    """Reads records. Settings have Kafka's names with `_`; `config` takes them with `.`, as confluent-kafka does."""

    def __init__(
        self,
        *topics: str,
        bootstrap_servers: str | Iterable[str] | None = None,
        config: Mapping[str, Any] | None = None,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        runtime: Runtime | None = None,
        **settings: Unpack[ConsumerOptions],
    ) -> None:
        super().__init__(Settings(bootstrap_servers, config, settings, PARTS), runtime, auto_create=False)
        self._consumer_settings = self._settings.part(ConsumerSettings)
        self._group_settings = self._settings.part(GroupSettings)
        self._opener = RecordDeserializer(key_deserializer, value_deserializer)
        self._coordinator = ConsumerCoordinator(self._settings, self._group_settings, self._timeout_s, self)
        self._fetcher: Fetcher
        self._ahead: deque[Record] = deque()
        """Taken from the fetcher, not given to the user yet; all of one partition."""
        self._ahead_tp = TopicPartition("", -1)
        self._last: Mapping[TopicPartition, int] = {}
        """The first record of each partition in the last call."""
        self._limited = False
        """Something is not fetched from an offset on."""
        self._failure: NotDeserialized | None = None
        """Of a partition that the last call had no records of, while others had."""
        self.record_buffer: RecordBuffer | None = None
        """Records that a facade has taken from this consumer and returns one by one."""
        if topics:
            self.subscribe(topics)

    # Start and stop.

    async def start(self) -> None:
        driver = await self._open()
        self._fetcher = Fetcher(driver.metadata, self._consumer_settings)
        driver.attach(self._fetcher)
        driver.explain(self._obstacles)
        try:
            await driver.start(timeout_s=self._bootstrap_timeout_s)
            self._coordinator.start(driver, self._fetcher)
        except BaseException:
            await self._not_started()
            raise

    def _obstacles(self, now: float) -> Iterator[Obstacle]:
        for tp in self._coordinator.assigned():
            if (found := of_partition(self._driver.metadata, *tp, now)) is not None:
                yield found

    async def stop(self) -> None:
        """Commit (if that is automatic), leave the group, close."""
        await self._stop(all_done=True)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After an exception the records of the last call are not taken for done."""
        await self._stop(all_done=kind is None)

    async def _stop(self, *, all_done: bool) -> None:
        if self._driver_or_none is None or self._stopped:
            return
        self._stopped = True
        if all_done:
            self._last = {}
        try:
            await self._coordinator.stop()
        finally:
            await self._close()

    # What to read.

    def subscribe(
        self,
        topics: Collection[str] | str = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Share these topics, or all whose whole name matches the pattern, with the other members of the group."""
        names = [topics] if isinstance(topics, str) else list(topics)
        if bool(names) == bool(pattern):
            raise BadSetting("subscribe takes topics or a pattern, one of them")
        if self._group_settings.group_id is None and pattern:
            raise BadSetting("a pattern needs a group_id")
        self.put_back()
        self._coordinator.subscribe(names, pattern, listener)

    def unsubscribe(self) -> None:
        self.put_back()
        self._coordinator.unsubscribe()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions without group management: from the committed offsets, or as auto_offset_reset says."""
        self.put_back()
        self._coordinator.assign([TopicPartition(*tp) for tp in partitions])

    def assignment(self) -> set[TopicPartition]:
        return set(self._coordinator.assigned())

    def subscription(self) -> set[str]:
        return set(self._coordinator.topics())

    def group_metadata(self) -> GroupMetadata:
        """Member id, generation and group id, for a producer that commits the offsets in a transaction."""
        return self._coordinator.group_metadata()

    # Records.

    async def getone(self, *partitions: TopicPartition) -> ConsumerRecord[Any, Any]:
        """The next record, as soon as there is one."""
        self._limit_to({})
        self._last = {}
        self._coordinator.polled()
        if not self._ahead or (partitions and self._ahead_tp not in partitions):
            self.put_back()
            taken = await self._taken(lambda: self._fetcher.take(1, partitions), None)
            self._ahead_tp = tp = next(iter(taken))
            self._ahead.extend(taken[tp])
            self._ahead.extend(self._fetcher.take(AHEAD_MAX, (tp,)).get(tp, ()))
            self._driver.wake()
        tp = self._ahead_tp
        record = self._opener.one(tp, self._ahead[0])
        self._ahead.popleft()
        self._last = {tp: record.offset}
        return record

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[Any, Any]]]:
        """The records that have come, by partition; waits up to `timeout_ms` for the first."""
        self._limit_to({})
        self._last = {}
        self._coordinator.polled()
        limit = max_records or self._group_settings.max_poll_records
        self.put_back()
        self._raise_failure(partitions)
        deadline = self._driver.runtime.now() + timeout_ms / 1000
        taken = await self._taken(lambda: self._fetcher.take(limit, partitions), deadline)
        self._driver.wake()
        opened: dict[TopicPartition, list[ConsumerRecord[Any, Any]]] = {}
        failures: list[NotDeserialized] = []
        for tp, records in taken.items():
            try:
                opened[tp] = self._opener.many(tp, records)
            except NotDeserialized as failure:
                self._fetcher.seek(tp, records[0].offset)
                failures.append(failure)
                continue
            if len(opened[tp]) < len(records):
                self._fetcher.seek(tp, records[len(opened[tp])].offset)
        self._last = {tp: records[0].offset for tp, records in opened.items()}
        if failures:
            if not opened:
                raise failures[0]
            self._failure = failures[0]
        return opened

    def _raise_failure(self, among: Collection[TopicPartition]) -> None:
        """A record that could not be read while there were others to give is raised by the next call that asks for
        its partition; unless the user has gone past it."""
        failure = self._failure
        if failure is None or (among and failure.partition not in among) or failure.partition in self.paused():
            return
        self._failure = None
        if failure.partition in self._coordinator.assigned():
            position = self._fetcher.position(failure.partition)
            if position is not None and position.offset == failure.offset:
                raise failure

    async def getmany_arrow(
        self,
        *partitions: TopicPartition,
        timeout_ms: int = 0,
        max_bytes: int | None = None,
        columns: Sequence[str] | None = None,
        until: Mapping[TopicPartition, int] | None = None,
    ) -> dict[TopicPartition, list[pa.RecordBatch]]:
        """What `getmany` gives, as Arrow columns, and no object is made for a record: about `max_bytes` as they are
        stored, these columns (all but the headers, if none are named). Records from the offsets in `until` on are
        passed over, and are not fetched. Deserializers are not used. Needs `ottla[arrow]`."""
        from ottla.client.consuming import arrow_records as arrow

        wanted = arrow.schema(columns)
        self._last = {}
        self._coordinator.polled()
        self.put_back()
        self._limit_to(until or {})
        limit = max_bytes or arrow.BYTES_MAX
        deadline = self._driver.runtime.now() + timeout_ms / 1000
        taken = await self._taken(lambda: arrow.take_pieces(self._fetcher, limit, partitions), deadline)
        self._driver.wake()
        opened = arrow.open_all(self._fetcher, taken, wanted, until or {})
        self._last = {tp: first for tp, first in arrow.first_offsets(taken).items() if tp in opened}
        return opened

    def __aiter__(self) -> AsyncIterator[ConsumerRecord[Any, Any]]:
        return self

    async def __anext__(self) -> ConsumerRecord[Any, Any]:
        return await self.getone()

    def _limit_to(self, until: Mapping[TopicPartition, int]) -> None:
        """Limit fetching to the range of this call, whatever the call before it requested."""
        if until or self._limited:
            self._fetcher.limit(until)
            self._limited = bool(until)
            self._driver.wake()

    async def _taken(
        self, take: Callable[[], dict[TopicPartition, T]], deadline: float | None
    ) -> dict[TopicPartition, T]:
        driver, coordinator = self._driver, self._coordinator
        while True:
            coordinator.check()
            taken = take()
            if taken:
                return taken
            now = driver.runtime.now()
            if deadline is not None and now >= deadline:
                await asyncio.sleep(0)
                return {}
            times = [time for time in (deadline, coordinator.next_poll_at()) if time is not None]
            await driver.changed(min(times, default=None))
            if self._stopped:
                raise ClientError("the consumer was stopped")
            coordinator.polled()

    def polled(self) -> float:
        """The application polls, and has enough records for now. It should poll again within so many seconds."""
        self._coordinator.polled()
        return self._coordinator.poll_step_s

    def put_back(self) -> None:
        """Records that were taken and not returned are fetched again: the application requests something else first."""
        if self._ahead:
            first = self._ahead[0].offset
            self._ahead.clear()
            if self._ahead_tp in self._coordinator.assigned():
                self._fetcher.seek(self._ahead_tp, first)

    def losing(self, partitions: Collection[TopicPartition]) -> None:
        self.put_back()
        if self.record_buffer is not None:
            self.record_buffer.hide(partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        if self.record_buffer is not None:
            self.record_buffer.forget(partitions)

    def consumed(self, tp: TopicPartition) -> OffsetAndMetadata | None:
        """How far the user has come."""
        if self.record_buffer is not None and (unseen := self.record_buffer.unseen().get(tp)) is not None:
            return OffsetAndMetadata(unseen)
        if self._ahead and tp == self._ahead_tp:
            return OffsetAndMetadata(self._ahead[0].offset)
        position = self._fetcher.position(tp)
        return None if position is None else OffsetAndMetadata(position.offset, "", position.epoch)

    def unconfirmed(self) -> Mapping[TopicPartition, int]:
        return self._last if self.record_buffer is None else self.record_buffer.unconfirmed()

    # Positions.

    def seek(self, partition: TopicPartition, offset: int, *, until: int | None = None) -> None:
        """`until`: as in `getmany_arrow`, for callers that know the end offset in advance."""
        if offset < 0:
            raise BadSetting(f"there is no offset {offset}")
        self._forget_ahead([partition])
        self._fetcher.seek(TopicPartition(*partition), offset, until=NO_LIMIT if until is None else until)
        self._limited = self._limited or until is not None
        self._driver.wake()

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """All partitions, if none is named. Returns when it is known where that is."""
        await self._seek_to(partitions, EARLIEST)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        await self._seek_to(partitions, LATEST)

    async def seek_to_time(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """To the first record not older than this, or the end if there is none."""
        await self._seek_to(partitions, timestamp_ms)

    async def seek_to_committed(self, *partitions: TopicPartition) -> None:
        """Partitions without a committed offset stay where they are."""
        partitions = partitions or tuple(self._coordinator.assigned())
        committed = await self._coordinator.committed(partitions)
        for tp, offset in committed.items():
            self.seek(tp, offset.offset)

    async def _seek_to(self, partitions: Collection[TopicPartition], time: int) -> None:
        partitions = partitions or tuple(self._coordinator.assigned())
        self._forget_ahead(partitions)
        for tp in partitions:
            self._fetcher.seek_to(TopicPartition(*tp), time)
        self._driver.wake()
        for tp in partitions:
            await self.position(tp)

    def _forget_ahead(self, partitions: Collection[TopicPartition]) -> None:
        if self._ahead_tp in partitions:
            self._ahead.clear()

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record; waits until it is known."""
        driver = self._driver
        deadline = driver.runtime.now() + self._timeout_s
        while (consumed := self.consumed(partition)) is None:
            self._coordinator.check()
            await driver.changed(deadline)
            if driver.runtime.now() >= deadline:
                raise driver.timed_out(f"{partition}: its position was not found out in time")
        return consumed.offset

    def topic_id(self, partition: TopicPartition) -> bytes:
        """The id of the topic whose records are returned: the consumer never continues in another topic of the same
        name. Zeros while it is unknown."""
        return self._fetcher.topic_id(partition)

    def highwater(self, partition: TopicPartition) -> int | None:
        """Where the partition ended when it was last fetched."""
        return self._fetcher.high_watermark(partition)

    def lag(self) -> dict[TopicPartition, int]:
        """How far behind the end each partition is, where that is known: as of the last fetch."""
        known = {tp: self._fetcher.lag(tp) for tp in self._coordinator.assigned()}
        ahead = {self._ahead_tp: len(self._ahead)}
        return {tp: lag + ahead.get(tp, 0) for tp, lag in known.items() if lag is not None}

    def pause(self, *partitions: TopicPartition) -> None:
        if self._ahead_tp in partitions:
            self.put_back()
        self._fetcher.pause(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._fetcher.resume(partitions)
        self._driver.wake()

    def paused(self) -> set[TopicPartition]:
        return set(self._fetcher.paused())

    # Commits.

    async def commit(self, offsets: Given | None = None) -> None:
        """Commit the consumed position, or these offsets: each is the offset of the next record to read."""
        if offsets is None:
            await self._coordinator.commit_consumed()
        else:
            await self._coordinator.commit(offsets_given(offsets))

    async def committed(self, partition: TopicPartition) -> int | None:
        found = await self._coordinator.committed([partition])
        return found[partition].offset if partition in found else None

    # Offsets and partitions of topics.

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = await self._list_offsets(dict.fromkeys(partitions, EARLIEST))
        return {tp: at.offset for tp, at in found.items()}

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = await self._list_offsets(dict.fromkeys(partitions, LATEST))
        return {tp: at.offset for tp, at in found.items()}

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition that is not older than the time (in ms), if there is one."""
        found = await self._list_offsets(times)
        return {tp: at if at.offset >= 0 else None for tp, at in found.items()}

    async def partitions_for(self, topic: str) -> set[int]:
        deadline = self._driver.runtime.now() + self._timeout_s
        return set((await self._driver.topic(topic, deadline)).leaders)

    async def _list_offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        return await list_offsets(
            self._driver,
            times,
            timeout_s=self._timeout_s,
            request_timeout_s=self._consumer_settings.request_timeout_s,
            isolation_level=self._consumer_settings.isolation_level,
        )
