"""Subscriptions by regular expression (RE2), matched against whole topic names.

RE2, because Kafka uses it, and because matching takes linear time: an expression from the network cannot block the
loop, as with Python's `re`. The library is loaded on first use.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from ottla.errors import ErrorCode, Refused

if TYPE_CHECKING:
    import re2

REGEX_BYTES_MAX: Final = 0x7FFF
"""An expression is part of a record's key, whose strings have two bytes for their length."""


def compile_regex(text: str) -> re2._Regexp:
    """Refused if it is not valid."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True  # only the match itself is needed, which is faster
    if len(text.encode()) > REGEX_BYTES_MAX:
        raise Refused(ErrorCode.invalid_regular_expression, f"the expression is longer than {REGEX_BYTES_MAX} bytes")
    try:
        return re2.compile(text, options)
    except re2.error as failure:
        raise Refused(
            ErrorCode.invalid_regular_expression, f"'{text}' is not a valid regular expression: {_reason(failure)}"
        ) from None


def _reason(failure: Any) -> str:
    said = failure.args[0] if failure.args else ""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)


def matching(text: str, names: Iterable[str]) -> frozenset[str]:
    matches = compile_regex(text).fullmatch
    # Names are ASCII, and bytes save the library from counting characters.
    return frozenset(name for name in names if matches(name.encode()))
