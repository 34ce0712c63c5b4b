"""Which functions of Ottla a request goes through: a profiler for brokers that run in the test's own thread.

A function is *crossed* when it is on the stack at an effect of the request: bytes written to a log file or to a socket,
or something scheduled for later. Those functions decide and pass the request on; the others are asked by them, and
return. The effects themselves belong to the runtime, and are not counted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import ottla

ROOT = str(Path(ottla.__file__).parent) + "/"
RUNTIME = ROOT + "runtime/"
EFFECTS = frozenset({"write", "writelines", "call_soon", "call_at", "set_result", "set", "spawn", "offload"})
"""Of transports, the loop, futures and events, and of the Runtime."""
FILE_EFFECTS = frozenset({"append"})
"""Of a file of the Runtime."""


class Function(NamedTuple):
    file: str
    """Below `ottla/`."""
    name: str
    """With its class: `Connection.buffer_updated`."""


class Trace:
    def __init__(self) -> None:
        self.calls: list[Function] = []
        """Every call, in order. A coroutine that goes on counts as called again."""
        self.crossed: dict[Function, None] = {}
        """In the order in which they were first on the stack at an effect."""

    def event(self, frame: FrameType, what: str, built_in: object) -> None:
        if what == "call":
            code = frame.f_code
            if code.co_filename.startswith(ROOT):
                if not code.co_name.startswith("<"):
                    self.calls.append(_function(frame))
                if code.co_filename.startswith(RUNTIME) and code.co_name in FILE_EFFECTS | EFFECTS:
                    self._effect(frame.f_back)
            elif code.co_name in EFFECTS:
                self._effect(frame.f_back)
        elif what == "c_call" and getattr(built_in, "__name__", "") in EFFECTS:
            self._effect(frame)

    def _effect(self, frame: FrameType | None) -> None:
        """Only what Ottla itself does: not what the loop does for it."""
        if frame is None or not frame.f_code.co_filename.startswith(ROOT):
            return
        stack = []
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(ROOT) and not name.startswith(RUNTIME):
                stack.append(_function(frame))
            frame = frame.f_back
        self.crossed.update(dict.fromkeys(reversed(stack)))


def _function(frame: FrameType) -> Function:
    """What stands inside a function counts as the function."""
    code = frame.f_code
    return Function(code.co_filename.removeprefix(ROOT), code.co_qualname.partition(".<locals>")[0])


@contextmanager
def traced() -> Iterator[Trace]:
    """What happens in this thread."""
    trace = Trace()
    sys.setprofile(trace.event)
    try:
        yield trace
    finally:
        sys.setprofile(None)
