"""Base classes of messages, for the generated classes in `ottla.wire.schema`.

One class serves all versions of an API: its attributes are the union of all versions. `FIELDS` has one string for each
field, in wire order:

    name type versions [null versions] [tag number]

`versions` is `7+`, or `0-7` for a field that later versions dropped. `type` is a primitive, the name of another class
in the same module, or `[]` before either for an array. `null` gives the versions in which null is allowed. Strings are
constants of the compiled module: the tables cost nothing at import.
"""

from typing import Any, ClassVar, Final

NEVER: Final = 0x7FFF
"""Stands in `FLEXIBLE_FROM` for an API that has no flexible version; no version is as high."""

ZERO_UUID: Final = bytes(16)
"""The topic id (or other uuid) that means none."""

UNSET: Final[Any] = object()
"""The default of arguments whose real default is a fresh list or structure."""


class Struct:
    """A message, or a part of one."""

    __slots__: ClassVar[tuple[str, ...]] = ()
    FIELDS: ClassVar[tuple[str, ...]] = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({values})"


class Message(Struct):
    """The root of a tree: what one frame carries, or (kind `data`) what is embedded in a bytes field."""

    __slots__ = ()
    API_KEY: ClassVar[int]
    KIND: ClassVar[str]
    VERSIONS: ClassVar[tuple[int, int]]
    FLEXIBLE_FROM: ClassVar[int]
