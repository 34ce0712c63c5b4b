"""Group member: what classic and KIP-848 members share, the contract with the shell, and finding the coordinator.

A member is a state machine without input or output. The shell calls it with each event (an answer came, a request
failed, a callback returned, the user polled, its deadline has passed) and the time, and gets back the actions to do, in
order. It never waits: `deadline` says until when nothing needs to be done if nothing happens.

The shell's part of the contract
- `Send`: as in `core.requests`, with `answered` and `failed` called with the request. FindCoordinator goes to ANY_NODE.
- `Revoke`, `Assign`, `Lose`: one after another, each with the user's callback; after a `Revoke` or a `Lose` (not an
  `Assign`) `called_back`. Revoked partitions may still be committed, lost ones may already belong to another member.
- `CountPartitions`, `NameTopics`: look it up in fresh metadata, then `counted` or `named`.
- `Fail`: the member has ended; raise the error to the application.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from ottla.client.core.find_coordinator import GROUP, coordinator_request, found_coordinator
from ottla.client.core.requests import ANY_NODE, Node, RequestSettings, Send
from ottla.client.values import TopicPartition
from ottla.errors import RETRIABLE, ErrorCode
from ottla.wire.schema.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.tree import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings(RequestSettings):
    """Kafka's names and defaults."""

    group_id: str
    group_instance_id: str | None = None
    client_rack: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000


@dataclass(frozen=True, slots=True)
class Revoke:
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Assign:
    """The new partitions; all of them for a member that has just joined, and perhaps none."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Lose:
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, eq=False)
class CountPartitions:
    topics: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class NameTopics:
    ids: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class Fail:
    code: ErrorCode
    message: str | None = None


Action = Send | Revoke | Assign | Lose | CountPartitions | NameTopics | Fail


class MemberMachine(ABC):
    """One member of one group; see `ClassicMember` and `ConsumerMember`.

    A subclass decides in `_advance` what comes next, given that nothing it waits for is outstanding.
    """

    def __init__(self, settings: MemberSettings) -> None:
        self.settings = settings
        self.coordinator: Node | None = None
        self.member_id = ""
        self.owned: frozenset[TopicPartition] = frozenset()
        """The partitions that the application reads, or is about to revoke."""
        self.away = False
        """Out of the group since the user stopped polling; the next poll brings it back."""
        self.failure: Fail | None = None
        self.closed = False
        self._leave_requested = False
        self._closing = False
        self._leave_static = False
        self._out: list[Action] = []
        self._request: Message | None = None
        """The one in flight that decides what comes next. Answers to any other are too late to matter."""
        self._giving_up: frozenset[TopicPartition] | None = None
        """The partitions whose callback is running."""
        self._polled_at = 0.0
        self._retry_at = 0.0
        self._retries = 0

    # Events, from the shell.

    def answered(self, request: Message, response: Message, now: float) -> list[Action]:
        if self.failure is None and not self.closed:
            if not isinstance(response, FindCoordinatorResponse):
                self._answered(request, response, now)
            elif request is self._request:
                self._request = None
                self._found(response, now)
        return self._decided(now)

    def failed(self, request: Message, now: float) -> list[Action]:
        """No answer came: the connection was lost, or the time is over."""
        if self.failure is None and not self.closed:
            self._failed(request, now)
        return self._decided(now)

    def called_back(self, now: float) -> list[Action]:
        """The callback of the last `Revoke` or `Lose` has returned."""
        if self._giving_up is not None:
            self.owned -= self._giving_up
            self._giving_up = None
            self._called_back(now)
        return self._decided(now)

    def polled(self, now: float) -> list[Action]:
        """The user asked for records, which shows that it is alive and not only its heart beats."""
        self._polled_at = now
        self.away = False
        return self._decided(now)

    def wake(self, now: float) -> list[Action]:
        """`deadline` has passed, or perhaps it has."""
        if self._joined() and not self._leave_requested and not self.away and now >= self._poll_deadline():
            self.away = True
            self._on_poll_timeout(now)
        return self._decided(now)

    def unsubscribe(self, now: float) -> list[Action]:
        self._forget_subscription()
        self._leave_requested = True
        return self._decided(now)

    def close(self, now: float, *, leave_static: bool = False) -> list[Action]:
        """Revoke all partitions and leave for good. A static member stays in the group by default: it is expected
        back."""
        self.closed = self.closed or self.failure is not None
        self._closing = self._leave_requested = True
        self._leave_static = leave_static
        return self._decided(now)

    @property
    def deadline(self) -> float | None:
        if self.closed or self.failure is not None:
            return None
        times = list(self._deadlines())
        if self._retry_at and self._request is None:
            times.append(self._retry_at)
        if self._joined() and not self._leave_requested and not self.away:
            times.append(self._poll_deadline())
        return min(times, default=None)

    # Different for each kind of member.

    @abstractmethod
    def _advance(self, now: float) -> None:
        """Do what comes next, if nothing is waited for."""

    @abstractmethod
    def _answered(self, request: Message, response: Message, now: float) -> None: ...

    @abstractmethod
    def _failed(self, request: Message, now: float) -> None: ...

    @abstractmethod
    def _called_back(self, now: float) -> None:
        """`owned` is up to date again."""

    @abstractmethod
    def _joined(self) -> bool:
        """Whether the coordinator counts on this member."""

    @abstractmethod
    def _on_poll_timeout(self, now: float) -> None:
        """Leave without callbacks, because the application does not poll, and count all partitions as lost."""

    @abstractmethod
    def _forget_subscription(self) -> None: ...

    @abstractmethod
    def _deadlines(self) -> Iterable[float]: ...

    # Common moves.

    def _decided(self, now: float) -> list[Action]:
        if now >= self._retry_at:
            self._retry_at = 0.0
        if self.failure is None and not self.closed:
            self._advance(now)
        elif self.owned and self._giving_up is None:
            self._give_up(Lose(self.owned))
        decided, self._out = self._out, []
        return decided

    def _waits(self, now: float) -> bool:
        """For an answer, or for the time to try again."""
        return self._request is not None or now < self._retry_at

    def _send(self, request: Message, timeout_ms: int | None = None) -> Message:
        timeout = self.settings.request_timeout_ms if timeout_ms is None else timeout_ms
        to = ANY_NODE if isinstance(request, FindCoordinatorRequest) else self.coordinator
        assert to is not None, "a coordinator has to be found before it is spoken to"
        self._out.append(Send(request, to, timeout / 1000))
        return request

    def _give_up(self, action: Revoke | Lose) -> None:
        self._giving_up = action.partitions
        self._out.append(action)

    def _take(self, partitions: frozenset[TopicPartition]) -> None:
        self.owned |= partitions
        self._out.append(Assign(partitions))

    def _find_coordinator(self) -> None:
        self._request = self._send(coordinator_request(self.settings.group_id, GROUP))

    def _found(self, response: FindCoordinatorResponse, now: float) -> None:
        broker, code, message = found_coordinator(response)
        if broker is not None:
            self.coordinator = broker
        elif code in RETRIABLE:
            self._back_off(now)
        else:
            self._fail(code, message)

    def _lose_coordinator(self, now: float) -> None:
        self.coordinator = None
        self._back_off(now)

    def _back_off(self, now: float) -> None:
        self._retry_at = now + self.settings.retry_backoff_s(self._retries)
        self._retries += 1

    def _succeeded(self) -> None:
        self._retries = 0
        self._retry_at = 0.0

    def _fail(self, code: ErrorCode, message: str | None = None) -> None:
        self.failure = Fail(code, message)
        self._out.append(self.failure)

    def _poll_deadline(self) -> float:
        return self._polled_at + self.settings.max_poll_interval_ms / 1000
