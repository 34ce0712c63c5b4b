"""Many reads in one request to ZooKeeper: its MultiRead (3.6 and newer), which kazoo does not know.

The request is a row of operations, each behind a header (kind, whether this is the end, error), as in a transaction;
so is the answer. A read that fails fails alone: its result has the kind -1 and a code. The image of a large cluster
takes tens of thousands of reads, and one by one each would cost as much as 250 do here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

GET_DATA: Final = 4
GET_CHILDREN: Final = 8
MULTI_READ: Final = 22
ERROR: Final = -1
NO_NODE: Final = -101

_HEADER: Final = struct.Struct("!i?i")
_INT: Final = struct.Struct("!i")
_STAT: Final = struct.Struct("!qqqqiiiqiiq")
_END: Final = _HEADER.pack(-1, True, -1)


class Read(NamedTuple):
    """`kind` is GET_DATA or GET_CHILDREN."""

    kind: int
    path: str


class Found(NamedTuple):
    """A node's content and how many children it has."""

    data: bytes
    version: int
    children: int


class Failed(NamedTuple):
    code: int


Answer = Found | list[str] | Failed | None
"""None: there is no such node."""


class MultiRead:
    """A request as kazoo wants it: a type, `serialize` and `deserialize`."""

    type: Final = MULTI_READ
    __slots__ = ("_reads",)

    def __init__(self, reads: Sequence[Read]) -> None:
        self._reads = reads

    def serialize(self) -> bytes:
        parts: list[bytes] = []
        for kind, path in self._reads:
            raw = path.encode()
            parts += _HEADER.pack(kind, False, -1), _INT.pack(len(raw)), raw, b"\0"  # the last one: no watch
        parts.append(_END)
        return b"".join(parts)

    @staticmethod
    def deserialize(buffer: bytes, offset: int) -> list[Answer]:
        answers: list[Answer] = []
        while True:
            kind, done, _ = _HEADER.unpack_from(buffer, offset)
            offset += _HEADER.size
            if done:
                return answers
            (number,) = _INT.unpack_from(buffer, offset)
            offset += _INT.size
            if kind == ERROR:
                answers.append(None if number == NO_NODE else Failed(number))
            elif kind == GET_DATA:
                end = offset + max(number, 0)  # -1: a node without data
                stat = _STAT.unpack_from(buffer, end)
                answers.append(Found(buffer[offset:end], stat[4], stat[9]))
                offset = end + _STAT.size
            else:
                assert kind == GET_CHILDREN
                names = []
                for _ in range(number):
                    (length,) = _INT.unpack_from(buffer, offset)
                    offset += _INT.size + length
                    names.append(buffer[offset - length : offset].decode())
                answers.append(names)
