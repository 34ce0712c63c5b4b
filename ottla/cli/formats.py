"""Records as text: kcat's format tokens, and its JSON envelope.

    %s value  %S its length  %R its length in four bytes   %k key  %K its length   %T time in ms   %h headers
    %t topic  %p partition   %o offset   %% a percent sign   \\n \\r \\t \\0 \\\\ \\xff

The length of a null is -1.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from typing import Any, Final

from ottla.client.consuming.consumer_records import ConsumerRecord

Rendered = Callable[[ConsumerRecord[Any, Any]], bytes]

DEFAULT: Final = "%s\\n"
_TOKEN: Final = re.compile(r"%(.)|\\x([0-9a-fA-F]{2})|\\(.)|([^%\\]+)|(.)", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


class BadFormat(ValueError):
    """A format has an unknown token."""


def text(value: Any) -> bytes:
    """The text of a key, value or header, of any type that a deserializer returns."""
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, ensure_ascii=False, default=str).encode()


def _headers(record: ConsumerRecord[Any, Any]) -> bytes:
    return b",".join(name.encode("utf-8", "surrogateescape") + b"=" + text(value) for name, value in record.headers)


def _length(value: Any) -> int:
    return -1 if value is None else len(text(value))


_FIELDS: Final[dict[str, Rendered]] = {
    "s": lambda record: text(record.value),
    "S": lambda record: b"%d" % _length(record.value),
    "R": lambda record: struct.pack(">i", _length(record.value)),
    "k": lambda record: text(record.key),
    "K": lambda record: b"%d" % _length(record.key),
    "T": lambda record: b"%d" % record.timestamp,
    "h": _headers,
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
}


def compiled(template: str) -> Rendered:
    """A function that formats a record. BadFormat: the template has an unknown token."""
    parts: list[Rendered] = []
    for field, hexadecimal, escaped, plain, stray in _TOKEN.findall(template):
        if field and field != "%":
            if field not in _FIELDS:
                raise BadFormat(f"unknown token %{field}; known are {', '.join(f'%{each}' for each in _FIELDS)}")
            parts.append(_FIELDS[field])
            continue
        if escaped and escaped not in _ESCAPES:
            raise BadFormat(f"unknown escape \\{escaped}; known are \\n \\r \\t \\0 \\\\ and \\xff")
        parts.append(_constant(_literal(field or stray, hexadecimal, escaped, plain)))
    return lambda record: b"".join([part(record) for part in parts])


def _literal(percent: str, hexadecimal: str, escaped: str, plain: str) -> bytes:
    if hexadecimal:
        return bytes.fromhex(hexadecimal)
    if escaped:
        return _ESCAPES[escaped]
    return percent.encode() if percent else plain.encode()


def _constant(data: bytes) -> Rendered:
    return lambda _: data


def envelope(record: ConsumerRecord[Any, Any]) -> bytes:
    """One line of JSON for one record, as kcat -J writes it. Bytes that are not UTF-8 are shown as \\ufffd."""
    flat = [each for name, value in record.headers for each in (name, _shown(value))]
    fields = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "tstype": "create",
        "ts": record.timestamp,
        "headers": flat,
        "key": _shown(record.key),
        "payload": _shown(record.value),
    }
    return json.dumps(fields, ensure_ascii=False, default=str).encode() + b"\n"


def _shown(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
