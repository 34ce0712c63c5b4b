"""The definition of a setting: name, type, default, limits, and parsing of its text.

`Setting` is a plain class, not a dataclass: about three hundred are created at every start of a command.
"""

from __future__ import annotations

import math
import re
from enum import IntEnum
from typing import Final, TypeAlias

from ottla.config.named_options import any_of

Value: TypeAlias = "int | float | bool | str | tuple[str, ...] | None"

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


class SettingType(IntEnum):
    """The type of a setting; the numbers are those of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Dynamic(IntEnum):
    """Whether a broker setting is dynamic: read-only, per broker, or cluster-wide."""

    READ_ONLY = 0
    PER_BROKER = 1
    CLUSTER_WIDE = 2


class ConfigSource(IntEnum):
    """The source of a value, strongest first. `code` is the number in DescribeConfigs."""

    TOPIC = 0
    DYNAMIC_BROKER = 1
    DYNAMIC_CLUSTER = 2
    FLAG = 3
    ENVIRONMENT = 4
    FILE = 5
    DEFAULT = 6
    GROUP = 7

    @property
    def code(self) -> int:
        return _SOURCE_CODES[self]

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", " ")


_SOURCE_CODES: Final = (1, 2, 3, 4, 4, 4, 5, 8)
_NUMBER_RANGES: Final = {
    SettingType.SHORT: (-(2**15), 2**15 - 1),
    SettingType.INT: (-INT_MAX - 1, INT_MAX),
    SettingType.LONG: (-LONG_MAX - 1, LONG_MAX),
    SettingType.DOUBLE: (-math.inf, math.inf),
}
_SENSITIVE: Final = ("password", "secret", "credential", "jaas.config", "ssl.key", "keystore.key")


class Setting:
    """`synonyms`: broker settings that give the value where this one is not set, with a conversion factor."""

    __slots__ = (
        "attribute",
        "choices",
        "default",
        "doc",
        "dynamic",
        "high",
        "kind",
        "low",
        "name",
        "pattern",
        "synonyms",
    )

    def __init__(
        self,
        name: str,
        kind: SettingType,
        default: Value,
        doc: str,
        *,
        low: float | None = None,
        high: float | None = None,
        choices: tuple[str, ...] = (),
        pattern: str = "",
        dynamic: Dynamic = Dynamic.READ_ONLY,
        synonyms: tuple[tuple[str, int], ...] = (),
    ) -> None:
        self.name = name
        self.attribute = name.replace(".", "_")
        self.kind = kind
        self.default = default
        self.doc = doc
        self.low = low
        self.high = high
        self.choices = choices
        self.pattern = pattern
        self.dynamic = dynamic
        self.synonyms = synonyms

    def __repr__(self) -> str:
        return f"Setting({self.name})"

    @property
    def sensitive(self) -> bool:
        return self.kind is SettingType.PASSWORD

    def parse(self, text: str) -> Value:
        """The value of a text, or ValueError with what is allowed."""
        if self.kind is SettingType.PASSWORD:
            return text
        text = text.strip()
        if self.kind is SettingType.BOOLEAN:
            return self._parse_bool(text)
        if self.kind is SettingType.LIST:
            return self._parse_list(text)
        if self.kind in (SettingType.STRING, SettingType.CLASS):
            return self._checked(text)
        return self._parse_number(text)

    def refusal(self, text: str) -> str | None:
        """Kafka's message for an invalid value; None for a valid one. A secret is not shown."""
        try:
            self.parse(text)
        except ValueError as problem:
            shown = "" if self.sensitive else f" {text}"
            return f"Invalid value{shown} for configuration {self.name}: must be {problem}"
        return None

    def allowed(self) -> str:
        """The allowed values, as the end of a sentence: "an integer of at least 1"."""
        if self.kind is SettingType.BOOLEAN and not self.choices:
            return "true or false"
        if self.choices:
            named = any_of(self.choices)
            return f"a list of {named}" if self.kind is SettingType.LIST else named
        if self.kind not in _NUMBER_RANGES:
            return f"text of the form {self.pattern}" if self.pattern else "text"
        noun = "a number" if self.kind is SettingType.DOUBLE else "an integer"
        low, high = (f"{bound:g}" if self.kind is SettingType.DOUBLE else str(bound) for bound in self._bounds())
        if self.high is not None:
            return f"{noun} from {low} to {high}"
        if self.low is not None:
            limit = f" and at most {high}" if self.kind in (SettingType.INT, SettingType.SHORT) else ""
            return f"{noun} of at least {low}{limit}"
        return noun if self.kind is SettingType.DOUBLE else f"{noun} from {low} to {high}"

    def _bounds(self) -> tuple[float, float]:
        low, high = _NUMBER_RANGES[self.kind]
        return (low if self.low is None else self.low, high if self.high is None else self.high)

    def _parse_bool(self, text: str) -> bool:
        lowered = text.lower()
        if lowered not in (self.choices or ("true", "false")):
            raise ValueError(self.allowed())
        return lowered == "true"

    def _parse_list(self, text: str) -> tuple[str, ...]:
        items = tuple(item.strip() for item in text.split(",")) if text else ()
        for item in items:
            self._checked(item)
        return items

    def _checked(self, text: str) -> str:
        if self.choices and text not in self.choices:
            raise ValueError(self.allowed())
        if self.pattern and re.fullmatch(self.pattern, text) is None:
            raise ValueError(self.allowed())
        return text

    def _parse_number(self, text: str) -> int | float:
        number: int | float
        if self.kind is SettingType.DOUBLE:
            try:
                number = float(text)
            except ValueError:
                raise ValueError(self.allowed()) from None
            if not math.isfinite(number):
                raise ValueError(self.allowed())
        else:
            digits = text[1:] if text.startswith(("+", "-")) else text
            if not (digits.isascii() and digits.isdecimal() and len(digits) <= 20):
                raise ValueError(self.allowed())
            number = int(text)
        low, high = self._bounds()
        if not low <= number <= high:
            raise ValueError(self.allowed())
        return number


def text_of(value: Value) -> str | None:
    """A value as Kafka writes it in a properties file and in DescribeConfigs."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def is_sensitive(name: str) -> bool:
    """Whether a value with this name must never be shown; the setting need not be known."""
    lowered = name.lower()
    return any(word in lowered for word in _SENSITIVE)


class BadConfig(Exception):
    """An invalid configuration. `problems` are messages for users, without secrets."""

    def __init__(self, problems: list[str]) -> None:
        assert problems
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)
