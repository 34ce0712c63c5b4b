"""Lengths of time as Spark writes them: 10 minutes, 1 hour 30 minutes, interval 5 seconds. No Spark."""

from __future__ import annotations

import re
from typing import Final

from ottla.config.options import did_you_mean

SECONDS: Final = {
    "microsecond": 1e-6,
    "millisecond": 1e-3,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86400.0,
    "week": 604800.0,
}
"""Months and years have no fixed length: Spark refuses them for triggers, and guesses for watermarks."""
_NUMBER: Final = re.compile(r"\d+(\.\d+)?")


def seconds(text: str) -> float:
    """ValueError, with what to write instead, for everything that Spark would refuse."""
    words = text.lower().split()
    if words[:1] == ["interval"]:
        words = words[1:]
    if not words:
        raise ValueError(f"{text!r} is no length of time; write for example 10 minutes")
    total = 0.0
    for at in range(0, len(words), 2):
        if not _NUMBER.fullmatch(words[at]):
            raise ValueError(f"{text!r} is no length of time: {words[at]!r} is no number; write for example 10 minutes")
        if at + 1 == len(words):
            raise ValueError(f"{text!r} has no unit; write for example {words[at]} seconds")
        total += float(words[at]) * _unit(text, words[at + 1])
    return total


def _unit(text: str, word: str) -> float:
    name = word.removesuffix("s")
    if name in SECONDS:
        return SECONDS[name]
    units = {each: f"{each}s" for each in SECONDS}
    hint = did_you_mean(name, units, f"there are {', '.join(units.values())}", shown=units)
    raise ValueError(f"{text!r} is no length of time: there is no unit {word!r}{hint}")
