"""Fetch position of a consumer in one partition, and whether the current leader has confirmed it.

    AWAIT_RESET ──ListOffsets──► FETCHING ◄──OffsetForLeaderEpoch── AWAIT_VALIDATION
        ▲                           │  └──────────a new leader───────────►─┘
        └─────offset out of range───┤
                                    └──and no policy to reset by──► STUCK ──seek──► FETCHING

Every record belongs to the epoch of the leader that wrote it. After an election a consumer asks the new leader where
the epoch of its last record ended there: if before the consumer's position, the log was truncated and what the
consumer read is gone (KIP-320).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from ottla.client.consuming.completed_fetch import CompletedFetch
from ottla.client.core.list_offsets import offsets_request
from ottla.client.core.requests import CONSUMER, NO_NODE, RequestSettings
from ottla.client.errors import BadSetting, ClientError
from ottla.client.values import COMMITTED, EARLIEST, LATEST, NO_EPOCH, UNCOMMITTED, TopicPartition
from ottla.errors import ErrorCode
from ottla.wire.schema.list_offsets import ListOffsetsRequest
from ottla.wire.schema.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.wire.tree import ZERO_UUID

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
    """The consumer cannot go on in this partition by itself; `seek` says where it should."""

    def __init__(self, message: str, tp: TopicPartition, offset: int, code: ErrorCode) -> None:
        super().__init__(message, code=code)
        self.partition = tp
        self.offset = offset


class OffsetOutOfRange(PositionError):
    """The log does not have this offset (any more, or yet), and nothing says where else to begin."""

    hint = "Set auto_offset_reset, or seek to an offset that the log has."


class LogTruncated(PositionError):
    """Records that were read are not in the log any more. `offset` is where it parts from what was read."""

    hint = "Records that were read are lost or replaced; seek back to `offset`, or set auto_offset_reset."


class RecordsDamaged(PositionError):
    """What the broker sent cannot be what was written. The next attempt fetches it again."""

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
    """What the user gets next."""
    next: Position = NOWHERE
    """What is fetched next: ahead of the position by what is buffered."""
    until: int = NO_LIMIT
    """Nothing is fetched from here on."""
    buffer: deque[CompletedFetch] = field(default_factory=deque)
    reset_to: int = LATEST
    paused: bool = False
    held: bool = False
    """Nothing is asked or shown until somebody has said where it begins, or has let go of it."""
    revision: int = 0
    """Rises whenever answers that are on their way lose their meaning."""
    offset_requested: bool = False
    """A question about its offset is out."""
    asked_epoch: int = NO_EPOCH
    """Of the leader that it went to."""
    leader_epoch: int = NO_EPOCH
    """Of the leader by whom the position is known to be right."""
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
        """Drop what is buffered, and fetch from where the user is."""
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


def list_offsets(states: Iterable[TopicPartitionState], settings: ConsumerSettings) -> ListOffsetsRequest:
    """Where is the offset that each is to be reset to?"""
    wanted = ((state.tp, state.asked_epoch, state.reset_to) for state in states)
    return offsets_request(wanted, settings.isolation_level, settings.request_timeout_ms)


def end_of_epoch(states: Iterable[TopicPartitionState]) -> OffsetForLeaderEpochRequest:
    """Where did the epoch end that each has read last?"""
    topics: dict[str, OffsetForLeaderTopic] = {}
    for state in states:
        name, partition = state.tp
        wanted = OffsetForLeaderPartition(
            partition=partition, current_leader_epoch=state.asked_epoch, leader_epoch=state.next.epoch
        )
        topics.setdefault(name, OffsetForLeaderTopic(topic=name)).partitions.append(wanted)
    return OffsetForLeaderEpochRequest(replica_id=CONSUMER, topics=list(topics.values()))
