"""SubscriptionState: the partitions assigned to a consumer, where it is in each, and what is fetched and not taken yet.

Records are shown in order, each once, from the position on. `fetcher` fills it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from ottla.client.consuming.completed_fetch import CompletedFetch
from ottla.client.consuming.positions import (
    NO_LIMIT,
    ConsumerSettings,
    FetchState,
    OffsetOutOfRange,
    Position,
    PositionError,
    Reading,
    RecordsDamaged,
)
from ottla.client.core.metadata import Metadata
from ottla.client.errors import ClientError
from ottla.client.values import COMMITTED, NO_EPOCH, TopicPartition
from ottla.errors import ErrorCode, Refused
from ottla.wire.records import Record

T = TypeVar("T")


class SubscriptionState:
    """Of one consumer."""

    def __init__(self, metadata: Metadata, settings: ConsumerSettings) -> None:
        self.settings = settings
        self._metadata = metadata
        self._readings: dict[TopicPartition, Reading] = {}
        """In the order in which they are served: whoever gave records goes to the end."""

    # What the user wants.

    def assign(self, partitions: Iterable[TopicPartition], positions: Mapping[TopicPartition, Position] | None = None
               ) -> None:  # fmt: skip
        """Read these and no others. Those that stay go on where they are, unless a position is given; new ones
        without a position begin where the policy says."""
        before = self._readings
        self._readings = {}
        for tp in partitions:
            reading = before.get(tp)
            position = (positions or {}).get(tp)
            if reading is None:
                reading = Reading(tp)
                self._metadata.want(tp.topic)
                if position is None:
                    self._reset(reading, f"{tp}: there is no position to begin at")
            if position is not None:
                reading.seek(position)
            self._readings[tp] = reading

    def assigned(self) -> list[TopicPartition]:
        return list(self._readings)

    def seek(self, tp: TopicPartition, offset: int, epoch: int = NO_EPOCH, *, until: int = NO_LIMIT) -> None:
        """`until`: fetch nothing from there on."""
        reading = self._reading(tp)
        reading.seek(Position(offset, epoch))
        reading.until = until

    def seek_to(self, tp: TopicPartition, time: int) -> None:
        """To EARLIEST, LATEST, or the first record not older than a time in ms."""
        self._reading(tp).reset(time)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """What is buffered stays, and is not shown."""
        for tp in partitions:
            self._reading(tp).paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._reading(tp).paused = False

    def limit(self, until: Mapping[TopicPartition, int]) -> None:
        """Fetch nothing from these offsets on; of the other partitions whatever there is."""
        for tp, reading in self._readings.items():
            reading.until = until.get(tp, NO_LIMIT)

    def hold(self, partitions: Iterable[TopicPartition]) -> None:
        """Neither ask nor show anything of them until `release`; positions stay, and may be set."""
        for tp in partitions:
            self._reading(tp).held = True

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            if tp in self._readings:
                self._readings[tp].held = False

    def revision(self, tp: TopicPartition) -> int:
        """Rises when the position is set: whoever found out a position in the meantime is too late then."""
        reading = self._readings.get(tp)
        return -1 if reading is None else reading.revision

    def paused(self) -> list[TopicPartition]:
        return [tp for tp, reading in self._readings.items() if reading.paused]

    def position(self, tp: TopicPartition) -> Position | None:
        """Of the next record to be shown; None until it is known."""
        return self._reading(tp).position

    def topic_id(self, tp: TopicPartition) -> bytes:
        return self._reading(tp).topic_id

    def high_watermark(self, tp: TopicPartition) -> int | None:
        high_watermark = self._reading(tp).high_watermark
        return high_watermark if high_watermark >= 0 else None

    def lag(self, tp: TopicPartition) -> int | None:
        """How many offsets there are from the position to the end of what may be read, as of the last answer."""
        reading = self._reading(tp)
        limit = reading.last_stable if self.settings.isolation_level == COMMITTED else reading.high_watermark
        return None if reading.position is None or limit < 0 else max(0, limit - reading.position.offset)

    def _reading(self, tp: TopicPartition) -> Reading:
        reading = self._readings.get(tp)
        if reading is None:
            raise ClientError(f"{tp} is not assigned to this consumer")
        return reading

    # Out: records.

    def take(self, records_max: int, among: Collection[TopicPartition] = ()) -> dict[TopicPartition, list[Record]]:
        """Records that have come, and the position moves behind them. A ClientError comes only when there are none."""
        return self.take_by(CompletedFetch.take, len, records_max, among)

    def take_by(
        self,
        take: Callable[[CompletedFetch, int], list[T]],
        amount: Callable[[list[T]], int],
        limit: int,
        among: Collection[TopicPartition] = (),
    ) -> dict[TopicPartition, list[T]]:
        """The same with another way to take, and to count what was taken."""
        taken: dict[TopicPartition, list[T]] = {}
        error: ClientError | None = None
        for tp, reading in list(self._readings.items()):
            if limit <= 0:
                break
            if reading.paused or reading.held or (among and tp not in among):
                continue
            try:
                part = self._taken(reading, take, amount, limit)
            except ClientError as failure:
                error = error or failure
                continue
            if part:
                taken[tp] = part
                limit -= amount(part)
                self._readings[tp] = self._readings.pop(tp)
        if error is not None and not taken:
            raise error
        return taken

    def _taken(
        self,
        reading: Reading,
        take: Callable[[CompletedFetch, int], list[T]],
        amount: Callable[[list[T]], int],
        limit: int,
    ) -> list[T]:
        taken: list[T] = []
        while reading.buffer and (left := limit - amount(taken)) > 0:
            fetched = reading.buffer[0]
            try:
                taken += take(fetched, left)
            except Refused as refused:
                if taken:
                    break
                reading.fetch_again()
                message = f"{reading.tp} at offset {fetched.position}: {refused.message}"
                raise RecordsDamaged(message, reading.tp, fetched.position, refused.code) from None
            assert reading.position is not None
            epoch = fetched.epoch if fetched.epoch != NO_EPOCH else reading.position.epoch
            reading.position = Position(fetched.position, epoch)
            if fetched.exhausted:
                reading.buffer.popleft()
        if not taken and reading.error is not None:
            error = reading.error
            if reading.state is not FetchState.STUCK:
                reading.error = None  # told once, then tried again
            raise error
        return taken

    def _reset(self, reading: Reading, why: str, error: type[PositionError] = OffsetOutOfRange) -> None:
        offset = reading.position.offset if reading.position else -1
        if self.settings.auto_offset_reset is None:
            reading.stick(error(why, reading.tp, offset, ErrorCode.offset_out_of_range))
        else:
            reading.reset(self.settings.auto_offset_reset)
