"""The answer to any request that refuses all of it, made from the shape of both; pure.

An answer in Kafka's protocol mirrors its request: where the request lists topics and their partitions, the answer lists
the same with an error code each. So what the answer must look like is read off the tables of fields: lists are paired
in their order, what names a thing (a topic, a partition, a group) is copied, and every error code is set. An answer
with nothing to list has one error code for all.
"""

from __future__ import annotations

from typing import Any, Final

from ottla.errors import ErrorCode
from ottla.wire.apis import METADATA
from ottla.wire.fields import Field, fields_of, structure
from ottla.wire.frame import framed, parse_request_header, parse_response_header, response_header
from ottla.wire.messages import decode_request, decode_response, encode_response, message_class
from ottla.wire.schema.metadata import MetadataResponse
from ottla.wire.schema.produce import ProduceRequest
from ottla.wire.tree import Struct

CODES: Final = ("error_code", "partition_error_code")
NAMES: Final = (
    "topic_id", "name", "topic", "group_id", "transactional_id", "resource_type", "resource_name", "key",
    "member_id", "group_instance_id", "partition_index", "partition_id", "partition", "index",
)  # fmt: skip
"""What says which thing an item is about."""
INDEXES: Final = frozenset({"partition_index", "partition_id", "partition", "index"})
"""One thing under four names."""
NO_ITEMS: Final = frozenset({"configuration_keys", "forgotten_topics_data"})
"""Lists in requests that say how, not what."""


def refused(frame: memoryview, code: ErrorCode) -> bytes | None:
    """A whole frame, length and all, that answers the request in `frame` (which comes without its length) with an
    error. None: there is no place in the answer to say so, or no answer is awaited."""
    api_key, version, correlation_id, _, pos = parse_request_header(frame)
    request = decode_request(api_key, version, frame, pos)
    if isinstance(request, ProduceRequest) and request.acks == 0:
        return None
    response = message_class(api_key, "response")()
    if not _refuse(request, response, version, code):
        return None
    header = response_header(api_key, version, correlation_id)
    return framed(header, encode_response(api_key, version, response))


def needs_real_answer(api_key: int) -> bool:
    """Whether the refusal can only be made out of the broker's own answer: clients cannot do without the list of
    brokers that comes with the topics."""
    return api_key == METADATA


def refused_in(answer: memoryview, version: int, code: ErrorCode) -> bytes:
    """The answer to Metadata (a whole frame), with this error for each of its topics."""
    correlation_id, pos = parse_response_header(answer[4:], METADATA, version)
    response = decode_response(METADATA, version, answer[4:], pos)
    assert isinstance(response, MetadataResponse)
    for topic in response.topics:
        topic.error_code = code
        topic.partitions = []
    header = response_header(METADATA, version, correlation_id)
    return framed(header, encode_response(METADATA, version, response))


def _refuse(request: Struct | None, response: Struct, version: int, code: ErrorCode) -> bool:
    """Fill in what the answer needs; whether the error found a place."""
    fields = fields_of(type(response), version)
    if request is not None:
        _copy_names(request, response, fields)
    placed = False
    if request is not None:
        asked = _lists(request, version)
        for field in fields:
            if field.array and _carries_code(type(response), field, version) and asked:
                placed |= _refuse_items(asked.pop(0), response, field, version, code)
    if not placed:
        for field in fields:
            if field.name in CODES:
                setattr(response, field.name, int(code))
                placed = True
    return placed


def _refuse_items(asked: list[Any], response: Struct, field: Field, version: int, code: ErrorCode) -> bool:
    kind = structure(type(response), field.kind)
    items = []
    placed = False
    for each in asked:
        item = kind()
        if isinstance(each, Struct):
            placed |= _refuse(each, item, version, code)
        else:
            name = next(field.name for field in fields_of(kind, version) if field.name in NAMES)
            setattr(item, name, each)
            placed |= _refuse(None, item, version, code)
        items.append(item)
    setattr(response, field.name, items)
    return placed


def _lists(request: Struct, version: int) -> list[list[Any]]:
    found = (field for field in fields_of(type(request), version) if field.array and field.name not in NO_ITEMS)
    return [value for field in found if (value := getattr(request, field.name))]


def _carries_code(owner: type[Struct], field: Field, version: int) -> bool:
    """Whether an error code stands in the items of this list, or in lists within them."""
    if field.tag is not None or not field.kind[0].isupper():
        return False
    kind = structure(owner, field.kind)
    inner = fields_of(kind, version)
    return any(each.name in CODES or (each.array and _carries_code(kind, each, version)) for each in inner)


def _copy_names(request: Struct, response: Struct, fields: tuple[Field, ...]) -> None:
    for field in fields:
        if field.name not in NAMES:
            continue
        sources = INDEXES if field.name in INDEXES else (field.name,)
        for source in sources:
            if hasattr(request, source):
                setattr(response, field.name, getattr(request, source))
