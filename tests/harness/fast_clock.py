"""A real runtime whose clock runs fast: what waits for seconds of the runtime's time waits for less of the test's."""

from __future__ import annotations

from collections.abc import Callable

from ottla.runtime import Handle
from ottla.runtime.real import RealRuntime


class FastRuntime(RealRuntime):
    def __init__(self, speed: float = 1.0) -> None:
        super().__init__()
        self._speed = speed
        if speed != 1.0:
            real = self._loop.time
            self.now = lambda: real() * speed

    def call_at(self, when: float, act: Callable[..., object], *args: object) -> Handle:
        return self._loop.call_at(when / self._speed, act, *args)
