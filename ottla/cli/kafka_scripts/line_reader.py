"""Kafka's LineMessageReader: how kafka-console-producer.sh turns lines into records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ottla.cli.kafka_scripts.formatters import is_on
from ottla.cli.kafka_scripts.options import ToolFailure
from ottla.cli.produce import Headers, InputRecord

READER: Final = "org.apache.kafka.tools.LineMessageReader"
OLD_READER: Final = "kafka.tools.ConsoleProducer$LineMessageReader"
_UNEQUAL: Final = (
    ("headers.delimiter", "headers.separator"),
    ("headers.delimiter", "headers.key.separator"),
    ("headers.separator", "headers.key.separator"),
    ("null.marker", "key.separator"),
    ("null.marker", "headers.separator"),
    ("null.marker", "headers.delimiter"),
    ("null.marker", "headers.key.separator"),
)


def _failed(message: str) -> ToolFailure:
    return ToolFailure(f"org.apache.kafka.common.KafkaException: {message}")


class LineReader:
    """`headers<delimiter>key<separator>value`; properties say which parts a line has."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        marks: dict[str, str | None] = {
            "key.separator": "\t",
            "headers.delimiter": "\t",
            "headers.separator": ",",
            "headers.key.separator": ":",
            "null.marker": None,
        }
        marks |= {name: properties[name] for name in marks if name in properties}
        for one, other in _UNEQUAL:
            if marks[one] == marks[other]:
                raise _failed(f"{one} and {other} may not be equal")
        encoded = {name: b"" if mark is None else mark.encode() for name, mark in marks.items()}
        self._keyed = is_on(properties, "parse.key")
        self._headed = is_on(properties, "parse.headers")
        self._lenient = is_on(properties, "ignore.error")
        self._key_separator = encoded["key.separator"]
        self._delimiter = encoded["headers.delimiter"]
        self._name_separator = encoded["headers.key.separator"]
        self._null = None if marks["null.marker"] is None else encoded["null.marker"]
        try:
            self._between = re.compile(encoded["headers.separator"])
        except re.error as bad:
            raise ToolFailure(f"java.util.regex.PatternSyntaxException: {bad}") from None
        self._number = 0

    def records(self, lines: Iterable[bytes]) -> Iterator[InputRecord]:
        for line in lines:
            for text in line.removesuffix(b"\n").removesuffix(b"\r").split(b"\r"):
                self._number += 1
                yield self._record(text)

    def _record(self, line: bytes) -> InputRecord:
        headers, rest = self._cut(self._headed, line, line, self._delimiter, "headers delimiter")
        key, value = self._cut(self._keyed, rest, line, self._key_separator, "key separator")
        split = [] if headers is None or headers == self._null else self._headers(headers)
        return InputRecord(self._nulled(value), None if key is None else self._nulled(key), split)

    def _nulled(self, data: bytes) -> bytes | None:
        return None if data == self._null else data

    def _cut(self, wanted: bool, text: bytes, line: bytes, mark: bytes, name: str) -> tuple[bytes | None, bytes]:
        if not wanted:
            return None, text
        if mark not in text:
            if self._lenient:
                return None, text
            raise _failed(f"No {name} found on line number {self._number}: '{line.decode(errors='replace')}'")
        head, _, rest = text.partition(mark) if mark else (b"", b"", text)
        return head, rest

    def _headers(self, text: bytes) -> Headers:
        pairs = self._between.split(text)
        while len(pairs) > 1 and not pairs[-1]:
            pairs.pop()
        return [self._header(pair) for pair in pairs]

    def _header(self, pair: bytes) -> tuple[str, bytes | None]:
        if self._name_separator not in pair:
            if self._lenient:
                return pair.decode(errors="replace"), None
            shown = pair.decode(errors="replace")
            raise _failed(f"No header key separator found in pair '{shown}' on line number {self._number}")
        name, _, value = pair.partition(self._name_separator) if self._name_separator else (b"", b"", pair)
        if name == self._null:
            marker = name.decode(errors="replace")
            raise _failed(f"Header keys should not be equal to the null marker '{marker}' as they can't be null")
        return name.decode(errors="replace"), self._nulled(value)
