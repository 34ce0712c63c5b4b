"""What a shard asks of a group, whichever protocol its members speak.

`ClassicGroup` and `ConsumerGroup` are the two kinds. `group_machine` owns them, routes requests
to them, schedules them by `deadline`, and decides nothing that one of them could decide. All methods that take a
request may raise Refused: then nothing has changed and the one who asked is told. Records change a group only when
they come back through `replay`; a kind that is asked to end itself returns tombstones, and the shard forgets it when
those are replayed.

A group changes its kind when the records of a decision say so: tombstones of the one, then records of the other.
Replay drops the one and makes the other; `settle` then starts what replay cannot know, such as session timers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from ottla.coordinator.decision import Decision, LogRecord, ReplyTo
from ottla.coordinator.group_context import MemberClient
from ottla.coordinator.group_records import OffsetCommitValue
from ottla.wire.schema.heartbeat import HeartbeatRequest
from ottla.wire.schema.join_group import JoinGroupRequest
from ottla.wire.schema.leave_group import MemberIdentity
from ottla.wire.schema.sync_group import SyncGroupRequest


class GroupKind(Protocol):
    id: str
    deadline: float | None
    """Not later than the moment `expire` has something to do (it may be earlier: then `expire` finds nothing)."""

    @property
    def type_name(self) -> str:
        """`classic` or `consumer`, as ListGroups says it."""

    @property
    def state_name(self) -> str: ...

    @property
    def protocol_type(self) -> str: ...

    @property
    def is_empty(self) -> bool:
        """No members."""

    @property
    def member_count(self) -> int: ...

    # The four requests of the classic protocol. `leave` is answered with a LeaveGroupResponse.

    def join(
        self, request: JoinGroupRequest, version: int, client: MemberClient, reply_to: ReplyTo, now: float, now_ms: int
    ) -> Decision:
        """The version says what the sender can do: be told its id first (KIP-394), be told not to assign (KIP-814)."""

    def sync(self, request: SyncGroupRequest, reply_to: ReplyTo, now: float, now_ms: int) -> Decision: ...

    def heartbeat_classic(self, request: HeartbeatRequest, reply_to: ReplyTo, now: float) -> Decision: ...

    def leave(self, members: Sequence[MemberIdentity], reply_to: ReplyTo, now: float, now_ms: int) -> Decision: ...

    # Time.

    def expire(self, now: float, now_ms: int) -> Decision: ...

    def settle(self, now: float, now_ms: int) -> Decision:
        """Replay is done (of a log, or of a decision that made this group): start the timers that are not running."""

    def parked(self) -> Iterable[ReplyTo]:
        """Whoever still waits for an answer: asked once, when the shard moves away."""

    # What others may do with the group's offsets.

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, *, version: int, transactional: bool
    ) -> None: ...

    def committed(self, member_id: str, now: float) -> None:
        """A member has committed: a sign of life in the classic protocol."""

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None: ...

    def check_offset_delete(self) -> None: ...

    def subscribes(self, topic: str) -> bool: ...

    def kept_since_ms(self, commit: OffsetCommitValue) -> int | None:
        """KIP-211: since when the offset is kept for nobody; None while it must not expire."""

    # Its end.

    def check_delete(self) -> None: ...

    def tombstones(self) -> list[LogRecord]:
        """For every key the group has in the log, its offsets apart."""
