"""Headers against kio's, and malformed headers."""

from __future__ import annotations

import io
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as RequestHeader1
from kio.schema.request_header.v2.header import RequestHeader as RequestHeader2
from kio.serial import entity_writer

from ottla.errors import BadFrame
from ottla.wire import frame
from ottla.wire.apis import API_VERSIONS, APIS, METADATA, SASL_HANDSHAKE
from tests.wire import oracle


def written(header):
    buffer = io.BytesIO()
    entity_writer(type(header))(buffer, header)
    return buffer.getvalue()


@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "é" * 300])
@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_request_headers_are_those_of_kio(api, client_id):
    for version in range(api.min, api.max + 1):
        cls = RequestHeader2 if api.flexible(version) else RequestHeader1
        assert oracle.kio_class(snake(api.name), "request", version).__header_schema__ is cls
        theirs = written(
            cls(request_api_key=api.key, request_api_version=version, correlation_id=-7, client_id=client_id)
        )
        assert frame.request_header(api.key, version, -7, client_id) == theirs
        parsed = frame.parse_request_header(memoryview(theirs + b"body"))
        assert parsed == (api.key, version, -7, client_id, len(theirs))


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_response_headers_are_those_of_kio(api):
    for version in range(api.min, api.max + 1):
        cls = oracle.kio_class(snake(api.name), "response", version).__header_schema__
        theirs = written(cls(correlation_id=77))
        assert frame.response_header(api.key, version, 77) == theirs
        assert frame.parse_response_header(memoryview(theirs), api.key, version) == (77, len(theirs))


def snake(name):
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name)[1:]


def test_the_answer_to_api_versions_never_has_tagged_fields():
    assert frame.response_header(API_VERSIONS, 3, 1) == b"\0\0\0\1"
    assert frame.response_header(METADATA, 9, 1) == b"\0\0\0\1\0"


def test_a_header_of_a_version_from_the_future_can_be_read():
    header = struct.pack(">hhih", API_VERSIONS, 99, 5, -1) + b"\0"
    assert frame.parse_request_header(memoryview(header)) == (API_VERSIONS, 99, 5, None, 11)


def test_tagged_fields_of_a_header_are_skipped():
    header = struct.pack(">hhih", METADATA, 12, 5, 1) + b"c" + b"\x02\x00\x03abc\x63\x00"
    assert frame.parse_request_header(memoryview(header + b"body")) == (METADATA, 12, 5, "c", len(header))


BAD = {
    "empty": b"",
    "half": b"\0\3\0\1\0",
    "unknown API": struct.pack(">hhih", 999, 0, 1, -1),
    "negative API": struct.pack(">hhih", -1, 0, 1, -1),
    "client id of length -2": struct.pack(">hhih", METADATA, 0, 1, -2),
    "client id longer than the request": struct.pack(">hhih", METADATA, 0, 1, 5) + b"abc",
    "client id not UTF-8": struct.pack(">hhih", METADATA, 0, 1, 2) + b"\xc3\x28",
    "no tagged fields": struct.pack(">hhih", METADATA, 12, 1, -1),
    "tagged fields without end": struct.pack(">hhih", METADATA, 12, 1, -1) + b"\xff\xff\xff\xff\x0f\0\0",
    "tagged field longer than the request": struct.pack(">hhih", METADATA, 12, 1, -1) + b"\x01\0\x7f",
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_malformed_headers_are_bad_frames(data):
    with pytest.raises(BadFrame):
        frame.parse_request_header(memoryview(data))


@given(st.binary(max_size=40), st.sampled_from(list(APIS)), st.integers(0, 15))
def test_arbitrary_bytes_are_a_bad_frame_or_a_header(data, api_key, version):
    for header in (data, struct.pack(">hh", api_key, version) + data):
        try:
            *_, pos = frame.parse_request_header(memoryview(header))
        except BadFrame:
            continue
        assert 10 <= pos <= len(header)


def test_short_responses_are_a_bad_frame():
    with pytest.raises(BadFrame):
        frame.parse_response_header(memoryview(b"\0\0\0"), SASL_HANDSHAKE, 0)
    with pytest.raises(BadFrame):
        frame.parse_response_header(memoryview(b"\0\0\0\1"), METADATA, 12)


def test_a_frame_is_its_length_and_its_parts():
    body = random.Random(1).randbytes(300)
    whole = frame.framed(b"head", memoryview(body))
    assert frame.read_length(whole) == 304
    assert whole[frame.LENGTH_BYTES :] == b"head" + body
    assert frame.read_length(b"x\xff\xff\xff\xff", 1) == -1
