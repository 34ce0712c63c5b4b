"""Sizes, durations and times as people write them on a command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

_SIZES: Final = {"": 1, "b": 1, "k": 1000, "kb": 1000, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9}
_SIZES_BINARY: Final = {"kib": 2**10, "mib": 2**20, "gib": 2**30}
_DURATION: Final = re.compile(
    r"(?:P(?:(?P<days>\d+)D)?T?)?(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)S)?", re.IGNORECASE
)
_DAYS: Final = re.compile(r"(\d+)d", re.IGNORECASE)


class Size(click.ParamType[int]):
    """`100`, `10kB`, `1MiB`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([\d.]+)\s*([a-zA-Z]*)", str(value).strip())
        unit = (_SIZES | _SIZES_BINARY).get(found[2].lower()) if found else None
        try:
            if found and unit:
                return int(float(found[1]) * unit)
        except ValueError:
            pass
        self.fail(f"{value!r} is not a size; for example 100, 10kB or 1MiB", param, ctx)


def moment_ms(text: str) -> int:
    """ISO 8601, in local time unless it names a zone, or milliseconds since 1970. ValueError if it is neither."""
    if text.isdecimal():
        return int(text)
    given = datetime.fromisoformat(text)
    return int(given.timestamp() * 1000)


def duration_ms(text: str) -> int:
    """`PT1H30M`, `P7D`, `90s`, `2h`, `7d`. ValueError if it is not a duration."""
    if days := _DAYS.fullmatch(text):
        return int(days[1]) * 86_400_000
    found = _DURATION.fullmatch(text)
    parts = {name: int(part) for name, part in (found.groupdict() if found else {}).items() if part}
    if not parts:
        raise ValueError(f"{text!r} is not a duration; for example PT1H, 30m or 7d")
    return int(timedelta(**parts).total_seconds() * 1000)


def shown_ms(timestamp_ms: int) -> str:
    """A timestamp for people, in UTC."""
    if timestamp_ms < 0:
        return "-"
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
