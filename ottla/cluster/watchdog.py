"""A watchdog: notices, from a thread of its own, that the loop no longer runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from ottla.runtime import Handle, Runtime

log = logging.getLogger("ottla.cluster.watchdog")

LOOKS: Final = 10
"""How often it looks, and the loop shows itself, within the time that it allows."""


class Watchdog:
    """Calls `bite`, in its own thread, when the loop has not run for so many seconds; once for each standstill."""

    def __init__(self, runtime: Runtime, seconds: float, bite: Callable[[], None]) -> None:
        self._runtime = runtime
        self._seconds = seconds
        self._bite = bite
        self._ended = threading.Event()
        self._timer: Handle
        self._tick()
        threading.Thread(target=self._watch, name="ottla-watchdog", daemon=True).start()

    def allow(self, seconds: float) -> None:
        """So long from now on. In the loop, which thereby shows itself."""
        if not self._ended.is_set():
            self._timer.cancel()
            self._seconds = seconds
            self._tick()

    def end(self) -> None:
        self._timer.cancel()
        self._ended.set()

    def _tick(self) -> None:
        self._ticked = time.monotonic()
        self._timer = self._runtime.call_at(self._runtime.now() + self._seconds / LOOKS, self._tick)

    def _watch(self) -> None:
        bitten = -1.0
        while not self._ended.wait(self._seconds / LOOKS):
            ticked = self._ticked
            if time.monotonic() - ticked > self._seconds and ticked != bitten:
                bitten = ticked
                log.error("the broker has stood still for more than %g s: its session is given up", self._seconds)
                self._bite()
