"""Encode and decode messages of every API and version of the schema.

    request = decode(MetadataRequest, version, body)
    body = encode(MetadataResponse(...), version)

One class serves all versions: a field that a version lacks has its default after decoding, and is left out when
encoding. Codecs are compiled on first use and cached.
"""

from __future__ import annotations

from importlib import import_module
from typing import Literal, TypeVar, cast

from ottla.errors import BadFrame
from ottla.runtime import Buffer
from ottla.wire.apis import APIS
from ottla.wire.decoders import Decoder, compile_decoder
from ottla.wire.encoders import Encoder, compile_encoder
from ottla.wire.tree import Message

M = TypeVar("M", bound=Message)
Kind = Literal["request", "response"]

_classes: dict[tuple[int, Kind], type[Message]] = {}
_decoders: dict[tuple[type[Message], int, bool], Decoder] = {}
_encoders: dict[tuple[type[Message], int], Encoder] = {}


def decode(cls: type[M], version: int, data: Buffer, pos: int = 0, *, whole: bool = True) -> M:
    """The message at `pos`. BadFrame if it is malformed, or (with `whole`) if bytes follow it."""
    decoder = _decoders.get((cls, version, whole)) or decoder_of(cls, version, whole=whole)
    return cast("M", decoder(data, pos))


def encode(message: Message, version: int) -> bytes:
    cls = type(message)
    encoder = _encoders.get((cls, version)) or encoder_of(cls, version)
    return encoder(message)


def decoder_of(cls: type[Message], version: int, *, whole: bool = True) -> Decoder:
    """The function behind `decode`, for tables that are looked up once and used often."""
    decoder = _decoders.get((cls, version, whole))
    if decoder is None:
        low, high = cls.VERSIONS
        if not low <= version <= high:
            raise BadFrame(f"{cls.__name__} has no version {version}")
        decoder = _decoders[cls, version, whole] = compile_decoder(cls, version, whole=whole)
    return decoder


def encoder_of(cls: type[Message], version: int) -> Encoder:
    """The function behind `encode`. ValueError for a version that does not exist."""
    encoder = _encoders.get((cls, version))
    if encoder is None:
        encoder = _encoders[cls, version] = compile_encoder(cls, version)
    return encoder


def message_class(api_key: int, kind: Kind) -> type[Message]:
    """The class of an API's request or response; its module is imported on first use."""
    cls = _classes.get((api_key, kind))
    if cls is None:
        name = APIS[api_key].name
        module = "".join(f"_{char.lower()}" if char.isupper() else char for char in name).lstrip("_")
        found = getattr(import_module(f"ottla.wire.schema.{module}"), name + kind.capitalize())
        cls = _classes[api_key, kind] = cast("type[Message]", found)
    return cls


def decode_request(api_key: int, version: int, data: Buffer, pos: int = 0) -> Message:
    return decode(message_class(api_key, "request"), version, data, pos)


def encode_request(api_key: int, version: int, request: Message) -> bytes:
    assert type(request) is message_class(api_key, "request")
    return encode(request, version)


def decode_response(api_key: int, version: int, data: Buffer, pos: int = 0) -> Message:
    return decode(message_class(api_key, "response"), version, data, pos)


def encode_response(api_key: int, version: int, response: Message) -> bytes:
    assert type(response) is message_class(api_key, "response")
    return encode(response, version)
