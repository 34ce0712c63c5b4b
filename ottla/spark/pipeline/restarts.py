"""When a query that failed is started again: with a growing delay, and so many times within some time. No Spark."""

from __future__ import annotations

from collections import deque
from typing import Final

from ottla.spark.pipeline.document import Restart
from ottla.spark.pipeline.reasons import counted

BACKOFF_MAX_S: Final = 300.0


class Restarts:
    """Of one query."""

    def __init__(self, policy: Restart) -> None:
        self._policy = policy
        self._failed_at: deque[float] = deque()

    @property
    def spent(self) -> str:
        """Why it is not started again, to be said behind the reason; nothing where it never is."""
        limit = self._policy.limit
        if limit == 0:
            return ""
        times = counted(limit, "restart")
        return f"; it is not started again: {times} within {self._policy.within_s:g} s, which is the limit (restart)"

    def failed(self, now: float) -> float | None:
        """How long to wait before it is started again; None: it has failed too often, and stays as it is."""
        while self._failed_at and self._failed_at[0] <= now - self._policy.within_s:
            self._failed_at.popleft()
        if len(self._failed_at) >= self._policy.limit:
            return None
        delay: float = min(self._policy.backoff_s * 2 ** len(self._failed_at), BACKOFF_MAX_S)
        self._failed_at.append(now)
        return delay
