"""Replication throttle (KIP-73): a budget of bytes per second. If it is exceeded, the next bytes wait. Pure."""

from __future__ import annotations

from typing import Final

UNLIMITED: Final = 2**63 - 1


class Throttle:
    """The debt is in bytes, not in time: a rate that was set too low is forgotten as soon as another one is set."""

    __slots__ = ("_debt", "_rate", "_settled_at")

    def __init__(self, rate: float = UNLIMITED) -> None:
        self._rate = rate
        self._debt = 0.0
        self._settled_at = 0.0

    def limit(self, rate: float, now: float) -> None:
        """So many bytes per second from now on."""
        self._settle(now)
        self._rate = rate

    def ready(self, now: float) -> bool:
        return now >= self.free_at

    @property
    def free_at(self) -> float:
        """When there is something to spend again, if the rate stays as it is."""
        return self._settled_at + self._debt / self._rate

    def spend(self, size: int, now: float) -> None:
        self._settle(now)
        self._debt += size

    def _settle(self, now: float) -> None:
        self._debt = max(self._debt - (now - self._settled_at) * self._rate, 0.0)
        self._settled_at = now
