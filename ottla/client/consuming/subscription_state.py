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
    RecordsDamaged,
    TopicPartitionState,
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
        self._states: dict[TopicPartition, TopicPartitionState] = {}
        """In the order in which they are served: whoever gave records goes to the end."""

    # What the user wants.

    def assign(self, partitions: Iterable[TopicPartition], positions: Mapping[TopicPartition, Position] | None = None
               ) -> None:  # fmt: skip
        """Read these and no others. Those that stay go on where they are, unless a position is given; new ones
        without a position begin where the policy says."""
        before = self._states
        self._states = {}
        for tp in partitions:
            state = before.get(tp)
            position = (positions or {}).get(tp)
            if state is None:
                state = TopicPartitionState(tp)
                self._metadata.want(tp.topic)
                if position is None:
                    self._reset(state, f"{tp}: there is no position to begin at")
            if position is not None:
                state.seek(position)
            self._states[tp] = state

    def assigned(self) -> list[TopicPartition]:
        return list(self._states)

    def seek(self, tp: TopicPartition, offset: int, epoch: int = NO_EPOCH, *, until: int = NO_LIMIT) -> None:
        """`until`: fetch nothing from there on."""
        state = self._assigned_state(tp)
        state.seek(Position(offset, epoch))
        state.until = until

    def seek_to(self, tp: TopicPartition, time: int) -> None:
        """To EARLIEST, LATEST, or the first record not older than a time in ms."""
        self._assigned_state(tp).reset(time)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """What is buffered stays, and is not shown."""
        for tp in partitions:
            self._assigned_state(tp).paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._assigned_state(tp).paused = False

    def limit(self, until: Mapping[TopicPartition, int]) -> None:
        """Fetch nothing from these offsets on; of the other partitions whatever there is."""
        for tp, state in self._states.items():
            state.until = until.get(tp, NO_LIMIT)

    def hold(self, partitions: Iterable[TopicPartition]) -> None:
        """Neither ask nor show anything of them until `release`; positions stay, and may be set."""
        for tp in partitions:
            self._assigned_state(tp).held = True

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            if tp in self._states:
                self._states[tp].held = False

    def revision(self, tp: TopicPartition) -> int:
        """Rises when the position is set: whoever found out a position in the meantime is too late then."""
        state = self._states.get(tp)
        return -1 if state is None else state.revision

    def paused(self) -> list[TopicPartition]:
        return [tp for tp, state in self._states.items() if state.paused]

    def position(self, tp: TopicPartition) -> Position | None:
        """Of the next record to be shown; None until it is known."""
        return self._assigned_state(tp).position

    def topic_id(self, tp: TopicPartition) -> bytes:
        return self._assigned_state(tp).topic_id

    def high_watermark(self, tp: TopicPartition) -> int | None:
        high_watermark = self._assigned_state(tp).high_watermark
        return high_watermark if high_watermark >= 0 else None

    def lag(self, tp: TopicPartition) -> int | None:
        """How many offsets there are from the position to the end of what may be read, as of the last answer."""
        state = self._assigned_state(tp)
        limit = state.last_stable if self.settings.isolation_level == COMMITTED else state.high_watermark
        return None if state.position is None or limit < 0 else max(0, limit - state.position.offset)

    def _assigned_state(self, tp: TopicPartition) -> TopicPartitionState:
        state = self._states.get(tp)
        if state is None:
            raise ClientError(f"{tp} is not assigned to this consumer")
        return state

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
        for tp, state in list(self._states.items()):
            if limit <= 0:
                break
            if state.paused or state.held or (among and tp not in among):
                continue
            try:
                part = self._taken(state, take, amount, limit)
            except ClientError as failure:
                error = error or failure
                continue
            if part:
                taken[tp] = part
                limit -= amount(part)
                self._states[tp] = self._states.pop(tp)
        if error is not None and not taken:
            raise error
        return taken

    def _taken(
        self,
        state: TopicPartitionState,
        take: Callable[[CompletedFetch, int], list[T]],
        amount: Callable[[list[T]], int],
        limit: int,
    ) -> list[T]:
        taken: list[T] = []
        while state.buffer and (left := limit - amount(taken)) > 0:
            fetched = state.buffer[0]
            try:
                taken += take(fetched, left)
            except Refused as refused:
                if taken:
                    break
                state.fetch_again()
                message = f"{state.tp} at offset {fetched.position}: {refused.message}"
                raise RecordsDamaged(message, state.tp, fetched.position, refused.code) from None
            assert state.position is not None
            epoch = fetched.epoch if fetched.epoch != NO_EPOCH else state.position.epoch
            state.position = Position(fetched.position, epoch)
            if fetched.exhausted:
                state.buffer.popleft()
        if not taken and state.error is not None:
            error = state.error
            if state.fetch_state is not FetchState.STUCK:
                state.error = None  # raised once, then tried again
            raise error
        return taken

    def _reset(self, state: TopicPartitionState, why: str, error: type[PositionError] = OffsetOutOfRange) -> None:
        offset = state.position.offset if state.position else -1
        if self.settings.auto_offset_reset is None:
            state.stick(error(why, state.tp, offset, ErrorCode.offset_out_of_range))
        else:
            state.reset(self.settings.auto_offset_reset)
