"""Kafka's deserializers, for `--key-deserializer` and `--value-deserializer`: the text that Java prints for a value."""

from __future__ import annotations

import codecs
import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Final

from ottla.cli.kafka_scripts.options import ToolFailure

Shown = Callable[[bytes], bytes]

PACKAGE: Final = "org.apache.kafka.common.serialization."
_NUMBERS: Final = {"Short": ">h", "Integer": ">i", "Long": ">q"}
_FRACTIONS: Final = {"Float": ">f", "Double": ">d"}
_PLAIN: Final = (1e-3, 1e7)
"""Java prints numbers in this range without an exponent."""


def deserializer(name: str, settings: Mapping[str, str], of: str) -> Shown | None:
    """The deserializer with this class name, or None. `settings` are its own; `of` is key or value."""
    short = name.removeprefix(PACKAGE).removesuffix("Deserializer")
    if f"{PACKAGE}{short}Deserializer" != name:
        return None
    if short == "String":
        return _text(settings.get(f"{of}.deserializer.encoding", settings.get("deserializer.encoding", "UTF-8")))
    if short in _NUMBERS:
        return lambda data: str(struct.unpack(_NUMBERS[short], _sized(data, short))[0]).encode()
    if short in _FRACTIONS:
        return lambda data: fraction(struct.unpack(_FRACTIONS[short], _sized(data, short))[0], short == "Float")
    return _OTHERS.get(short)


def _text(encoding: str) -> Shown | None:
    try:
        codecs.lookup(encoding)
    except LookupError:
        return None
    return lambda data: data.decode(encoding, "replace").encode()


def _sized(data: bytes, short: str) -> bytes:
    form = (_NUMBERS | _FRACTIONS)[short]
    if len(data) != (size := struct.calcsize(form)):
        name = {"Float": "Deserializer", "Double": "Deserializer"}.get(short, f"{short}Deserializer")
        raise _failed(f"Size of data received by {name} is not {size}")
    return data


def _failed(message: str) -> ToolFailure:
    return ToolFailure(f"org.apache.kafka.common.errors.SerializationException: {message}")


def fraction(number: float, single: bool) -> bytes:
    """As Double.toString or Float.toString of Java prints it."""
    if number != number or number in (float("inf"), float("-inf")):
        return {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}[str(number)]
    digits = _shortest(number) if single else repr(number)
    mantissa, _, exponent = digits.lower().partition("e")
    sign, mantissa = ("-", mantissa[1:]) if mantissa.startswith("-") else ("", mantissa)
    whole, _, part = mantissa.partition(".")
    point = len(whole) + int(exponent or 0)
    stripped = (whole + part).lstrip("0")
    point -= len(whole + part) - len(stripped)
    stripped = stripped.rstrip("0")
    if not stripped:
        return f"{sign}0.0".encode()
    if _PLAIN[0] <= abs(number) < _PLAIN[1]:
        padded = stripped.ljust(point, "0") if point > 0 else "0" * (1 - point) + stripped
        cut = max(point, 1)
        return f"{sign}{padded[:cut]}.{padded[cut:] or '0'}".encode()
    return f"{sign}{stripped[0]}.{stripped[1:] or '0'}E{point - 1}".encode()


def _shortest(number: float) -> str:
    """The fewest digits that identify this 32-bit number."""
    tries = (f"{number:.{digits}g}" for digits in range(1, 10))
    return next(each for each in tries if struct.pack(">f", float(each)) == struct.pack(">f", number))


def _boolean(data: bytes) -> bytes:
    if len(data) != 1:
        raise _failed("Size of data received by BooleanDeserializer is not 1")
    if data[0] > 1:
        raise _failed(f"Unexpected byte received by BooleanDeserializer: {data[0] - 256 * (data[0] > 127)}")
    return b"true" if data[0] else b"false"


def _uuid(data: bytes) -> bytes:
    try:
        return str(uuid.UUID(data.decode())).encode()
    except ValueError:
        raise _failed("Error parsing data into UUID") from None


def _void(_: bytes) -> bytes:
    """Accepts only null, which a formatter has already replaced by text."""
    raise ToolFailure("java.lang.IllegalArgumentException: Data should be null for a VoidDeserializer.")


def _escaped(data: bytes) -> bytes:
    return "".join(chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02X}" for byte in data).encode()


_OTHERS: Final[dict[str, Shown]] = {
    "ByteArray": bytes,
    "ByteBuffer": lambda data: f"java.nio.HeapByteBuffer[pos=0 lim={len(data)} cap={len(data)}]".encode(),
    "Bytes": _escaped,
    "Boolean": _boolean,
    "UUID": _uuid,
    "Void": _void,
}
