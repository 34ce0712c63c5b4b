"""The properties format of Java, as in Kafka's configuration files.

One `name=value` a line; `=`, `:` or white space separate; `#` and `!` open a comment; a backslash at the end
of a line continues it, and elsewhere escapes (`\\t`, `\\u00e9`, `\\=`).
"""

from __future__ import annotations

import re
from typing import Final

_COMMENT: Final = ("#", "!")
_BLANK: Final = " \t\f"
_ESCAPE: Final = r"(?s)\\(u[0-9A-Fa-f]{4}|.|\Z)"
_LINE: Final = r"(?s)((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)"
_PLAIN: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Names and values; of a repeated name the last value, as in Java."""
    properties: dict[str, str] = {}
    for line in _logical_lines(text.removeprefix("\ufeff")):
        parts = re.match(_LINE, line)
        assert parts is not None
        properties[_unescape(parts[1])] = _unescape(parts[2])
    return properties


def escape_value(text: str) -> str:
    """A value with escapes, which a properties file gives back unchanged."""
    escaped = (
        text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t").replace("\f", "\\f")
    )
    return "\\" + escaped if escaped.startswith(" ") else escaped


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    pending: str | None = None
    for natural in re.split(r"\r\n|\n|\r", text):
        line = natural.lstrip(_BLANK)
        if pending is None and (not line or line.startswith(_COMMENT)):
            continue
        line = (pending or "") + line
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending = line[:-1]
        else:
            lines.append(line)
            pending = None
    if pending:
        lines.append(pending)
    return lines


def _unescape(text: str) -> str:
    return re.sub(_ESCAPE, _unescaped, text) if "\\" in text else text


def _unescaped(found: re.Match[str]) -> str:
    escaped = found[1]
    if len(escaped) == 5:
        return chr(int(escaped[1:], 16))
    return _PLAIN.get(escaped, escaped)
