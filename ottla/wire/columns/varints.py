"""Zigzag varints, many at once: as numbers in arrays, and as bytes at positions in one buffer."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ottla.wire.records import invalid

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

BYTES_MAX: Final = 5
LONG_BYTES_MAX: Final = 10


def read_varints(data: Bytes, at: Ints, bytes_max: int = BYTES_MAX) -> tuple[Ints, Ints]:
    """The number at each position, and where each ends. IndexError past the end of the data."""
    byte = data[at]
    after = at + 1
    value = (byte & 0x7F).astype(np.uint64)
    longer = np.flatnonzero(byte & 0x80)
    shift = 7
    while longer.size:
        if shift == 7 * bytes_max:
            raise invalid("a number in a record does not end")
        here = after[longer]
        byte = data[here]
        value[longer] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[longer] = here + 1
        longer = longer[byte >= 0x80]
        shift += 7
    signed = value.view(np.int64)
    # The shift must not carry the sign of a number that has all 64 bits.
    return (value >> np.uint64(1)).view(np.int64) ^ -(signed & 1), after


def zigzag(values: Ints) -> npt.NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def sizes(numbers: npt.NDArray[np.uint64]) -> Ints:
    """How many bytes each zigzag number takes."""
    size = np.ones(len(numbers), np.int64)
    limit = int(numbers.max(initial=0))
    for bits in range(7, 64, 7):
        if limit >> bits == 0:
            break
        size += numbers >= np.uint64(1 << bits)
    return size


class Varints:
    """Numbers that are about to be written: their bytes, one row each, of which the first `sizes` count."""

    __slots__ = ("_numbers", "sizes")

    def __init__(self, values: Ints) -> None:
        self._numbers = zigzag(values)
        self.sizes = sizes(self._numbers)

    @property
    def width(self) -> int:
        return int(self.sizes.max(initial=1))

    def write(self, rows: npt.NDArray[np.uint8], counts: npt.NDArray[np.bool_], column: int) -> int:
        """Into a table of bytes from this column on; the column behind them."""
        width, everywhere = self.width, int(self.sizes.min(initial=LONG_BYTES_MAX))
        for index in range(width):
            byte = (self._numbers >> np.uint64(7 * index)).astype(np.uint8) & 0x7F
            if index < everywhere - 1:
                byte |= 0x80
            elif index < width - 1:
                byte |= (self.sizes > index + 1).astype(np.uint8) << 7
            rows[:, column + index] = byte
            counts[:, column + index] = True if index < everywhere else self.sizes > index
        return column + width


def packed(parts: list[Varints | int]) -> tuple[Any, Ints]:
    """Row by row the bytes of all parts, one after another, and how many each row has. An int is that byte."""
    numbers = [part for part in parts if isinstance(part, Varints)]
    count = len(numbers[0].sizes)
    width = sum(part.width if isinstance(part, Varints) else 1 for part in parts)
    rows = np.empty((count, width), np.uint8)
    counts = np.empty((count, width), np.bool_)
    column = 0
    for part in parts:
        if isinstance(part, Varints):
            column = part.write(rows, counts, column)
        else:
            rows[:, column] = part
            counts[:, column] = True
            column += 1
    length = np.full(count, width - sum(part.width for part in numbers), np.int64)
    for part in numbers:
        length += part.sizes
    return rows[counts], length
