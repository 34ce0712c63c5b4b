"""Columns and intervals as Spark writes them, checked without Spark: `id int, tags array<string>`, `10 minutes`."""

from __future__ import annotations

import re
from typing import Final

from ottla.config.named_options import did_you_mean

TYPES: Final = (
    "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "float", "real", "double",
    "decimal", "dec", "numeric", "string", "char", "character", "varchar", "binary", "date", "time", "timestamp",
    "timestamp_ntz", "timestamp_ltz", "variant", "void", "interval", "array", "map", "struct",
)  # fmt: skip
NUMBERS: Final = ("tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long")
_NAME: Final = re.compile(r"`(?:[^`]|``)+`|[A-Za-z_][A-Za-z0-9_]*")
_AFTER: Final = re.compile(r"(\s+not\s+null)?(\s+default\s+.+?)?(\s+comment\s+(['\"]).*\4)?", re.IGNORECASE | re.DOTALL)
_ARGUMENTS: Final = re.compile(r"([a-z_]+)\s*(?:\(([\d\s,]*)\))?(\s+collate\s+\w+)?", re.IGNORECASE)
_INTERVAL: Final = re.compile(r"interval(\s+\w+(\s+to\s+\w+)?)?", re.IGNORECASE)


class BadType(ValueError):
    """Columns that Spark would not understand."""


def columns(text: str) -> dict[str, str]:
    """Names in lower case, and their types; BadType says which is wrong."""
    found: dict[str, str] = {}
    for part in split(text):
        name, kind = _column(part, " :")
        if name.lower() in found:
            raise BadType(f"the column {name} is there twice")
        found[name.lower()] = " ".join(kind.lower().split())
    if not found:
        raise BadType("there is no column; write for example id int, name string")
    return found


def split(text: str, *, strict: bool = True) -> list[str]:
    """At commas, but not at those inside of struct<…> and decimal(…)."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    if depth and strict:
        raise BadType(f"{text.strip()!r} has brackets that do not match")
    return [part.strip() for part in parts if part.strip()]


def _column(part: str, between: str) -> tuple[str, str]:
    found = _NAME.match(part)
    if found is None:
        raise BadType(f"{part!r} does not begin with a column's name; others than letters, digits and _ need `…`")
    name, rest = found[0].strip("`"), part[found.end() :]
    if rest[:1] not in tuple(between) and not rest[:1].isspace():
        raise BadType(f"the column {part!r} has no type; write for example {name} string")
    kind = _checked(name, rest.lstrip(between + "\t\n"))
    return name, kind


def _checked(name: str, written: str) -> str:
    """The type, without what may follow it."""
    if not written:
        raise BadType(f"the column {name} has no type; write for example {name} string")
    head = re.match(r"[A-Za-z_]+", written)
    base = head[0].lower() if head else written
    if base not in TYPES:
        hint = did_you_mean(base, TYPES, f"there are {', '.join(TYPES)}")
        raise BadType(f"the column {name} has the type {base!r}, which Spark does not have{hint}")
    if base in ("array", "map", "struct"):
        return _nested(name, base, written)
    pattern = _INTERVAL if base == "interval" else _ARGUMENTS
    found = pattern.match(written)
    kind = found[0] if found else base
    if not _AFTER.fullmatch(written[len(kind) :]):
        rest = written[len(kind) :].strip()
        raise BadType(f"the column {name} has the type {written!r}, of which {rest!r} means nothing")
    return kind


def _nested(name: str, base: str, written: str) -> str:
    begin, end = written.find("<"), written.rfind(">")
    if begin < 0 or end < begin or written[len(base) : begin].strip() or not _AFTER.fullmatch(written[end + 1 :]):
        raise BadType(f"the column {name} has the type {written!r}; {base} is written {_FORMS[base]}")
    inner = split(written[begin + 1 : end])
    if base == "struct":
        for part in inner:
            _column(part, ": ")
    elif len(inner) != (1 if base == "array" else 2):
        raise BadType(f"the column {name} has the type {written!r}; {base} is written {_FORMS[base]}")
    else:
        for part in inner:
            _checked(name, part)
    return written[: end + 1]


_FORMS: Final = {"array": "array<string>", "map": "map<string, int>", "struct": "struct<a: int, b: string>"}


def type_at(text: str, path: list[str]) -> str | None:
    """The type of a field, through structs: `["buyer", "at"]` in `buyer struct<at: timestamp>`. None: there is none."""
    kind = columns(text).get(path[0].lower())
    if kind is None or len(path) == 1:
        return kind
    if not kind.startswith("struct"):
        return None
    return type_at(kind[kind.find("<") + 1 : kind.rfind(">")], path[1:])


# Intervals.

SECONDS: Final = {
    "microsecond": 1e-6,
    "millisecond": 1e-3,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86400.0,
    "week": 604800.0,
}
"""Months and years have no fixed length: Spark refuses them for triggers, and guesses for watermarks."""
_NUMBER: Final = re.compile(r"\d+(\.\d+)?")


def seconds(text: str) -> float:
    """Of an interval: 10 minutes, 1 hour 30 minutes, interval 5 seconds. ValueError, with what to write instead, for
    everything that Spark would refuse."""
    words = text.lower().split()
    if words[:1] == ["interval"]:
        words = words[1:]
    if not words:
        raise ValueError(f"{text!r} is no length of time; write for example 10 minutes")
    total = 0.0
    for at in range(0, len(words), 2):
        if not _NUMBER.fullmatch(words[at]):
            raise ValueError(f"{text!r} is no length of time: {words[at]!r} is no number; write for example 10 minutes")
        if at + 1 == len(words):
            raise ValueError(f"{text!r} has no unit; write for example {words[at]} seconds")
        total += float(words[at]) * _unit(text, words[at + 1])
    return total


def _unit(text: str, word: str) -> float:
    name = word.removesuffix("s")
    if name in SECONDS:
        return SECONDS[name]
    units = {each: f"{each}s" for each in SECONDS}
    hint = did_you_mean(name, units, f"there are {', '.join(units.values())}", shown=units)
    raise ValueError(f"{text!r} is no length of time: there is no unit {word!r}{hint}")
