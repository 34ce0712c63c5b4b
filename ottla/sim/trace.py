"""Trace of a simulation: its events as lines, and a digest of all of them. Runs of one seed have the same digest."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Final
from zlib import crc32

LINES_KEPT: Final = 400
_PACKET: Final = struct.Struct("<dII")


class Trace:
    """`show` gets every line as it comes, minor ones only with `detail`; the last ones are kept."""

    def __init__(self, clock: Callable[[], float], show: Callable[[str], object] | None, detail: bool) -> None:
        self.last: deque[str] = deque(maxlen=LINES_KEPT)
        self._clock = clock
        self._show = show
        self._detail = detail
        self._hash = blake2b(digest_size=8)

    def line(self, source: str, what: str, *, minor: bool = False) -> None:
        text = f"{self._clock():10.4f}  {source:<10}  {what}"
        self._hash.update(text.encode())
        self.last.append(text)
        if self._show is not None and (self._detail or not minor):
            self._show(text)

    def packet(self, data: bytes) -> None:
        """Bytes arrived somewhere: too many to be shown."""
        self._hash.update(_PACKET.pack(self._clock(), len(data), crc32(data)))

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()
