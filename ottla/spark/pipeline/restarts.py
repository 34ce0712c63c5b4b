"""Restart policy of failed queries: growing delays, and a limit within some time. No Spark."""

from __future__ import annotations

from collections import deque
from typing import Final

from ottla.spark.pipeline.document import Restart
from ottla.spark.pipeline.failures import counted

BACKOFF_MAX_S: Final = 300.0
BUSY_FACTOR: Final = 10
"""So many times as often a query is started again that failed only because the machine was busy."""


class Restarts:
    """Of one query."""

    def __init__(self, policy: Restart) -> None:
        self._policy = policy
        self._limit = policy.limit
        """For the reason of the last failure."""
        self._failed_at: dict[bool, deque[float]] = {False: deque(), True: deque()}
        """By whether the machine was busy: that does not use up the restarts for other reasons."""

    @property
    def spent(self) -> str:
        """Why it is not started again, to be said behind the reason; nothing where it never is."""
        if self._limit == 0:
            return ""
        times = counted(self._limit, "restart")
        return f"; it is not started again: {times} within {self._policy.within_s:g} s, which is the limit (restart)"

    def failed(self, now: float, *, busy: bool = False) -> float | None:
        """How long to wait before it is started again; None: it has failed too often, and stays as it is."""
        failed_at = self._failed_at[busy]
        while failed_at and failed_at[0] <= now - self._policy.within_s:
            failed_at.popleft()
        self._limit = self._policy.limit * (BUSY_FACTOR if busy else 1)
        if len(failed_at) >= self._limit:
            return None
        delay: float = min(self._policy.backoff_s * 2 ** len(failed_at), BACKOFF_MAX_S)
        failed_at.append(now)
        return delay
