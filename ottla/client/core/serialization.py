"""Serializers and deserializers of users: functions of one argument, or of two, the second being a context.

Those with a second parameter `ctx` or `context` get the topic, the field (`key` or `value`) and the headers: what
confluent-kafka's serializers want to know, and `ottla.serde`'s.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ottla.wire.records import Headers

CONTEXT_NAMES: Final = ("ctx", "context")


class FieldContext(NamedTuple):
    """Where a key or value goes or comes from."""

    topic: str
    field: str
    headers: Headers


Converter = Callable[[Any, str, Headers], Any]
"""Of what, for or from which topic, with which headers."""


def converter(function: Callable[..., Any], field: str) -> Converter:
    if not _takes_context(function):
        return lambda given, _, __: function(given)
    return lambda given, topic, headers: function(given, FieldContext(topic, field, headers))


def _takes_context(function: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some that are not written in Python have no signature
        return False
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return len(positional) >= 2 and positional[1].name in CONTEXT_NAMES
