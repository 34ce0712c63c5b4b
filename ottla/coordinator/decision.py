"""What a coordinator's machine answers to an event: facts, no acts.

A machine changes nothing durable when it decides. It returns the records that would change it; the shard appends them
to its partition as one batch, and only then hands each record to the machine's `replay`, exactly as it does when it
reads the log after a restart. If the append fails, nothing has happened. Replies leave when the records are committed;
a decision without records may show what was appended before it, so its replies wait for that.

What is lost with the broker (who has rejoined, who waits, since when) lives beside the durable state, and the machine
changes it as it pleases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from ottla.wire.batch import BatchHeader

ReplyTo: TypeAlias = object
"""One waiting request: made by whoever asks, opaque to the machines, answered once."""

Reply: TypeAlias = object
"""A response tree, a part of one that the handler puts together, or `Refused`."""


class LogRecord(NamedTuple):
    """A key and a value of the log, before they are bytes. Never changed once it is part of a decision."""

    key: tuple[object, ...]
    value: object | None
    """None: a tombstone."""


class Producer(NamedTuple):
    """On whose behalf a transactional batch is written."""

    id: int
    epoch: int


class Sealed(Protocol):
    """Records that are bytes already, for what happens too often to make objects of it."""

    data: bytearray
    header: BatchHeader

    def replay_into(self, machine: Any) -> None:
        """Have the machine replay what it would read from `data`, by the same methods that loading uses."""


class Decision(NamedTuple):
    records: Sequence[LogRecord] = ()
    """Appended as one batch: all or none."""
    replies: Sequence[tuple[ReplyTo, Reply]] = ()
    producer: Producer | None = None
    """Set when the records belong to a transaction and count only once it is committed."""
    sealed: Sealed | None = None
    """Instead of `records`."""

    def __add__(self, other: object) -> Decision:
        """Both, as one: the records of both stand or fall together."""
        assert isinstance(other, Decision)
        assert self.producer == other.producer
        assert self.sealed is None
        assert other.sealed is None
        if not other.records and not other.replies:
            return self
        return Decision((*self.records, *other.records), (*self.replies, *other.replies), self.producer)


NOTHING = Decision()


def answer(reply_to: ReplyTo, reply: Reply) -> Decision:
    """A decision that changes nothing."""
    return Decision((), ((reply_to, reply),))


class Outcome:
    """A decision in the making: what several steps of one machine say together."""

    __slots__ = ("_records", "_replies")

    def __init__(self) -> None:
        self._records: list[LogRecord] = []
        self._replies: list[tuple[ReplyTo, Reply]] = []

    def record(self, key: tuple[object, ...], value: object | None) -> None:
        self._records.append(LogRecord(key, value))

    def reply(self, reply_to: ReplyTo | None, reply: Reply) -> None:
        """Answer whoever waits; if nobody does, nobody is answered."""
        if reply_to is not None:
            self._replies.append((reply_to, reply))

    def decision(self) -> Decision:
        return Decision(self._records, self._replies)
