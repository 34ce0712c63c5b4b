"""Options of the connectors, looked up by the names that people know; what nobody understands is refused by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from ottla.spark.options import BadOption

SPARKS: Final = ("checkpointlocation", "path", "queryname")
"""Options that Spark hands to every source and sink."""


class Settings:
    def __init__(self, given: Mapping[str, str], known: Iterable[str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        written = {name.lower(): name for name in given}
        names = {name.lower(): name for name in known}
        for name in self._given:
            if name not in names and name not in SPARKS:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f"; did you mean {names[near[0]]}?" if near else f"; there are {', '.join(names.values())}"
                raise BadOption(f"there is no option {written[name]!r}{hint}")

    def get(self, name: str) -> str | None:
        return self._given.get(name.lower()) or None

    def needed(self, name: str, example: str) -> str:
        value = self.get(name)
        if value is None:
            raise BadOption(f"the option {name} is missing; for example {example}")
        return value

    def one_of(self, name: str, choices: tuple[str, ...]) -> str:
        """The first is the default."""
        value = (self.get(name) or choices[0]).lower()
        if value not in choices:
            raise BadOption(f"{name} is {value!r}; it can be {', '.join(choices)}")
        return value

    def number(self, name: str, default: int) -> int:
        text = self.get(name)
        if text is None:
            return default
        if not text.isdecimal() or int(text) < 1:
            raise BadOption(f"{name} is {text!r}; it is a whole number from 1 on")
        return int(text)

    def names(self, name: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in (self.get(name) or "").split(",") if part.strip())
