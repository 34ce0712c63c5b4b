"""Kafka's deserializers."""

from __future__ import annotations

import struct
import uuid

import pytest

from ottla.cli.kafka_scripts.deserializers import PACKAGE, deserializer, fraction
from ottla.cli.kafka_scripts.options import ToolFailure


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("String", "ü".encode(), "ü"),
        ("Short", b"\xff\xff", "-1"),
        ("Integer", b"\0\0\0\5", "5"),
        ("Long", b"\0" * 7 + b"\7", "7"),
        ("Float", struct.pack(">f", 0.1), "0.1"),
        ("Double", struct.pack(">d", 1e10), "1.0E10"),
        ("Boolean", b"\1", "true"),
        ("UUID", str(uuid.UUID(int=7)).encode(), str(uuid.UUID(int=7))),
        ("Bytes", b"a\\\n", "a\\x5C\\x0A"),
        ("ByteBuffer", b"abc", "java.nio.HeapByteBuffer[pos=0 lim=3 cap=3]"),
        ("ByteArray", b"\xff", None),
    ],
)
def test_kafkas_own_deserializers(name, data, text):
    shown = deserializer(f"{PACKAGE}{name}Deserializer", {}, "value")
    assert shown is not None
    assert shown(data) == (data if text is None else text.encode())


@pytest.mark.parametrize("name", ["Short", "Double", "Boolean", "UUID", "Void"])
def test_an_invalid_value_of_a_type_is_refused(name):
    shown = deserializer(f"{PACKAGE}{name}Deserializer", {}, "value")
    assert shown is not None
    with pytest.raises(ToolFailure, match="Exception: "):
        shown(b"nonsense?")


def test_strings_have_an_encoding_and_unknown_classes_are_refused():
    shown = deserializer(f"{PACKAGE}StringDeserializer", {"deserializer.encoding": "ISO-8859-1"}, "key")
    assert shown is not None
    assert shown(b"\xfc") == "ü".encode()
    assert deserializer("com.example.Deserializer", {}, "key") is None
    assert deserializer(f"{PACKAGE}NopeDeserializer", {}, "key") is None


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (-123.25, "-123.25"), (0.001, "0.001"), (9.5e-4, "9.5E-4"),
     (9999999.0, "9999999.0"), (1.5e7, "1.5E7"), (-1e-300, "-1.0E-300"), (float("inf"), "Infinity"),
     (float("nan"), "NaN")],
)  # fmt: skip
def test_fractions_are_written_as_java_writes_them(number, text):
    assert fraction(number, single=False) == text.encode()
