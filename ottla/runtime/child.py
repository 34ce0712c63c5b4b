"""Work that would hold up the loop, done in a process of its own: the child's end. `processes` is the other one.

It takes only what the broker leaves, and ends with its standard input. Nothing is imported that it does not need: it is
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
"""Takes a job and gives reports, both as JSON knows them."""


def find_work(name: str) -> Work:
    """`module:function`"""
    module, _, function = name.partition(":")
    work: Work = getattr(import_module(module), function)
    return work


class RealChild:
    """What the work may use: the disk, at a pace."""

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
        elif early < -1.0:  # what was not used before does not count
            self._done_bytes, self._since = 0, time.monotonic()


def main() -> None:
    _take_place(sys.argv[1])
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return  # the broker died before it had said what to do
    order = json.loads(line)
    threading.Thread(target=_end_with_input, daemon=True).start()
    child = RealChild(order["bytes_per_second"])
    try:
        for report in find_work(order["work"])(child, order["job"]):
            _say({"report": report})
    except Refused as refused:
        _say({"refused": [refused.code, refused.message]})
    except Fault as fault:
        _say({"fault": str(fault)})


def _take_place(priority: str) -> None:
    """Run only when nobody else wants to: where the system knows how, not even a moment later."""
    os.nice(_NICE[priority])
    if priority == GIVE_WAY and hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    os._exit(0)


def _say(message: dict[str, Any]) -> None:
    try:
        sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(0)  # nobody listens any more


if __name__ == "__main__":
    main()
