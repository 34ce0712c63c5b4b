"""Offset map of the log cleaner: the last offset of every key in a part of a log, in a fixed amount of memory.

A key is identified by sixteen bytes of its BLAKE2 hash: two keys with the same bytes would delete each other's records,
and such a pair cannot be constructed. An entry has twenty-four bytes, in three columns. The table uses open addressing;
its number of slots is prime, so that every step size visits all of them.
"""

from __future__ import annotations

import struct
from array import array
from hashlib import blake2b

SLOT_BYTES = 24
SLOTS_MIN = 7
NOT_FOUND = -1

_halves = struct.Struct("=QQ").unpack


class OffsetMap:
    """Filled in the order of the log; `full` when no other key should be put into it."""

    __slots__ = ("_capacity", "_firsts", "_next_offsets", "_seconds", "_slots", "size")

    def __init__(self, *, keys_max: int, buffer_bytes: int, load_factor: float) -> None:
        """Room for `keys_max` keys, or for as many as the buffer holds."""
        wanted = 2 * keys_max  # half empty it is twice as fast as nearly full
        slots = _prime_at_most(max(min(wanted, buffer_bytes // SLOT_BYTES), SLOTS_MIN))
        self._slots = slots
        self._capacity = min(max(int(slots * load_factor), 1), slots - 1)
        self._firsts = array("Q", bytes(8 * slots))
        self._seconds = array("Q", bytes(8 * slots))
        self._next_offsets = array("q", bytes(8 * slots))  # one more than the offset: 0 is an empty slot
        self.size = 0

    @property
    def full(self) -> bool:
        return self.size >= self._capacity

    def put(self, key: bytes, offset: int) -> None:
        """The key was seen at `offset`, behind every offset it was seen at before."""
        first: int
        second: int
        first, second = _halves(blake2b(key, digest_size=16).digest())
        slots, firsts, seconds, next_offsets = self._slots, self._firsts, self._seconds, self._next_offsets
        at = first % slots
        step = 0
        while next_offsets[at]:
            if firsts[at] == first and seconds[at] == second:
                break
            step = step or 1 + second % (slots - 1)
            at = (at + step) % slots
        else:
            assert self.size < slots - 1
            firsts[at], seconds[at] = first, second
            self.size += 1
        next_offsets[at] = offset + 1

    def get(self, key: bytes) -> int:
        """The last offset of the key, or NOT_FOUND."""
        first: int
        second: int
        first, second = _halves(blake2b(key, digest_size=16).digest())
        slots, firsts, next_offsets = self._slots, self._firsts, self._next_offsets
        at = first % slots
        step = 0
        while next_offset := next_offsets[at]:
            if firsts[at] == first and self._seconds[at] == second:
                return next_offset - 1
            step = step or 1 + second % (slots - 1)
            at = (at + step) % slots
        return NOT_FOUND


def _prime_at_most(number: int) -> int:
    candidate = number if number % 2 else number - 1
    while any(candidate % divisor == 0 for divisor in range(3, int(candidate**0.5) + 1, 2)):
        candidate -= 2
    return candidate
