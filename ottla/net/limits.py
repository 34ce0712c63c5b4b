"""How much clients may ask of one broker, all together and each."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    frame_bytes_max: int = 104_857_600
    connections_max: int = 2**31 - 1
    connections_per_address_max: int = 2**31 - 1
    idle_ms_max: int = 600_000
    held_bytes_max: int = -1
    """The buffers of all half-received large frames together; -1: no limit."""
    pending_max: int = 1000
    """Unanswered requests of one connection."""
    pending_bytes_max: int = 104_857_600
    """Unread answers, or requests read ahead, of one connection."""
