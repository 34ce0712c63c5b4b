"""Work that the tests give to a process of its own."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ottla.errors import ErrorCode, Refused, StorageFault
from ottla.runtime import Child


def count(child: Child, job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for number in range(job["to"]):
        yield {"number": number}


def describe(child: Child, job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "idle": hasattr(os, "SCHED_IDLE") and os.sched_getscheduler(0) == os.SCHED_IDLE,
        "asyncio": "asyncio" in sys.modules,
    }


def refuse(child: Child, job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"so": "far"}
    raise Refused(ErrorCode.corrupt_message, "no")


def fail_to_store(child: Child, job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"so": "far"}
    raise StorageFault("no room")


def crash(child: Child, job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"so": 1 // 0}


def kill_itself(child: Child, job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"so": "far"}
    os.kill(os.getpid(), signal.SIGKILL)


def never_end(child: Child, job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"pid": os.getpid()}
    while True:
        time.sleep(60)
