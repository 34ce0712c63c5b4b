"""The scheduler of periodic tasks: each is an asyncio task, so a slow one delays no other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ottla.errors import Fault, Refused
from ottla.runtime import Runtime

log = logging.getLogger("ottla.scheduler")


class Scheduler:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._tasks: list[asyncio.Task[None]] = []

    def every(self, seconds: float, work: Callable[[], Awaitable[None]], *, name: str) -> None:
        """Run every so many seconds, for the first time after that time."""
        self._tasks.append(self._runtime.spawn(self._repeat(seconds, work, name), name=name))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _repeat(self, seconds: float, work: Callable[[], Awaitable[None]], name: str) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except (Fault, Refused) as failure:
                log.error("%s; trying again in %g s", failure, seconds)
            except Exception as failure:  # a defect in one run must not end retention
                log.error("%s failed; trying again in %g s", name, seconds, exc_info=failure)
