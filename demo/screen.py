"""Progress lines of the demo: one line that is redrawn until a condition holds."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

FRAME_SECONDS = 0.05
PLAIN_SECONDS = 2.0
TIMEOUT_S = 60.0


async def show_until(
    look: Callable[[], Awaitable[T]], holds: Callable[[T], bool], line: Callable[[T, float], str]
) -> tuple[T, float]:
    """Poll `look` until it holds, and show `line`; without a terminal, every two seconds.

    Returns the last value, and the seconds that passed.
    """
    begun = shown = time.monotonic()
    while True:
        seen = await look()
        passed = time.monotonic() - begun
        done = holds(seen)
        if sys.stdout.isatty():
            print(f"\r\033[K  {line(seen, passed)}", end="\n" if done else "", flush=True)
        elif done or time.monotonic() - shown > PLAIN_SECONDS:
            print(f"  {line(seen, passed)}", flush=True)
            shown = time.monotonic()
        if done:
            return seen, passed
        if passed > TIMEOUT_S:
            raise SystemExit(f"\ndemo: this took too long: {line(seen, passed)}")
        await asyncio.sleep(FRAME_SECONDS)
