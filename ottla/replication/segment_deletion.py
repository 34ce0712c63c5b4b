"""Deletion of segment files, `file.delete.delay.ms` after the log has dropped the segments."""

from __future__ import annotations

import logging
from typing import Final

from ottla.errors import Fault
from ottla.log.segment import Segment
from ottla.runtime import Runtime

log = logging.getLogger("ottla.log")

RETRY_SECONDS: Final = 60.0


class SegmentDeletion:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def schedule(self, dropped: list[Segment], delay_ms: int) -> None:
        self._runtime.call_at(self._runtime.now() + delay_ms / 1000, self._begin, dropped)

    def _begin(self, dropped: list[Segment]) -> None:
        self._runtime.spawn(self._delete(dropped), name="delete segments")

    async def _delete(self, dropped: list[Segment]) -> None:
        for number, segment in enumerate(dropped):
            try:
                await self._runtime.offload(segment.unlink)
            except Fault as fault:
                log.warning("%s; trying again in %g s", fault, RETRY_SECONDS)
                self.schedule(dropped[number:], int(RETRY_SECONDS * 1000))
                return
