"""The `FIELDS` tables of message classes, and the source code of a codec in the making (`Sheet`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, cast

from ottla.wire.tree import Message, Struct

STRING_BYTES_MAX: Final = 0x7FFF

FIXED: Final = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
}
"""Types of fixed size: their code in a `struct` format, and their bytes."""


class Field(NamedTuple):
    """One field as one version carries it."""

    name: str
    kind: str
    array: bool
    nullable: bool
    tag: int | None

    @property
    def fixed(self) -> bool:
        return self.kind in FIXED and not self.array


def fields_of(cls: type[Struct], version: int) -> tuple[Field, ...]:
    """The fields that a version carries, in wire order."""
    found = []
    for line in cls.FIELDS:
        name, kind, span, *options = line.split()
        first, _, last = span.replace("+", "-32767").partition("-")
        if int(first) <= version <= int(last):
            more = dict(zip(options[::2], options[1::2], strict=True))
            nullable = "null" in more and version >= int(more["null"].rstrip("+"))
            tag = int(more["tag"]) if "tag" in more else None
            found.append(Field(name, kind.removeprefix("[]"), kind.startswith("[]"), nullable, tag))
    return tuple(found)


def plain_fields(cls: type[Struct], version: int) -> list[Field]:
    return [field for field in fields_of(cls, version) if field.tag is None]


def tagged_fields(cls: type[Struct], version: int) -> list[Field]:
    """In the order of their tags, as they must be written."""
    tagged = [(field.tag, field) for field in fields_of(cls, version) if field.tag is not None]
    return [field for _, field in sorted(tagged)]


def structure(cls: type[Struct], name: str) -> type[Struct]:
    """The class that a field of `cls` names as its type."""
    return cast("type[Struct]", getattr(sys.modules[cls.__module__], name))


def default_source(cls: type[Struct], name: str) -> str:
    """The expression that makes a field's default; a structure is called by the name of its class."""
    value = (cls.__init__.__kwdefaults__ or {})[name]
    if value is None or isinstance(value, int | float | str | bytes):
        return repr(value)
    kind = next(line.split()[1] for line in cls.FIELDS if line.split()[0] == name)
    return "[]" if kind.startswith("[]") else f"{kind}()"


def size_min(cls: type[Struct], version: int, flexible: bool) -> int:
    """The fewest bytes that a structure can take."""
    total = 1 if flexible else 0
    for field in plain_fields(cls, version):
        if field.array:
            total += 1 if flexible else 4
        elif field.nullable and field.kind not in ("string", "bytes", "records"):
            total += 1
        else:
            total += element_size_min(cls, field, version, flexible)
    return total


def element_size_min(cls: type[Struct], field: Field, version: int, flexible: bool) -> int:
    """The fewest bytes that a field, or an element of an array field, can take; never none."""
    if field.kind in FIXED:
        return FIXED[field.kind][1]
    if field.kind in ("string", "bytes", "records"):
        return 1 if flexible else 2 if field.kind == "string" else 4
    return max(1, size_min(structure(cls, field.kind), version, flexible))


class Sheet:
    """Source of one function in the making: lines at an indent, names not used before, and constants."""

    def __init__(self, cls: type[Message], version: int) -> None:
        low, high = cls.VERSIONS
        if not low <= version <= high:
            raise ValueError(f"{cls.__name__} has the versions {low} to {high}, not {version}")
        self.cls = cls
        self.version = version
        self.flexible = version >= cls.FLEXIBLE_FROM
        self.constants: dict[str, object] = {}
        self._lines: list[str] = []
        self._indent = 0
        self._names = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._indent + text)

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        self.line(opening)
        self._indent += 1
        yield
        self._indent -= 1

    def name(self, stem: str) -> str:
        self._names += 1
        return f"{stem}{self._names}"

    def constant(self, name: str, value: object) -> str:
        self.constants[name] = value
        return name

    def function(self, name: str) -> Callable[..., object]:
        source = "\n".join(self._lines)
        label = f"<{name} of {self.cls.__name__} version {self.version}>"
        exec(compile(source, label, "exec"), self.constants)
        return cast("Callable[..., object]", self.constants[name])
