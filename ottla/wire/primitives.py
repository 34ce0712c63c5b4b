"""Primitive types of the protocol (varints, strings, tagged fields), for codecs that are written by hand.

Readers raise struct.error or IndexError past the end of the data; the calling codec turns that into BadFrame.
"""

from __future__ import annotations

import struct

from ottla.errors import BadFrame
from ottla.runtime import Buffer

_SHORT = struct.Struct(">h")


def uvarint(view: Buffer, pos: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits, and where it ends."""
    value = view[pos]
    pos += 1
    if value < 0x80:
        return value, pos
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = view[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, pos
    raise BadFrame("a varint of more than 32 bits")


_SMALL = tuple(bytes((n,)) for n in range(0x80))


def pack_uvarint(value: int) -> bytes:
    if value < 0x80:
        return _SMALL[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string(view: Buffer, pos: int) -> tuple[str | None, int]:
    """A nullable string with a length of two bytes."""
    (size,) = _SHORT.unpack_from(view, pos)
    pos += 2
    if size < 0:
        if size != -1:
            raise BadFrame("a string of negative length")
        return None, pos
    end = pos + size
    if end > len(view):
        raise BadFrame("a string longer than the frame")
    return str(view[pos:end], "utf-8"), end


def compact_string(view: memoryview, pos: int) -> tuple[str | None, int]:
    """A nullable string with its length plus one as a varint."""
    size, pos = uvarint(view, pos)
    if size == 0:
        return None, pos
    end = pos + size - 1
    if end > len(view):
        raise BadFrame("a string longer than the frame")
    return str(view[pos:end], "utf-8"), end


def tags(view: memoryview, pos: int, wanted: tuple[int, ...]) -> tuple[dict[int, memoryview], int]:
    """The tagged fields with these numbers, as views, and where the tagged fields end."""
    count, pos = uvarint(view, pos)
    found: dict[int, memoryview] = {}
    for _ in range(count):
        tag, pos = uvarint(view, pos)
        size, pos = uvarint(view, pos)
        if size > len(view) - pos:
            raise BadFrame("a tagged field longer than the frame")
        if tag in wanted:
            found[tag] = view[pos : pos + size]
        pos += size
    return found, pos


def skip_tags(view: memoryview, pos: int) -> int:
    """Where the tagged fields end; unknown fields are not kept."""
    count, pos = uvarint(view, pos)
    for _ in range(count):
        _, pos = uvarint(view, pos)
        size, pos = uvarint(view, pos)
        pos += size
        if pos > len(view):
            raise BadFrame("a tagged field longer than the frame")
    return pos
