"""Decoder compiler: straight-line Python that decodes one version of one message, compiled on first use.

A whole tree becomes one function with nested loops, without recursion; neighbouring fields of fixed size are unpacked
together.

Input is not trusted: every count is checked against the remaining bytes before anything is allocated, all arrays of a
message share one budget of elements, unknown tagged fields are skipped, and every error is a `BadFrame`. Decoded values
own their bytes: the buffer may be reused at once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import groupby
from typing import Final, cast

from ottla.errors import BadFrame
from ottla.runtime import Buffer
from ottla.wire.fields import (
    FIXED,
    STRING_BYTES_MAX,
    Field,
    Sheet,
    default_source,
    element_size_min,
    plain_fields,
    structure,
    tagged_fields,
)
from ottla.wire.primitives import uvarint
from ottla.wire.tree import Message, Struct

Decoder = Callable[[Buffer, int], Message]

ELEMENTS_MAX: Final = {"request": 250_000, "data": 250_000, "response": 10_000_000}
"""How many array elements one message may hold. Two bytes on the wire can become an object of two hundred,
which takes two microseconds to make: without a bound, one large request stops a broker for minutes."""


def compile_decoder(cls: type[Message], version: int, *, whole: bool = True) -> Decoder:
    """A function of a buffer and a position; with `whole` the message must end where the buffer ends."""
    sheet = Sheet(cls, version)
    sheet.constants |= {"BadFrame": BadFrame, "StructError": struct.error, "uvarint": uvarint}
    sheet.constants |= {"unpack_from": struct.unpack_from, "new": object.__new__}
    what = f"{cls.__name__} version {version}"
    with sheet.block("def decode(data, pos):"):
        sheet.line("end = len(data)")
        sheet.line(f"budget = {ELEMENTS_MAX[cls.KIND]}")
        with sheet.block("try:"):
            root = _structure(sheet, cls)
        with sheet.block("except (StructError, IndexError):"):
            sheet.line(f"raise BadFrame('{what} ends early') from None")
        with sheet.block("except UnicodeDecodeError:"):
            sheet.line(f"raise BadFrame('{what} holds a string that is not UTF-8') from None")
        if whole:
            with sheet.block("if pos != end:"):
                sheet.line(f"raise BadFrame('{what} ends before its frame does')")
        sheet.line(f"return {root}")
    return cast("Decoder", sheet.function("decode"))


def _structure(sheet: Sheet, cls: type[Struct]) -> str:
    """Read a structure into a new variable, whose name is returned."""
    it = sheet.name("m")
    sheet.line(f"{it} = new({sheet.constant(cls.__name__, cls)})")
    version = sheet.version
    carried = {field.name for field in plain_fields(cls, version)}
    for name in cls.__slots__:
        if name not in carried:
            _default(sheet, cls, name, it)
    for fixed, group in groupby(plain_fields(cls, version), key=lambda field: field.fixed):
        if fixed:
            _fixed_run(sheet, it, list(group))
        else:
            for field in group:
                _field(sheet, cls, field, f"{it}.{field.name}")
    if sheet.flexible:
        _tagged(sheet, cls, it)
    return it


def _default(sheet: Sheet, cls: type[Struct], name: str, it: str) -> None:
    source = default_source(cls, name)
    if source.endswith("()"):
        sheet.constant(source.removesuffix("()"), structure(cls, source.removesuffix("()")))
    sheet.line(f"{it}.{name} = {source}")


def _fixed_run(sheet: Sheet, it: str, fields: list[Field]) -> None:
    codes = "".join(FIXED[field.kind][0] for field in fields)
    unpack = sheet.constant(f"unpack_{codes.replace('?', 'o')}", struct.Struct(">" + codes).unpack_from)
    targets = ", ".join(f"{it}.{field.name}" for field in fields)
    sheet.line(f"{targets}, = {unpack}(data, pos)")
    sheet.line(f"pos += {struct.calcsize('>' + codes)}")


def _field(sheet: Sheet, cls: type[Struct], field: Field, target: str) -> None:
    """Read a field of any kind into `target`."""
    where = f"{cls.__name__}.{field.name}"
    if field.array:
        _array(sheet, cls, field, target)
    elif field.kind in FIXED:
        code, size = FIXED[field.kind]
        unpack = sheet.constant(f"unpack_{code.replace('?', 'o')}", struct.Struct(">" + code).unpack_from)
        sheet.line(f"{target}, = {unpack}(data, pos)")
        sheet.line(f"pos += {size}")
    elif field.kind in ("string", "bytes", "records"):
        _bytes(sheet, field.kind, field.nullable, target, where)
    elif field.nullable:
        # One signed byte before it, negative for null (KIP-893); in a tagged field a varint, 0 or 1.
        with sheet.block("if data[pos] > 127:" if field.tag is None else "if not data[pos]:"):
            sheet.line(f"{target} = None")
            sheet.line("pos += 1")
        with sheet.block("else:"):
            sheet.line("pos += 1")
            sheet.line(f"{target} = {_structure(sheet, structure(cls, field.kind))}")
    else:
        sheet.line(f"{target} = {_structure(sheet, structure(cls, field.kind))}")


def _length(sheet: Sheet, legacy: str, length: str) -> None:
    """Read a length into a variable: -1 stands for null, and compact ones are never less."""
    if not sheet.flexible:
        unpack = sheet.constant(f"unpack_{legacy}", struct.Struct(">" + legacy).unpack_from)
        sheet.line(f"{length}, = {unpack}(data, pos)")
        sheet.line(f"pos += {struct.calcsize('>' + legacy)}")
        return
    sheet.line(f"{length} = data[pos] - 1")
    with sheet.block(f"if {length} < 127:"):
        sheet.line("pos += 1")
    with sheet.block("else:"):
        sheet.line(f"{length}, pos = uvarint(data, pos)")
        sheet.line(f"{length} -= 1")


def _null(sheet: Sheet, nullable: bool, length: str, target: str, where: str) -> None:
    """The branch for a negative length; the caller goes on with `else`."""
    with sheet.block(f"if {length} < 0:"):
        if nullable:
            if not sheet.flexible:
                with sheet.block(f"if {length} != -1:"):
                    sheet.line(f"raise BadFrame('{where} has a negative length')")
            sheet.line(f"{target} = None")
        else:
            sheet.line(f"raise BadFrame('{where} is null or has a negative length')")


def _bytes(sheet: Sheet, kind: str, nullable: bool, target: str, where: str) -> None:
    _length(sheet, "h" if kind == "string" else "i", "length")
    _null(sheet, nullable, "length", target, where)
    with sheet.block("else:"):
        sheet.line("stop = pos + length")
        too_long = f" or length > {STRING_BYTES_MAX}" if kind == "string" and sheet.flexible else ""
        with sheet.block(f"if stop > end{too_long}:"):
            sheet.line(f"raise BadFrame('{where} is longer than its frame')")
        value = "str(data[pos:stop], 'utf-8')" if kind == "string" else "bytes(data[pos:stop])"
        sheet.line(f"{target} = {value}")
        sheet.line("pos = stop")


def _array(sheet: Sheet, cls: type[Struct], field: Field, target: str) -> None:
    where = f"{cls.__name__}.{field.name}"
    count = sheet.name("n")
    _length(sheet, "i", count)
    _null(sheet, field.nullable, count, target, where)
    with sheet.block("else:"):
        size = element_size_min(cls, field, sheet.version, sheet.flexible)
        with sheet.block(f"if {count} > (end - pos) // {size} or {count} > budget:"):
            sheet.line(f"raise BadFrame('{where} counts more elements than its frame can hold')")
        sheet.line(f"budget -= {count}")
        if field.kind in FIXED:
            code = FIXED[field.kind][0]
            numbered = f"f'>{{{count}}}{code}'" if len(code) == 1 else f"'>' + '{code}' * {count}"
            sheet.line(f"{target} = list(unpack_from({numbered}, data, pos))")
            sheet.line(f"pos += {count} * {size}")
            return
        items = sheet.name("a")
        sheet.line(f"{target} = {items} = []")
        with sheet.block(f"for _ in range({count}):"):
            if field.kind in ("string", "bytes", "records"):
                _bytes(sheet, field.kind, False, "item", where)
                sheet.line(f"{items}.append(item)")
            else:
                sheet.line(f"{items}.append({_structure(sheet, structure(cls, field.kind))})")


def _tagged(sheet: Sheet, cls: type[Struct], it: str) -> None:
    """Read the tagged fields at the end of a structure, whose defaults are set already."""
    count, tag, stop = sheet.name("n"), sheet.name("tag"), sheet.name("stop")
    sheet.line(f"{count} = data[pos]")
    sheet.line("pos += 1")
    with sheet.block(f"if {count}:"):
        with sheet.block(f"if {count} > 127:"):
            sheet.line(f"{count}, pos = uvarint(data, pos - 1)")
        with sheet.block(f"for _ in range({count}):"):
            sheet.line(f"{tag}, pos = uvarint(data, pos)")
            sheet.line(f"{stop}, pos = uvarint(data, pos)")
            sheet.line(f"{stop} += pos")
            with sheet.block(f"if {stop} > end:"):
                sheet.line(f"raise BadFrame('a tagged field of {cls.__name__} is longer than its frame')")
            for field in tagged_fields(cls, sheet.version):
                with sheet.block(f"if {tag} == {field.tag}:"):
                    _field(sheet, cls, field, f"{it}.{field.name}")
                    with sheet.block(f"if pos != {stop}:"):
                        sheet.line(f"raise BadFrame('{cls.__name__}.{field.name} has another length')")
            sheet.line(f"pos = {stop}")
