"""Prometheus text format 0.0.4: metric families with their samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def escaped(value: str) -> str:
    """A label's value: names of groups may hold anything."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def labels(**values: object) -> str:
    """`{topic="t",partition="0"}`"""
    return "{" + ",".join(f'{name}="{escaped(str(value))}"' for name, value in values.items()) + "}"


class Family:
    """One metric and its samples, as lines: there may be a hundred thousand."""

    __slots__ = ("_head", "_lines", "_name")

    def __init__(self, name: str, kind: str, about: str) -> None:
        self._name = name
        self._head = f"# HELP {name} {about}\n# TYPE {name} {kind}\n"
        self._lines: list[str] = []

    def add(self, value: float, labelled: str = "", suffix: str = "") -> None:
        self._lines.append(f"{self._name}{suffix}{labelled} {value}\n")

    def add_histogram(
        self, counts: Sequence[tuple[float, int]], total: int, seconds: float, **labelled: object
    ) -> None:
        """`counts`: for each upper bound how many were not above it."""
        for bound, count in counts:
            self.add(count, labels(**labelled, le=f"{bound:g}"), "_bucket")
        self.add(total, labels(**labelled, le="+Inf"), "_bucket")
        own = labels(**labelled) if labelled else ""
        self.add(seconds, own, "_sum")
        self.add(total, own, "_count")

    def text(self) -> str:
        """Nothing when there is no sample."""
        return self._head + "".join(self._lines) if self._lines else ""


class Families:
    """All metrics of one page, in order of first use."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}

    def gauge(self, name: str, about: str) -> Family:
        return self._family(name, "gauge", about)

    def counter(self, name: str, about: str) -> Family:
        return self._family(name, "counter", about)

    def histogram(self, name: str, about: str) -> Family:
        return self._family(name, "histogram", about)

    def _family(self, name: str, kind: str, about: str) -> Family:
        if name not in self._families:
            self._families[name] = Family(name, kind, about)
        return self._families[name]

    def encoded(self) -> bytes:
        return "".join(family.text() for family in self._families.values()).encode()
