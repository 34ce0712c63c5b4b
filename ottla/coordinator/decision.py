"""Decision: what a coordinator's state machine returns for an event, as values: records and replies.

A machine changes no durable state when it decides. It returns the records that would change it. The shard appends them
to its partition as one batch, and then passes each record to the machine's `replay`, as it does when it loads the log
after a restart. If the append fails, nothing has changed. Replies are sent when the records are committed; a decision
without records may depend on records appended before it, so its replies wait for those.

State that is lost with the broker (rejoined members, waiting requests, timers) is kept beside the durable state, and
the machine changes it directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from ottla.wire.batch import BatchHeader

ReplyTo: TypeAlias = object
"""One waiting request: made by the caller, opaque to the machines, answered once."""

Reply: TypeAlias = object
"""A response tree, a part of one that the handler puts together, or `Refused`."""


class LogRecord(NamedTuple):
    """A key and a value of the log, before they are bytes. Never changed once it is part of a decision."""

    key: tuple[object, ...]
    value: object | None
    """None: a tombstone."""


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int
    epoch: int


class PreEncoded(Protocol):
    """Records that are encoded already: the fast path, without an object for each record."""

    data: bytearray
    header: BatchHeader

    def replay_into(self, machine: Any) -> None:
        """Replay into the machine what `data` holds, by the methods that loading uses."""


class Decision(NamedTuple):
    records: Sequence[LogRecord] = ()
    """Appended as one batch: all or none."""
    replies: Sequence[tuple[ReplyTo, Reply]] = ()
    producer: ProducerIdAndEpoch | None = None
    """Set if the records belong to this producer's transaction: they count once it is committed."""
    pre_encoded: PreEncoded | None = None
    """Instead of `records`."""

    def __add__(self, other: object) -> Decision:
        """Both as one decision: the records are appended as one batch."""
        assert isinstance(other, Decision)
        assert self.producer == other.producer
        assert self.pre_encoded is None
        assert other.pre_encoded is None
        if not other.records and not other.replies:
            return self
        return Decision((*self.records, *other.records), (*self.replies, *other.replies), self.producer)


NOTHING = Decision()


def answer(reply_to: ReplyTo, reply: Reply) -> Decision:
    """A decision without records."""
    return Decision((), ((reply_to, reply),))


class Outcome:
    """Collects the records and replies of several steps into one decision."""

    __slots__ = ("_records", "_replies")

    def __init__(self) -> None:
        self._records: list[LogRecord] = []
        self._replies: list[tuple[ReplyTo, Reply]] = []

    def record(self, key: tuple[object, ...], value: object | None) -> None:
        self._records.append(LogRecord(key, value))

    def reply(self, reply_to: ReplyTo | None, reply: Reply) -> None:
        """Answer a waiting request; None: no request waits."""
        if reply_to is not None:
            self._replies.append((reply_to, reply))

    def decision(self) -> Decision:
        return Decision(self._records, self._replies)
