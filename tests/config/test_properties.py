"""Properties files are read as Java reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.config.properties import escape_value, parse_properties


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a=b", {"a": "b"}),
        ("a = b", {"a": "b"}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a\tb", {"a": "b"}),
        ("  a  =  b c ", {"a": "b c "}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a==b", {"a": "=b"}),
        ("a=b=c:d", {"a": "b=c:d"}),
        ("# a comment\n! another\n\n   # indented\na=b", {"a": "b"}),
        ("a=b # no comment here", {"a": "b # no comment here"}),
        ("a=one,\\\n    two", {"a": "one,two"}),
        ("a=one\\\\\nb=two", {"a": "one\\", "b": "two"}),
        ("a=one\\\n# not a comment", {"a": "one# not a comment"}),
        ("a=b\\", {"a": "b"}),
        ("a=b\r\nc=d\re=f", {"a": "b", "c": "d", "e": "f"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a\\:b\\ c=d", {"a:b c": "d"}),
        ("a=\\u00e9\\t\\n\\q", {"a": "é\t\nq"}),
        ("a=C:\\\\data", {"a": "C:\\data"}),
        ("a=1\na=2", {"a": "2"}),
        ("\ufeffa=b", {"a": "b"}),
        ("", {}),
    ],
)
def test_properties_are_parsed(text, properties):
    assert parse_properties(text) == properties


@given(st.text())
def test_any_text_is_parsed_without_an_error(text):
    assert isinstance(parse_properties(text), dict)


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_an_escaped_value_is_read_back_the_same(value):
    assert parse_properties(f"name={escape_value(value)}") == {"name": value}
