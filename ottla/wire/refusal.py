"""Error responses to any request, built from the field tables of request and response.

A response in Kafka's protocol mirrors its request: where the request lists topics and partitions, the response lists
the same with an error code for each. So lists are paired in their order, fields that identify an item (topic,
partition, group) are copied, and every error code is set. A response without such lists has one error code.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, Final

from ottla.errors import ErrorCode
from ottla.wire.apis import ALTER_REPLICA_LOG_DIRS, ALTER_USER_SCRAM_CREDENTIALS
from ottla.wire.fields import Field, fields_of, structure
from ottla.wire.messages import message_class
from ottla.wire.tree import Message, Struct

CODES: Final = ("error_code", "partition_error_code")
NAMES: Final = (
    "topic_id", "name", "topic", "topic_name", "user", "group_id", "transactional_id", "resource_type", "resource_name",
    "key", "member_id", "group_instance_id", "producer_id", "partition_index", "partition_id", "partition", "index",
    "entity",
)  # fmt: skip
"""Fields that identify an item."""
INDEXES: Final = ("partition_index", "partition_id", "partition", "index")
"""Four names of the partition index."""
SOURCES: Final = {"topic_name": ("name",), "user": ("name",), **dict.fromkeys(INDEXES, INDEXES)}
"""Names of a response's field in the request, if they differ."""
NO_ITEMS: Final = frozenset({"configuration_keys", "forgotten_topics_data"})
"""Lists in requests that have no counterpart in the response."""


def refusal(
    request: Message, version: int, code: ErrorCode, text: str | None = None, *, of_each: bool = False
) -> Message | None:
    """`of_each`: set the error of each item, also where one error code for the whole response exists. None: the
    response has no error code."""
    response = message_class(request.API_KEY, "response")()
    has_one = any(field.name == "error_code" for field in fields_of(type(response), version))
    asked = None if has_one and not of_each else request
    return response if _refuse(asked, response, version, code, text) else None


def _refuse(request: Struct | None, response: Struct, version: int, code: ErrorCode, text: str | None) -> bool:
    """Fill in the response; whether an error code was set."""
    fields = fields_of(type(response), version)
    if request is not None:
        _copy_names(request, response, fields)
    placed = False
    if request is not None:
        asked = _lists(request, version)
        for field in fields:
            if field.array and _carries_code(type(response), field, version) and asked:
                placed |= _refuse_items(asked.pop(0), response, field, version, code, text)
    if not placed:
        for field in fields:
            if field.name in CODES:
                setattr(response, field.name, int(code))
                placed = True
        if placed and hasattr(response, "error_message"):
            setattr(response, "error_message", text)  # noqa: B010
    return placed


def _refuse_items(
    asked: list[Any], response: Struct, field: Field, version: int, code: ErrorCode, text: str | None
) -> bool:
    kind = structure(type(response), field.kind)
    items = []
    placed = False
    for each in asked:
        item = kind()
        if isinstance(each, Struct):
            placed |= _refuse(each, item, version, code, text)
        else:
            name = next(field.name for field in fields_of(kind, version) if field.name in NAMES)
            setattr(item, name, each)
            placed |= _refuse(None, item, version, code, text)
        items.append(item)
    setattr(response, field.name, items)
    return placed


def _lists(request: Struct, version: int) -> list[list[Any]]:
    fields = (field for field in fields_of(type(request), version) if field.array and field.name not in NO_ITEMS)
    found = [value for field in fields if (value := getattr(request, field.name))]
    if found and isinstance(request, Message) and request.API_KEY == ALTER_REPLICA_LOG_DIRS:
        return [[topic for directory in found[0] for topic in directory.topics]]
    if isinstance(request, Message) and request.API_KEY == ALTER_USER_SCRAM_CREDENTIALS:
        return [[*chain.from_iterable(found)]]  # deletions and upsertions
    return found


def _carries_code(owner: type[Struct], field: Field, version: int) -> bool:
    """Whether the items of this list, or of lists within them, have an error code."""
    if field.tag is not None or not field.kind[0].isupper():
        return False
    kind = structure(owner, field.kind)
    inner = fields_of(kind, version)
    return any(each.name in CODES or (each.array and _carries_code(kind, each, version)) for each in inner)


def _copy_names(request: Struct, response: Struct, fields: tuple[Field, ...]) -> None:
    for field in fields:
        if field.name not in NAMES:
            continue
        for source in SOURCES.get(field.name, (field.name,)):
            if hasattr(request, source):
                setattr(response, field.name, getattr(request, source))
