"""A log on a disk in memory, and the same kind of log on the real one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from ottla.log.log_config import LogConfig
from ottla.log.partition_log import PartitionLog
from ottla.sim.disk import SimDisk
from tests.log.batches import NOW, PATH

OpenLog = Callable[..., PartitionLog]


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(Random(7))


@pytest.fixture
def open_log(disk: SimDisk) -> OpenLog:
    """Open the log of the test, again and again: `open_log(segment_bytes=500, clean=True)`."""

    def open_log(*, recovery_point=0, log_start=0, clean=False, now_ms=NOW, **config) -> PartitionLog:
        return PartitionLog.open(
            disk,
            PATH,
            LogConfig(**config),
            recovery_point=recovery_point,
            log_start=log_start,
            clean=clean,
            now_ms=now_ms,
        )

    return open_log
