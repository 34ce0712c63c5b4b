"""Encoder compiler: straight-line Python that encodes one version of one message, compiled on first use.

Fields that a version lacks are left out: handlers return the newest tree and never check the version. A null where a
version allows none is written as the empty string; for other types it is a bug (`ValueError`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Final, cast

from ottla.wire.fields import (
    FIXED,
    STRING_BYTES_MAX,
    Field,
    Sheet,
    default_source,
    plain_fields,
    structure,
    tagged_fields,
)
from ottla.wire.primitives import pack_uvarint
from ottla.wire.tree import Message, Struct

Encoder = Callable[[Message], bytes]

SMALL: Final = 17
"""Arrays of numbers shorter than this are written by packers made in advance."""
_VARINTS: Final = tuple(pack_uvarint(n) for n in range(0x80))


def compile_encoder(cls: type[Message], version: int) -> Encoder:
    """A function of a message that returns its bytes."""
    sheet = Sheet(cls, version)
    sheet.constants |= {"StructError": struct.error, "pack": struct.pack}
    sheet.constants |= {"varint": pack_uvarint, "varints": _VARINTS}
    with sheet.block("def encode(m0):"):
        sheet.line("parts0 = []")
        sheet.line("w = parts0.append")
        with sheet.block("try:"):
            _structure(sheet, cls, "m0", "w")
            sheet.line("return b''.join(parts0)")
        with sheet.block("except StructError as error:"):
            sheet.line(f"raise ValueError(f'{cls.__name__} version {version}: {{error}}') from error")
    return cast("Encoder", sheet.function("encode"))


def _structure(sheet: Sheet, cls: type[Struct], it: str, w: str) -> None:
    """Write the structure in variable `it`, with `w` as the name of what takes the bytes."""
    version = sheet.version
    run: list[Field] = []
    for field in plain_fields(cls, version):
        if field.fixed:
            run.append(field)
            continue
        _fixed_run(sheet, it, run, w)
        run = []
        _field(sheet, cls, field, f"{it}.{field.name}", w)
    tagged = tagged_fields(cls, version) if sheet.flexible else []
    if sheet.flexible and not tagged:
        if run:
            _fixed_run(sheet, it, run, w, closing="x")  # the pad byte: no tagged fields
        else:
            sheet.line(f"{w}(b'\\0')")
        return
    _fixed_run(sheet, it, run, w)
    if tagged:
        _tagged(sheet, cls, it, tagged, w)


def _fixed_run(sheet: Sheet, it: str, fields: list[Field], w: str, closing: str = "") -> None:
    if fields:
        values = ", ".join(f"{it}.{field.name}" for field in fields)
        codes = "".join(FIXED[field.kind][0] for field in fields) + closing
        sheet.line(f"{w}({_packer(sheet, codes)}({values}))")


def _packer(sheet: Sheet, codes: str) -> str:
    return sheet.constant(f"pack_{codes.replace('?', 'o')}", struct.Struct(">" + codes).pack)


def _field(sheet: Sheet, cls: type[Struct], field: Field, value: str, w: str) -> None:
    """Write a field of any kind; `value` is the expression that holds it."""
    if field.fixed:
        sheet.line(f"{w}({_packer(sheet, FIXED[field.kind][0])}({value}))")
        return
    it = sheet.name("v")
    sheet.line(f"{it} = {value}")
    is_struct = not field.array and field.kind not in ("string", "bytes", "records")
    if field.nullable:
        with sheet.block(f"if {it} is None:"):
            sheet.line(f"{w}({_null(sheet, field, is_struct)!r})")
    elif field.kind != "string" or field.array:
        with sheet.block(f"if {it} is None:"):
            where = f"{cls.__name__}.{field.name}"
            sheet.line(f"raise ValueError('{where} may not be null in version {sheet.version}')")
    else:
        with sheet.block(f"if {it} is None:"):
            empty = b"\1" if sheet.flexible else b"\0\0"
            sheet.line(f"{w}({empty!r})")
    with sheet.block("else:"):
        if field.array:
            _array(sheet, cls, field, it, w)
        elif is_struct:
            if field.nullable:
                sheet.line(f"{w}(b'\\1')")
            _structure(sheet, structure(cls, field.kind), it, w)
        else:
            _bytes(sheet, field.kind, it, w)


def _null(sheet: Sheet, field: Field, is_struct: bool) -> bytes:
    if is_struct:
        # One signed byte before a structure that may be null (KIP-893); in a tagged field a varint, 0 or 1.
        return b"\xff" if field.tag is None else b"\0"
    if sheet.flexible:
        return b"\0"
    return b"\xff\xff" if field.kind == "string" and not field.array else b"\xff\xff\xff\xff"


def _length(sheet: Sheet, code: str, length: str, w: str) -> None:
    if sheet.flexible:
        sheet.line(f"{w}(varints[{length} + 1] if {length} < 127 else varint({length} + 1))")
    else:
        sheet.line(f"{w}({_packer(sheet, code)}({length}))")


def _bytes(sheet: Sheet, kind: str, it: str, w: str) -> None:
    if kind == "string":
        sheet.line(f"{it} = {it}.encode()")
    sheet.line(f"length = len({it})")
    if kind == "string" and sheet.flexible:
        with sheet.block(f"if length > {STRING_BYTES_MAX}:"):
            sheet.line("raise ValueError(f'a string of {length} bytes is too long to be sent')")
    _length(sheet, "h" if kind == "string" else "i", "length", w)
    sheet.line(f"{w}({it})")


def _array(sheet: Sheet, cls: type[Struct], field: Field, it: str, w: str) -> None:
    sheet.line(f"length = len({it})")
    code = FIXED[field.kind][0] if field.kind in FIXED else ""
    if code:
        count = "length + 1" if sheet.flexible else "length"
        name = f"packers_{code.replace('?', 'o')}"
        with sheet.block(f"if length < {SMALL}:"):
            packers = sheet.constant(name, _packers(code, sheet.flexible))
            sheet.line(f"{w}({packers}[length]({count}, *{it}))")
        with sheet.block("else:"):
            _length(sheet, "i", "length", w)
            numbered = f"f'>{{length}}{code}'" if len(code) == 1 else f"'>' + {code!r} * length"
            sheet.line(f"{w}(pack({numbered}, *{it}))")
        return
    _length(sheet, "i", "length", w)
    item = sheet.name("m")
    with sheet.block(f"for {item} in {it}:"):
        if field.kind in ("string", "bytes", "records"):
            _bytes(sheet, field.kind, item, w)
        else:
            _structure(sheet, structure(cls, field.kind), item, w)


@lru_cache(maxsize=32)
def _packers(code: str, flexible: bool) -> tuple[Callable[..., bytes], ...]:
    """Packers of a count and as many numbers, for small counts."""
    prefix = ">B" if flexible else ">i"
    return tuple(struct.Struct(prefix + code * count).pack for count in range(SMALL))


def _tagged(sheet: Sheet, cls: type[Struct], it: str, fields: list[Field], w: str) -> None:
    """Write the tagged fields that differ from their defaults."""
    found = sheet.name("tags")
    sheet.line(f"{found} = []")
    for field in fields:
        value, parts, inner = sheet.name("v"), sheet.name("parts"), sheet.name("w")
        sheet.line(f"{value} = {it}.{field.name}")
        with sheet.block(f"if {_differs(sheet, cls, field, value)}:"):
            sheet.line(f"{parts} = []")
            sheet.line(f"{inner} = {parts}.append")
            _field(sheet, cls, field, value, inner)
            sheet.line(f"{value} = b''.join({parts})")
            sheet.line(f"{found}.append(varint({field.tag}) + varint(len({value})) + {value})")
    sheet.line(f"{w}(varint(len({found})))")
    sheet.line(f"{w}(b''.join({found}))")


def _differs(sheet: Sheet, cls: type[Struct], field: Field, value: str) -> str:
    default = default_source(cls, field.name)
    if default == "None":
        return f"{value} is not None"
    if default == "[]":
        return value
    if default.endswith("()"):
        name = f"default_{field.kind}"
        default = sheet.constant(name, structure(cls, field.kind)())
    return f"{value} != {default}"
