"""Refusals of whole requests as frames, for brokers that are to fail in a test."""

from __future__ import annotations

from ottla.errors import ErrorCode
from ottla.wire.apis import METADATA
from ottla.wire.frame import framed, parse_request_header, parse_response_header, response_header
from ottla.wire.messages import decode_request, decode_response, encode_response
from ottla.wire.refusal import refusal
from ottla.wire.schema.metadata import MetadataResponse
from ottla.wire.schema.produce import ProduceRequest


def refused(frame: memoryview, code: ErrorCode) -> bytes | None:
    """A whole frame, length and all, that answers the request in `frame` (which comes without its length) with an
    error. None: there is no place in the answer to say so, or no answer is awaited."""
    api_key, version, correlation_id, _, pos = parse_request_header(frame)
    request = decode_request(api_key, version, frame, pos)
    if isinstance(request, ProduceRequest) and request.acks == 0:
        return None
    response = refusal(request, version, code, of_each=True)
    if response is None:
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
