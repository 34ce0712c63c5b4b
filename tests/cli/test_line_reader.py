"""Kafka's LineMessageReader."""

from __future__ import annotations

import pytest

from ottla.cli.kafka_scripts.line_reader import LineReader
from ottla.cli.kafka_scripts.options import ToolFailure


def typed(text, **properties):
    reader = LineReader({name.replace("_", "."): value for name, value in properties.items()})
    return [(each.headers, each.key, each.value) for each in reader.records(text.encode().splitlines(keepends=True))]


def test_a_line_is_a_value_with_the_line_ends_of_java():
    assert typed("a\n\nb\r\nc") == [([], None, b"a"), ([], None, b""), ([], None, b"b"), ([], None, b"c")]
    assert [value for *_, value in typed("a\n", null_marker="a")] == [None]


def test_properties_add_headers_and_a_key_to_a_line():
    both = {"parse_headers": "TRUE", "parse_key": "true", "key_separator": ":", "headers_delimiter": ";"}
    assert typed("a:1,b:;k:v:w\n", **both) == [([("a", b"1"), ("b", b"")], b"k", b"v:w")]
    assert typed("NIL;NIL:NIL\n", null_marker="NIL", **both) == [([], None, None)]
    assert typed("a\tv\nv\n", parse_headers="true", ignore_error="true") == [
        ([("a", None)], None, b"v"),
        ([], None, b"v"),
    ]


@pytest.mark.parametrize(
    ("text", "properties", "words"),
    [
        ("a\nb\n", {"parse_key": "true", "key_separator": "a"}, "No key separator found on line number 2: 'b'"),
        ("a\n", {"parse_headers": "true"}, "No headers delimiter found on line number 1: 'a'"),
        ("a\tb\n", {"parse_headers": "true"}, "No header key separator found in pair 'a' on line number 1"),
        ("n:1\tb\n", {"parse_headers": "true", "null_marker": "n"}, "Header keys should not be equal"),
        ("", {"headers_delimiter": ","}, "headers.delimiter and headers.separator may not be equal"),
        ("", {"null_marker": "\t"}, "null.marker and key.separator may not be equal"),
        ("", {"headers_separator": "["}, "PatternSyntaxException"),
    ],
)
def test_a_line_without_its_separators_is_refused(text, properties, words):
    with pytest.raises(ToolFailure, match=words.replace("(", r"\(")):
        typed(text, **properties)
