"""Planted defects: what a run is told to do wrong, so that a test sees the checkers find it.

They enter where settings and faults do, and replace no function or method of a broker or a client: those may be
compiled, and then a replaced method is never called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple


class Planted(NamedTuple):
    broker: Mapping[str, str] = {}
    """Settings of all brokers, before those of the seed."""
    producer: Mapping[str, object] = {}
    """Settings of the producers without transactions."""
    transaction_timeout_ms: int = 8_000
    """What producers ask for: longer than a run lasts, and a coordinator ends nothing that was left open."""
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """What those read who should see committed records alone."""
    silent_rot: bool = False
    """Bits that flip on a device take the checksum along: no scrub can notice."""


NOTHING: Final = Planted()
