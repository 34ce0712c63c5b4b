"""Disk errors in the log: one ERROR line for each partition and minute, and one INFO line when writes succeed again.
A producer may retry a thousand times a second."""

from __future__ import annotations

import logging
from typing import Final

from ottla.errors import StorageFault
from ottla.replication.partition import Partition
from ottla.runtime import Handle, Runtime

log = logging.getLogger("ottla.disk")

LINE_SECONDS: Final = 60.0
CHECK_SECONDS: Final = 1.0
"""How often it is checked whether writes succeed again."""


class _Errors:
    """The errors of one partition since its last line."""

    __slots__ = ("count", "log_end", "logged_at", "writing")

    def __init__(self, now: float) -> None:
        self.logged_at = now
        self.count = 0
        self.writing = False
        self.log_end = 0
        """The log end offset when a write failed: it rises when writes succeed again."""


class DiskErrors:
    """At most one entry for each partition; it is removed after a minute, or when writes succeed."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._refusals: dict[Partition, _Errors] = {}
        self._timer: Handle | None = None

    def write_refused(self, partition: Partition, fault: StorageFault) -> None:
        if refusals := self._noted(partition, "the disk refuses writes (KAFKA_STORAGE_ERROR)", fault):
            refusals.writing = True
            refusals.log_end = partition.log_end

    def read_refused(self, partition: Partition, fault: StorageFault) -> None:
        self._noted(partition, "the disk refuses reads (KAFKA_STORAGE_ERROR)", fault)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _noted(self, partition: Partition, what: str, fault: StorageFault) -> _Errors:
        now = self._runtime.now()
        refusals = self._refusals.get(partition)
        if refusals is None:
            refusals = self._refusals[partition] = _Errors(now)
            log.error("%s: %s: %s", partition, what, fault)
        elif now - refusals.logged_at < LINE_SECONDS:
            refusals.count += 1
        else:
            log.error("%s: %s: %s; %d times in the last %d s", partition, what, fault, refusals.count + 1,
                      now - refusals.logged_at)  # fmt: skip
            refusals.logged_at, refusals.count = now, 0
        if self._timer is None:
            self._timer = self._runtime.call_at(now + CHECK_SECONDS, self._check)
        return refusals

    def _check(self) -> None:
        now = self._runtime.now()
        self._timer = None
        for partition, refusals in list(self._refusals.items()):
            if refusals.writing and partition.log_end > refusals.log_end:
                log.info("%s: the disk accepts writes again", partition)
                del self._refusals[partition]
            elif now - refusals.logged_at >= 2 * LINE_SECONDS:
                del self._refusals[partition]  # no attempts for a while
        if self._refusals:
            self._timer = self._runtime.call_at(now + CHECK_SECONDS, self._check)
