"""Messages of PostgreSQL's `pgoutput` (protocol version 1), and whole transactions made of them. Pure.

The server sends committed transactions one after another, in the order of their commits: Begin, then the changes with
a Relation message before the first change of a table and whenever its columns change, then Commit. Positions are
numbers here, bytes into the write-ahead log; a transaction lies where its commit record *ends*, because positions of
single changes overlap: the first change of a transaction can carry the position of the commit before it.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final

EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""Times are microseconds since then."""


class Unchanged(Enum):
    """A big value (TOAST) that an update did not touch is not in the log."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED
Value = str | None | Unchanged
"""As text, in PostgreSQL's own form."""


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type_oid: int
    identifies: bool
    """Part of the table's replica identity."""


@dataclass(frozen=True, slots=True)
class Relation:
    oid: int
    schema: str
    table: str
    identity: str
    """d: primary key, i: an index, f: the full row, n: nothing."""
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class RowChange:
    kind: str
    """I, U, D or T, as in the message."""
    relation: Relation
    old: tuple[Value, ...] | None = None
    old_is_key: bool = False
    """Only the columns of the identity are filled in `old`."""
    new: tuple[Value, ...] | None = None


@dataclass(slots=True)
class Transaction:
    xid: int
    commit_lsn: int
    committed_at: datetime
    end_lsn: int = 0
    changes: list[RowChange] = field(default_factory=list)


class Malformed(ValueError):
    """Not what version 1 of the protocol says."""


def lsn_number(text: str) -> int:
    """16/B374D848 as a position."""
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def lsn_text(number: int) -> str:
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


def transactions(messages: Iterable[bytes]) -> Iterator[Transaction]:
    """Whole ones; relations are remembered over transactions, so start where the server starts."""
    relations: dict[int, Relation] = {}
    current: Transaction | None = None
    for message in messages:
        reader = _MessageReader(message)
        kind = reader.character()
        if kind == "B":
            commit_lsn, at, xid = reader.unpack("!QqI")
            current = Transaction(xid, commit_lsn, EPOCH + timedelta(microseconds=at))
        elif kind == "C":
            if current is None:
                raise Malformed("a commit without a beginning")
            _, _, current.end_lsn, _ = reader.unpack("!BQQq")
            yield current
            current = None
        elif kind == "R":
            relation = _relation(reader)
            relations[relation.oid] = relation
        elif kind in "IUDT":
            if current is None:
                raise Malformed(f"a change ({kind}) outside of a transaction")
            current.changes.extend(_changes(kind, reader, relations))
        elif kind not in "OYM":  # origin, type, message: nothing for us
            raise Malformed(f"unknown message {kind!r}")


def _relation(reader: _MessageReader) -> Relation:
    (oid,) = reader.unpack("!I")
    schema, table, identity = reader.string(), reader.string(), reader.character()
    (count,) = reader.unpack("!H")
    columns = []
    for _ in range(count):
        (flags,) = reader.unpack("!B")
        name = reader.string()
        type_oid, _modifier = reader.unpack("!Ii")
        columns.append(RelationColumn(name, type_oid, bool(flags & 1)))
    return Relation(oid, schema or "pg_catalog", table, identity, tuple(columns))


def _changes(kind: str, reader: _MessageReader, relations: dict[int, Relation]) -> Iterator[RowChange]:
    if kind == "T":
        count, _options = reader.unpack("!IB")
        for oid in reader.unpack(f"!{count}I"):
            yield RowChange(kind, relations[oid])
        return
    (oid,) = reader.unpack("!I")
    relation = relations[oid]
    mark = reader.character()
    old = None
    old_is_key = mark == "K"
    if mark in "KO":
        old = reader.row()
        mark = reader.character() if kind == "U" else ""
    new = reader.row() if mark == "N" else None
    if new is None and kind in "IU":
        raise Malformed(f"a change ({kind}) without a new row")
    yield RowChange(kind, relation, old, old_is_key, new)


class _MessageReader:
    def __init__(self, message: bytes) -> None:
        self._message = message
        self._at = 0

    def unpack(self, form: str) -> tuple[int, ...]:
        try:
            values = struct.unpack_from(form, self._message, self._at)
        except struct.error as problem:
            raise Malformed(f"a message that ends early: {problem}") from None
        self._at += struct.calcsize(form)
        return values

    def character(self) -> str:
        return chr(self.unpack("!B")[0])

    def string(self) -> str:
        end = self._message.find(b"\0", self._at)
        if end < 0:
            raise Malformed("a name that does not end")
        text = self._message[self._at : end].decode()
        self._at = end + 1
        return text

    def row(self) -> tuple[Value, ...]:
        (count,) = self.unpack("!H")
        return tuple(self._value() for _ in range(count))

    def _value(self) -> Value:
        kind = self.character()
        if kind == "n":
            return None
        if kind == "u":
            return UNCHANGED
        if kind != "t":
            raise Malformed(f"a value of the kind {kind!r}")
        (length,) = self.unpack("!I")
        if self._at + length > len(self._message):
            raise Malformed("a value that ends early")
        text = self._message[self._at : self._at + length].decode()
        self._at += length
        return text
