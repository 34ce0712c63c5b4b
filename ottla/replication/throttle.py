"""A budget of bytes per second, pure. Whoever overdraws it waits until the debt is paid: no buckets, no windows."""

from __future__ import annotations

from typing import Final

UNLIMITED: Final = 2**63 - 1


class Throttle:
    __slots__ = ("free_at", "rate")

    def __init__(self, rate: float = UNLIMITED) -> None:
        self.rate = rate
        """Bytes per second."""
        self.free_at = 0.0
        """When there is something to spend again."""

    def ready(self, now: float) -> bool:
        return now >= self.free_at

    def spend(self, size: int, now: float) -> None:
        self.free_at = max(self.free_at, now) + size / self.rate
