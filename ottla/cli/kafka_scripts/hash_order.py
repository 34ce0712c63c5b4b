"""The order in which Kafka's tools print what they keep in a hash table: that of java.util.HashMap, by hashes of names.

It looks like none, but it is always the same, and scripts that were written against it see no difference here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

TABLE_SIZE_MIN: Final = 16
"""Of a table that was not told how much it will hold."""
_FULL: Final = 0.75


def table_size(expected: int) -> int:
    """Of a table that was told: the next power of two."""
    return 1 << max(expected - 1, 0).bit_length()


def hash_order(names: Sequence[str], size: int) -> list[str]:
    """Names as such a table lists them, having grown as far as it must; those of one bucket in the order they came."""
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
