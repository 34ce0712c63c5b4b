"""Schemas of record values, for the compiled codecs of `wire.messages`: one line for each field.

    name: python_type = wire("type versions [null versions] [tag number]", default=...)

`wire.tree` explains the notation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar, dataclass_transform

from ottla.wire.tree import Message, Struct

S = TypeVar("S", bound=Struct)


def wire(spec: str, *, default: Any = None, default_factory: Callable[[], Any] | None = None) -> Any:
    """A field: its type and versions on the wire, and its default."""
    if default_factory is not None:
        return field(default_factory=default_factory, metadata={"spec": spec})
    return field(default=default, metadata={"spec": spec})


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(wire,))
def schema(cls: type[S]) -> type[S]:
    """The class with `__slots__`, `__init__` and the table `FIELDS`, from its fields."""
    made = dataclass(slots=True, kw_only=True, eq=False, repr=False)(cls)
    made.FIELDS = tuple(f"{each.name} {each.metadata['spec']}" for each in fields(made))  # type: ignore[arg-type]
    return made


class RecordValue(Message):
    __slots__ = ()
    API_KEY: ClassVar[int] = -1
    KIND: ClassVar[str] = "data"
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    FLEXIBLE_FROM: ClassVar[int] = 0
