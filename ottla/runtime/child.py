"""The child process of the broker for work that would block the loop; `child_process` is the broker's side.

It runs at the lowest priority, and ends with its standard input. It imports only what it needs, because a new one is
started for every piece of work.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from ottla.errors import Fault, Refused
from ottla.runtime import Child
from ottla.runtime.disk import RealDisk

GIVE_WAY = "give-way"
INSIST = "insist"
_NICE = {GIVE_WAY: 19, INSIST: 10}

Work = Callable[[Child, Mapping[str, Any]], Iterator[dict[str, Any]]]
"""Takes a job and yields reports, both of JSON types."""


def find_work(name: str) -> Work:
    """`module:function`"""
    module, _, function = name.partition(":")
    work: Work = getattr(import_module(module), function)
    return work


class RealChild:
    """The disk, at a limited rate."""

    def __init__(self, bytes_per_second: float | None) -> None:
        self.disk = RealDisk()
        self._bytes_per_second = bytes_per_second
        self._done_bytes = 0
        self._since = time.monotonic()

    def pace(self, done_bytes: int) -> None:
        if self._bytes_per_second is None:
            return
        self._done_bytes += done_bytes
        early = self._done_bytes / self._bytes_per_second - (time.monotonic() - self._since)
        if early > 0:
            time.sleep(early)
        elif early < -1.0:  # unused time does not accumulate
            self._done_bytes, self._since = 0, time.monotonic()


def main() -> None:
    _lower_priority(sys.argv[1])
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return  # the broker died before it sent the order
    order = json.loads(line)
    threading.Thread(target=_end_with_input, daemon=True).start()
    child = RealChild(order["bytes_per_second"])
    try:
        for report in find_work(order["work"])(child, order["job"]):
            _send({"report": report})
    except Refused as refused:
        _send({"refused": [refused.code, refused.message]})
    except Fault as fault:
        _send({"fault": str(fault)})


def _lower_priority(priority: str) -> None:
    """Run only when the processor is idle, where the system can (SCHED_IDLE)."""
    os.nice(_NICE[priority])
    if priority == GIVE_WAY and hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    os._exit(0)


def _send(message: dict[str, Any]) -> None:
    try:
        sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(0)  # the broker has closed the pipe


if __name__ == "__main__":
    main()
