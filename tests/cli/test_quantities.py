"""Sizes, durations and times on a command line."""

from __future__ import annotations

import pytest

from ottla.cli.quantities import Size, duration_ms, moment_ms, shown_ms


def test_sizes_durations_and_times_are_parsed():
    size = Size()
    sizes = {"100": 100, "10kB": 10_000, "1.5MB": 1_500_000, "1MiB": 2**20}
    assert {text: size.convert(text, None, None) for text in sizes} == sizes
    durations = {"PT1H30M": 5_400_000, "90s": 90_000, "7d": 604_800_000, "P1DT1S": 86_401_000}
    assert {text: duration_ms(text) for text in durations} == durations
    assert moment_ms("2026-01-31T12:00:00+00:00") == moment_ms("1769860800000") == 1769860800000
    assert shown_ms(1769860800123) == "2026-01-31 12:00:00.123Z"
    for bad in ("", "soon", "PT"):
        with pytest.raises(ValueError):
            duration_ms(bad)
