"""Frames: a length of four bytes, then a request or response header, then the body.

A request header has API key, version and a correlation id that the response repeats. Headers of flexible versions end
with tagged fields (KIP-482); the client id is a string with a two-byte length in all of them. The response to
ApiVersions never has a flexible header: the client does not know our versions yet (KIP-511).
"""

from __future__ import annotations

import struct
from typing import Final

from ottla.errors import BadFrame
from ottla.runtime import Buffer
from ottla.wire.apis import API_VERSIONS, APIS
from ottla.wire.primitives import skip_tags

LENGTH_BYTES: Final = 4

_LENGTH = struct.Struct(">i")
_REQUEST = struct.Struct(">hhih")
_REQUEST_FIXED = struct.Struct(">hhi")
_RESPONSE = struct.Struct(">i")
_RESPONSE_FLEXIBLE = struct.Struct(">ix")  # the pad byte is an empty set of tagged fields
_SHORT = struct.Struct(">h")

_OTHER_PROTOCOLS: Final = {b"\x16\x03": "TLS", b"GET ": "HTTP", b"POST": "HTTP", b"HEAD": "HTTP", b"PUT ": "HTTP"}

_FLEXIBLE_FROM = {key: api.flexible_from for key, api in APIS.items()}


def read_length(data: Buffer, pos: int = 0) -> int:
    """The length prefix at `pos`, unchecked."""
    return int(_LENGTH.unpack_from(data, pos)[0])


def refused_length(length: int, limit: int) -> str:
    """Why a frame is refused. The first bytes of other protocols read as a length, too."""
    first = _LENGTH.pack(length)
    other = next((name for start, name in _OTHER_PROTOCOLS.items() if first.startswith(start)), None)
    guess = f"; this looks like {other}" if other else ""
    return f"a frame of {length} bytes (at most {limit} are accepted){guess}"


def framed(*parts: Buffer) -> bytes:
    """The parts as one frame, length first."""
    return b"".join((_LENGTH.pack(sum(map(len, parts))), *parts))


def parse_request_header(view: memoryview) -> tuple[int, int, int, str | None, int]:
    """Of a whole request: API key, version, correlation id, client id, and where the body starts."""
    try:
        api_key, version, correlation_id, length = _REQUEST.unpack_from(view)
        flexible_from = _FLEXIBLE_FROM[api_key]
        pos = 10
        client_id = None
        if length >= 0:
            pos += length
            if pos > len(view):
                raise BadFrame("the client id is longer than the request")
            client_id = str(view[10:pos], "utf-8")
        elif length != -1:
            raise BadFrame("the client id has a negative length")
        if version >= flexible_from:
            pos = skip_tags(view, pos)
    except (struct.error, IndexError):
        raise BadFrame("the request ends within its header") from None
    except KeyError:
        raise BadFrame(f"there is no API {api_key}") from None
    except UnicodeDecodeError:
        raise BadFrame("the client id is not UTF-8") from None
    return api_key, version, correlation_id, client_id, pos


def request_header(api_key: int, version: int, correlation_id: int, client_id: str | None = None) -> bytes:
    """The header that a client puts before the body."""
    tags = b"\0" if version >= _FLEXIBLE_FROM[api_key] else b""
    fixed = _REQUEST_FIXED.pack(api_key, version, correlation_id)
    if client_id is None:
        return fixed + b"\xff\xff" + tags
    name = client_id.encode()
    return fixed + _SHORT.pack(len(name)) + name + tags


def response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    """The header that the broker puts before the body."""
    if version >= _FLEXIBLE_FROM[api_key] and api_key != API_VERSIONS:
        return _RESPONSE_FLEXIBLE.pack(correlation_id)
    return _RESPONSE.pack(correlation_id)


def parse_response_header(view: memoryview, api_key: int, version: int) -> tuple[int, int]:
    """Of a whole response to a request of this API and version: correlation id, and where the body starts."""
    try:
        (correlation_id,) = _RESPONSE.unpack_from(view)
        if version >= _FLEXIBLE_FROM[api_key] and api_key != API_VERSIONS:
            return correlation_id, skip_tags(view, 4)
        return correlation_id, 4
    except (struct.error, IndexError):
        raise BadFrame("the response ends within its header") from None
