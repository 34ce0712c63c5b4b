"""Rows of a table and changes of rows as records: Debezium's envelope in JSON, the primary key as key. Pure.

    key    {"id": 7}
    value  {"before": null, "after": {"id": 7, "name": "Meryl"}, "source": {…}, "op": "c", "ts_ms": 1731696000000}

`op` is r (read by the snapshot), c, u or d; a delete is followed by a tombstone, a key without a value, so that a
compacted topic forgets the row. An update that changes the key is a delete of the old and a creation of the new, as in
Debezium. Values are what Debezium gives with schemas.enable=false, decimal.handling.mode=string,
time.precision.mode=isostring and binary.handling.mode=base64: JSON's numbers and booleans where they are exact, text
otherwise. A big value that an update left alone is not in the log; it is taken from the old row where the table's
replica identity is full, and is `__debezium_unavailable_value` otherwise.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ottla.spark.connectors.pgoutput import UNCHANGED, Relation, RowChange, Transaction, Value

UNAVAILABLE: Final = "__debezium_unavailable_value"
CONNECTOR: Final = "postgresql"


@dataclass(frozen=True, slots=True)
class Origin:
    """What `source` in the envelope says of the whole capture."""

    name: str
    """The prefix of the topics' names."""
    database: str


@dataclass(frozen=True, slots=True)
class Captured:
    """One record to be."""

    topic: str
    key: str | None
    value: str | None
    timestamp: datetime
    op: str
    """Of the envelope; a tombstone has that of its delete."""
    lsn: int


class Keys:
    """Which columns are the key of a table: those of its replica identity, unless that is the full row."""

    def __init__(self, primary: Mapping[tuple[str, str], tuple[str, ...]]) -> None:
        self._primary = primary

    def of(self, relation: Relation) -> tuple[str, ...]:
        if relation.identity != "f":
            return tuple(column.name for column in relation.columns if column.identifies)
        return self._primary[relation.schema, relation.table]


def captured(transaction: Transaction, origin: Origin, keys: Keys, *, truncates: bool = False) -> Iterator[Captured]:
    for change in transaction.changes:
        if change.kind == "T" and not truncates:
            continue
        yield from _records(change, transaction, origin, keys)


def inserted_first(changes: Iterable[RowChange], keys: Keys) -> dict[tuple[str, str], set[str]]:
    """By table: keys of rows whose first change is an insertion."""
    seen: dict[tuple[str, str], set[str]] = {}
    brought: dict[tuple[str, str], set[str]] = {}
    for change in changes:
        if change.kind == "T":
            continue
        table = (change.relation.schema, change.relation.table)
        names = keys.of(change.relation)
        for row, brings in ((change.old, False), (change.new, change.kind == "I" or _moved(change, names))):
            if row is None:
                continue
            key = key_text(change.relation, row, names)
            if key not in seen.setdefault(table, set()):
                seen[table].add(key)
                if brings:
                    brought.setdefault(table, set()).add(key)
    return brought


def snapshot_record(
    relation: Relation, row: tuple[Value, ...], origin: Origin, keys: Keys, at: datetime, lsn: int
) -> Captured:
    return Captured(
        topic_name(origin, relation),
        key_text(relation, row, keys.of(relation)),
        _envelope("r", None, _object(relation, row), _source(origin, relation, at, lsn, None), at),
        at,
        "r",
        lsn,
    )


def topic_name(origin: Origin, relation: Relation) -> str:
    return f"{origin.name}.{relation.schema}.{relation.table}"


def key_text(relation: Relation, row: tuple[Value, ...], names: tuple[str, ...]) -> str:
    values = _object(relation, row)
    return json.dumps({name: values[name] for name in names}, ensure_ascii=False, separators=(",", ":"))


def _records(change: RowChange, transaction: Transaction, origin: Origin, keys: Keys) -> Iterator[Captured]:
    relation, at, lsn = change.relation, transaction.committed_at, transaction.end_lsn
    topic = topic_name(origin, relation)
    source = _source(origin, relation, at, lsn, transaction.xid)

    def record(op: str, key: str | None, before: dict[str, Any] | None, after: dict[str, Any] | None) -> Captured:
        return Captured(topic, key, _envelope(op, before, after, source, at), at, op, lsn)

    names = keys.of(relation)
    if change.kind == "T":
        yield record("t", None, None, None)
        return
    old = None if change.old is None else _object(relation, change.old)
    old_key = None if change.old is None else key_text(relation, change.old, names)
    if change.kind == "D":
        yield record("d", old_key, old, None)
        yield Captured(topic, old_key, None, at, "d", lsn)
        return
    assert change.new is not None
    new_row = _filled(change)
    new, new_key = _object(relation, new_row), key_text(relation, new_row, names)
    if change.kind == "I":
        yield record("c", new_key, None, new)
    elif old_key is not None and old_key != new_key:
        yield record("d", old_key, old, None)
        yield Captured(topic, old_key, None, at, "d", lsn)
        yield record("c", new_key, None, new)
    else:
        # An old row that is only the key says nothing that `after` does not say.
        yield record("u", new_key, None if change.old_is_key else old, new)


def _moved(change: RowChange, names: tuple[str, ...]) -> bool:
    """An update that changed the key."""
    if change.kind != "U" or change.old is None or change.new is None:
        return False
    return key_text(change.relation, change.old, names) != key_text(change.relation, _filled(change), names)


def _filled(change: RowChange) -> tuple[Value, ...]:
    """The new row; unchanged values are taken from the old row where that is known."""
    assert change.new is not None
    if change.old is None or change.old_is_key:
        return change.new
    return tuple(old if new is UNCHANGED else new for old, new in zip(change.old, change.new, strict=True))


def _object(relation: Relation, row: tuple[Value, ...]) -> dict[str, Any]:
    return {
        column.name: UNAVAILABLE if value is UNCHANGED else json_value(column.type_oid, value)
        for column, value in zip(relation.columns, row, strict=True)
    }


def _source(origin: Origin, relation: Relation, at: datetime, lsn: int, xid: int | None) -> dict[str, Any]:
    return {
        "connector": CONNECTOR,
        "name": origin.name,
        "ts_ms": int(at.timestamp() * 1000),
        "snapshot": "true" if xid is None else "false",
        "db": origin.database,
        "schema": relation.schema,
        "table": relation.table,
        "txId": xid,
        "lsn": lsn,
    }


def _envelope(op: str, before: Any, after: Any, source: dict[str, Any], at: datetime) -> str:
    # Debezium stamps the time of processing here; that of the commit makes a batch that is run again the same.
    envelope = {"before": before, "after": after, "source": source, "op": op, "ts_ms": int(at.timestamp() * 1000)}
    return json.dumps(envelope, ensure_ascii=False, separators=(",", ":"))


def _float(text: str) -> float | str:
    """NaN and the infinities are no numbers in JSON."""
    number = float(text)
    return number if number - number == 0 else text


def _bytes(text: str) -> str:
    return base64.b64encode(bytes.fromhex(text.removeprefix("\\x"))).decode()


def _iso(text: str) -> str:
    """2026-11-15 23:59:59+00 with a T and a Z, as JSON's readers expect it."""
    text = text.replace(" ", "T", 1)
    return text[:-3] + "Z" if text.endswith("+00") else text


_ONE: Final[dict[int, Callable[[str], Any]]] = {
    16: lambda text: text == "t",
    17: _bytes,
    20: int,
    21: int,
    23: int,
    26: int,
    700: _float,
    701: _float,
    1114: _iso,
    1184: _iso,
}
"""By the type's oid: bool, bytea, int8, int2, int4, oid, float4, float8, timestamp, timestamptz. Others stay text."""
_ARRAYS: Final = {1000: 16, 1001: 17, 1005: 21, 1007: 23, 1016: 20, 1021: 700, 1022: 701, 1115: 1114, 1185: 1184}
_TEXT_ARRAYS: Final = frozenset({1009, 1014, 1015, 1182, 1231, 2951})
"""Of text, char, varchar, date, numeric, uuid."""


def json_value(type_oid: int, value: str | None) -> Any:
    if value is None:
        return None
    if type_oid in _ONE:
        return _ONE[type_oid](value)
    if type_oid in _ARRAYS or type_oid in _TEXT_ARRAYS:
        return _array(value, _ONE.get(_ARRAYS.get(type_oid, 0), str))
    return value


def _array(text: str, convert: Callable[[str], Any]) -> Any:
    """{1,2}, {"a b",NULL}, {{1},{2}}; bounds other than from one, as in [0:1]={1,2}, are dropped."""
    if text.startswith("["):
        text = text[text.index("{") :]
    stack: list[list[Any]] = [[]]
    at = 0
    while at < len(text):
        character = text[at]
        if character == "{":
            stack.append([])
            at += 1
        elif character == "}":
            done = stack.pop()
            stack[-1].append(done)
            at += 1
        elif character == ",":
            at += 1
        else:
            item, at = _item(text, at, convert)
            stack[-1].append(item)
    return stack[0][0]


def _item(text: str, at: int, convert: Callable[[str], Any]) -> tuple[Any, int]:
    if text[at] != '"':
        end = min(position for position in (text.find(",", at), text.find("}", at)) if position >= 0)
        plain = text[at:end]
        return (None if plain == "NULL" else convert(plain)), end
    characters: list[str] = []
    at += 1
    while text[at] != '"':
        if text[at] == "\\":
            at += 1
        characters.append(text[at])
        at += 1
    return convert("".join(characters)), at + 1
