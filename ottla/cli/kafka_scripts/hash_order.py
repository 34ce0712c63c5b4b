"""Iteration order of java.util.HashMap, in which Kafka's tools print topics.

It looks random but is always the same: scripts that depend on it work with these tools, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

TABLE_SIZE_MIN: Final = 16
"""Initial size of a table without an expected number of entries."""
_FULL: Final = 0.75


def table_size(expected: int) -> int:
    """Size of a table for an expected number of entries: the next power of two."""
    return 1 << max(expected - 1, 0).bit_length()


def hash_order(names: Sequence[str], size: int) -> list[str]:
    """Names in the order of the table, grown as necessary; in a bucket in the order of insertion."""
    while len(names) > size * _FULL:
        size *= 2
    return sorted(names, key=lambda name: _spread(name) % size)


def _spread(name: str) -> int:
    """String.hashCode, with its upper half mixed into the lower."""
    units = name.encode("utf-16-be")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return value ^ (value >> 16)
