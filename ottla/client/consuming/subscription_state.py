"""SubscriptionState: the partitions assigned to a consumer, its position in each, and what is buffered of them.

    AWAIT_RESET ──ListOffsets──► FETCHING ◄──OffsetForLeaderEpoch── AWAIT_VALIDATION
        ▲                           │  └──────────a new leader───────────►─┘
        └─────offset out of range───┤
                                    └──and no policy to reset by──► STUCK ──seek──► FETCHING

Every record has the epoch of the leader that wrote it. After an election a consumer asks the new leader for the end
offset of the epoch of its last record. If that is before the consumer's position, the log was truncated, and records
that the consumer has read are lost (KIP-320).

Records are shown in order, each once, from the position on. `fetcher` fills it. Nothing here is durable: committed
offsets are kept by the group's coordinator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from ottla.client.consuming.completed_fetch import CompletedFetch
from ottla.client.core.metadata import Metadata
from ottla.client.core.requests import NO_NODE, RequestSettings
from ottla.client.errors import BadSetting, ClientError
from ottla.client.values import COMMITTED, EARLIEST, LATEST, NO_EPOCH, UNCOMMITTED, TopicPartition
from ottla.errors import ErrorCode, Refused
from ottla.wire.records import Record
from ottla.wire.tree import ZERO_UUID

T = TypeVar("T")

NO_LIMIT: Final = 2**63 - 1
"""Beyond every offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings(RequestSettings):
    """Kafka's names and defaults, where Kafka has them."""

    auto_offset_reset: int | None = LATEST
    """Where to begin without a position: EARLIEST, LATEST, a time in ms; None: fail."""
    isolation_level: int = UNCOMMITTED
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 52_428_800
    max_partition_fetch_bytes: int = 1_048_576
    check_crcs: bool = True
    client_rack: str = ""
    metadata_max_age_ms: int = 300_000
    fetch_sessions: bool = True
    buffered_bytes_max: int = 67_108_864
    """Nothing more is fetched while so much waits for the user."""
    expanded_bytes_max: int = 268_435_456
    """A batch that decompresses to more is refused."""

    def __post_init__(self) -> None:
        if self.auto_offset_reset is not None and self.auto_offset_reset < EARLIEST:
            raise BadSetting(f"auto_offset_reset cannot be {self.auto_offset_reset}")
        if self.isolation_level not in (UNCOMMITTED, COMMITTED):
            raise BadSetting(f"isolation_level is {self.isolation_level}; it can be 0 or 1")


class PositionError(ClientError):
    """The consumer cannot continue in this partition by itself; `seek` sets the next offset."""

    def __init__(self, message: str, tp: TopicPartition, offset: int, code: ErrorCode) -> None:
        super().__init__(message, code=code)
        self.partition = tp
        self.offset = offset


class OffsetOutOfRange(PositionError):
    """The log does not have this offset (any more, or yet), and nothing says where else to begin."""

    hint = "Set auto_offset_reset, or seek to an offset that the log has."


class LogTruncated(PositionError):
    """Log truncation: records that were read are not in the log any more. `offset` is the first one that differs."""

    hint = "Records that were read are lost or replaced; seek back to `offset`, or set auto_offset_reset."


class RecordsDamaged(PositionError):
    """The batch from the broker is damaged. The next attempt fetches it again."""

    hint = "If it happens again, the log is damaged there; `seek` beyond it skips it."


class Position(NamedTuple):
    """The next record, and the epoch of the one before it if that is known."""

    offset: int
    epoch: int = NO_EPOCH


NOWHERE: Final = Position(-1)


class FetchState(Enum):
    AWAIT_RESET = "await reset"
    AWAIT_VALIDATION = "await validation"
    FETCHING = "fetching"
    STUCK = "stuck"


@dataclass(slots=True, eq=False)
class TopicPartitionState:
    """One assigned partition."""

    tp: TopicPartition
    topic_id: bytes = ZERO_UUID
    fetch_state: FetchState = FetchState.AWAIT_RESET
    position: Position | None = None
    """The next offset that the application gets."""
    next: Position = NOWHERE
    """The next offset to fetch: the position plus the buffered records."""
    until: int = NO_LIMIT
    """Nothing is fetched from here on."""
    buffer: deque[CompletedFetch] = field(default_factory=deque)
    reset_to: int = LATEST
    paused: bool = False
    held: bool = False
    """Nothing is requested or returned until the application has set a position, or the partition is revoked."""
    revision: int = 0
    """Increases when responses in flight become invalid."""
    offset_requested: bool = False
    """A question about its offset is out."""
    asked_epoch: int = NO_EPOCH
    """Of the leader that it went to."""
    leader_epoch: int = NO_EPOCH
    """The leader for which the position was validated."""
    high_watermark: int = -1
    last_stable: int = -1
    log_start: int = -1
    preferred: int = NO_NODE
    preferred_until: float = 0.0
    retry_at: float = 0.0
    attempts: int = 0
    error: ClientError | None = None

    @property
    def buffered_bytes(self) -> int:
        return sum(fetched.size for fetched in self.buffer)

    def served_by(self, leader: int) -> int:
        """The node that is asked for its records."""
        return leader if self.preferred == NO_NODE else self.preferred

    def is_of(self, topic_id: bytes) -> bool:
        """Whether this is still the topic that was read before; old versions of Metadata have no ids."""
        before, self.topic_id = self.topic_id, topic_id
        return before in (topic_id, ZERO_UUID)

    def seek(self, position: Position) -> None:
        """Go there. Without an epoch there is nothing to validate."""
        self._move(FetchState.FETCHING)
        self.position = self.next = position
        self.leader_epoch = NO_EPOCH

    def reset(self, to: int) -> None:
        """Find out where that is, and go there."""
        self._move(FetchState.AWAIT_RESET)
        self.position = None
        self.reset_to = to

    def stick(self, error: ClientError) -> None:
        self._move(FetchState.STUCK)
        self.error = error

    def validate(self) -> None:
        self.fetch_state = FetchState.AWAIT_VALIDATION
        self.revision += 1
        self.offset_requested = False
        self.preferred = NO_NODE

    def request_offset(self, leader_epoch: int) -> None:
        self.offset_requested = True
        self.asked_epoch = leader_epoch

    def confirmed(self) -> None:
        """By the leader that was asked."""
        self.fetch_state = FetchState.FETCHING
        self.leader_epoch = self.asked_epoch
        self.succeeded()

    def fetch_again(self) -> None:
        """Drop the buffered records, and fetch from the position."""
        assert self.position is not None
        self.buffer.clear()
        self.revision += 1
        self.next = self.position

    def succeeded(self) -> None:
        self.attempts = 0
        self.retry_at = 0.0

    def _move(self, state: FetchState) -> None:
        self.fetch_state = state
        self.revision += 1
        self.buffer.clear()
        self.offset_requested = False
        self.error = None
        self.preferred = NO_NODE
        self.succeeded()


class SubscriptionState:
    """Of one consumer."""

    def __init__(self, metadata: Metadata, settings: ConsumerSettings) -> None:
        self.settings = settings
        self._metadata = metadata
        self._states: dict[TopicPartition, TopicPartitionState] = {}
        """In the order in which they are served: a partition that gave records goes to the end."""

    # Calls of the application.

    def assign(self, partitions: Iterable[TopicPartition], positions: Mapping[TopicPartition, Position] | None = None
               ) -> None:  # fmt: skip
        """Read these partitions only. Those that stay keep their position, unless one is given; new ones without a
        position start as the reset policy says."""
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
        """Buffered records stay, and are not returned."""
        for tp in partitions:
            self._assigned_state(tp).paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._assigned_state(tp).paused = False

    def limit(self, until: Mapping[TopicPartition, int]) -> None:
        """Fetch nothing from these offsets on. The other partitions have no limit."""
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
        """Increases when the position is set: a lookup that was started before is obsolete."""
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
        """The same with another function to take records and to count them."""
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
