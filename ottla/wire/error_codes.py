"""Counts the error codes in responses, at all places where the schema has one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.wire.fields import structure
from ottla.wire.tree import Struct

ErrorCounts = dict[int, int]
"""How often each error code was sent."""
Counter = Callable[[Struct, ErrorCounts], None]

_NAMES: Final = ("error_code", "partition_error_code", "topic_config_error_code")


def count(counts: ErrorCounts, code: int, times: int = 1) -> None:
    counts[code] = counts.get(code, 0) + times


def counter_of(cls: type[Struct]) -> Counter | None:
    """Counts the errors in a message of this class. None: it has no error code."""
    fields = [line.split()[:2] for line in cls.FIELDS]
    own = [name for name, _ in fields if name in _NAMES]
    inner: list[tuple[str, bool, Counter]] = []
    for name, kind in fields:
        element = kind.removeprefix("[]")
        if element[0].isupper() and (counter := counter_of(structure(cls, element))) is not None:
            inner.append((name, kind.startswith("[]"), counter))
    if not own and not inner:
        return None

    def counted(message: Struct, counts: ErrorCounts) -> None:
        for name in own:
            if code := getattr(message, name):
                count(counts, code)
        for name, many, counter in inner:
            part = getattr(message, name)
            if not part:
                continue
            if not many:
                counter(part, counts)
                continue
            for each in part:
                counter(each, counts)

    return counted
