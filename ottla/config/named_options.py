"""Options that users give by name: lookup, parsing, and "did you mean" for an unknown name.

Used for broker settings, client settings, options of data sources and names of commands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

CUTOFF = 0.6


def nearest(name: str, known: Iterable[str], cutoff: float = CUTOFF) -> str | None:
    from difflib import get_close_matches  # imported only after a mistake

    return next(iter(get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def did_you_mean(
    name: str,
    known: Iterable[str],
    otherwise: str = "",
    *,
    shown: Mapping[str, str] | None = None,
    cutoff: float = CUTOFF,
) -> str:
    """The end of a message about an unknown name: the nearest known one, or `otherwise`. `shown`: known names as users
    write them."""
    near = nearest(name, known, cutoff)
    if near is not None:
        return f"; did you mean {near if shown is None else shown.get(near, near)}?"
    return f"; {otherwise}" if otherwise else ""


def any_of(words: Sequence[str]) -> str:
    """ "a, b or c"."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


class Options:
    """The given options, looked up by name in upper or lower case. An invalid one raises `error` with the option's
    name."""

    def __init__(self, given: Mapping[str, str], error: type[Exception]) -> None:
        self.given = {name.lower(): value for name, value in given.items()}
        self._written = {name.lower(): name for name in given}
        self._error = error

    def check_known(self, known: Iterable[str], ignored: Collection[str] = ()) -> None:
        """Every option must be in `known`, or in `ignored` (lower case)."""
        names = {name.lower(): name for name in known}
        unknown = next((name for name in self.given if name not in names and name not in ignored), None)
        if unknown is not None:
            hint = did_you_mean(unknown, names, f"there are {', '.join(names.values())}", shown=names)
            raise self._error(f"there is no option {self._written[unknown]!r}{hint}")

    def value(self, name: str) -> str | None:
        return self.given.get(name.lower())

    def needed(self, name: str, example: str) -> str:
        value = self.value(name)
        if value is None:
            raise self._error(f"the option {name} is missing; for example {example}")
        return value

    def first(self, names: Iterable[str]) -> str | None:
        """The first of these that was given."""
        return next((name for name in names if self.value(name) is not None), None)

    def refuse_together(self, names: Iterable[str]) -> None:
        there = [name for name in names if self.value(name) is not None]
        if len(there) > 1:
            raise self._error(f"{' and '.join(there)} contradict each other; one of them")

    def refuse(self, names: Iterable[str], why: str) -> None:
        name = self.first(names)
        if name is not None:
            raise self._error(f"{name} cannot be set here: {why}")

    def flag(self, name: str, default: bool) -> bool:
        chosen = self.one_of(name, ("true", "false"))
        return default if chosen is None else chosen == "true"

    def one_of(self, name: str, words: Sequence[str]) -> str | None:
        value = self.value(name)
        if value is not None and value.lower() not in words:
            raise self._error(f"{name} is {value!r}; it can be {any_of(words)}")
        return None if value is None else value.lower()

    def number(self, name: str, least: int = 1) -> int | None:
        value = self.value(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise self._error(f"{name} is {value!r}; it is a whole number from {least} on")
        return number

    def names(self, name: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in (self.value(name) or "").split(",") if part.strip())
