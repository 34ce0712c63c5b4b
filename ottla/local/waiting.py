"""Polling: wait until a condition holds, within a time limit."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, overload

T = TypeVar("T")

LOOK_SECONDS: Final = 0.01


class NotInTime(AssertionError):
    """The condition did not hold in time; `seen` is the last value."""

    def __init__(self, what: str, timeout_s: float, seen: object) -> None:
        super().__init__(f"{what}: did not happen within {timeout_s:g} s")
        self.seen = seen


def wait_for(condition: Callable[[], T | None], what: str, timeout_s: float = 15.0) -> T:
    """Call `condition` until its value is true; returns the value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise NotInTime(what, timeout_s, value)
        time.sleep(LOOK_SECONDS)
    return value


@overload
async def until(
    look: Callable[[], Awaitable[T]], what: str = ..., timeout_s: float = ..., *, holds: Callable[[T], object] = ...
) -> T: ...
@overload
async def until(
    look: Callable[[], T], what: str = ..., timeout_s: float = ..., *, holds: Callable[[T], object] = ...
) -> T: ...
async def until(
    look: Callable[[], Any],
    what: str = "a condition",
    timeout_s: float = 60.0,
    *,
    holds: Callable[[Any], object] = bool,
) -> Any:
    """Call `look`, which may be async, until `holds` is true of its value; returns the value."""
    deadline = time.monotonic() + timeout_s
    while True:
        seen = look()
        if inspect.isawaitable(seen):
            seen = await seen
        if holds(seen):
            return seen
        if time.monotonic() > deadline:
            raise NotInTime(what, timeout_s, seen)
        await asyncio.sleep(LOOK_SECONDS)
