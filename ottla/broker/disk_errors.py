"""What a disk refuses, in the log: one ERROR line for each partition and minute, and one INFO line when writes succeed
again. A producer that retries may be refused a thousand times a second."""

from __future__ import annotations

import logging
from typing import Final

from ottla.errors import StorageFault
from ottla.replication.partition import Partition
from ottla.runtime import Handle, Runtime

log = logging.getLogger("ottla.disk")

LINE_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 1.0
"""How soon it is told that a disk takes writes again."""


class _Refusals:
    """Of one partition, since its last line."""

    __slots__ = ("count", "log_end", "told_at", "writing")

    def __init__(self, now: float) -> None:
        self.told_at = now
        self.count = 0
        self.writing = False
        self.log_end = 0
        """Where the log ended when a write was refused: it goes on when the disk takes writes again."""


class DiskErrors:
    """Never more entries than there are partitions: an entry goes when its minute is over, or its log goes on."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._refusals: dict[Partition, _Refusals] = {}
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

    def _noted(self, partition: Partition, what: str, fault: StorageFault) -> _Refusals:
        now = self._runtime.now()
        refusals = self._refusals.get(partition)
        if refusals is None:
            refusals = self._refusals[partition] = _Refusals(now)
            log.error("%s: %s: %s", partition, what, fault)
        elif now - refusals.told_at < LINE_SECONDS:
            refusals.count += 1
        else:
            log.error("%s: %s: %s; %d times in the last %d s", partition, what, fault, refusals.count + 1,
                      now - refusals.told_at)  # fmt: skip
            refusals.told_at, refusals.count = now, 0
        if self._timer is None:
            self._timer = self._runtime.call_at(now + LOOK_SECONDS, self._look)
        return refusals

    def _look(self) -> None:
        now = self._runtime.now()
        self._timer = None
        for partition, refusals in list(self._refusals.items()):
            if refusals.writing and partition.log_end > refusals.log_end:
                log.info("%s: the disk takes writes again", partition)
                del self._refusals[partition]
            elif now - refusals.told_at >= 2 * LINE_SECONDS:
                del self._refusals[partition]  # nobody has tried for a while
        if self._refusals:
            self._timer = self._runtime.call_at(now + LOOK_SECONDS, self._look)
