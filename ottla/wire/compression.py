"""Compression of record batches: gzip, snappy, lz4, zstd.

- gzip: members one after another.
- snappy: raw, as librdkafka writes it, or in the frame of the Java library, which is what we write.
- lz4: the frame format. The Java client reads only frames whose blocks do not depend on one another, so the
  frame is put together here, block by block.
- zstd: frames.

The size of the output is not known, and a claimed size may be wrong. So the output never exceeds `bytes_max`, and is
allocated in steps, each filled before the next. The library is loaded on first use: a broker that never decompresses
does not load it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.errors import ErrorCode, Refused
from ottla.runtime import Buffer

if TYPE_CHECKING:
    from types import ModuleType

OUTPUT_BYTES_FIRST: Final = 64 * 1024
SNAPPY_BLOCK_BYTES: Final = 32 * 1024
SNAPPY_RATIO_MAX: Final = 22
"""A copy of up to 64 bytes takes three: snappy cannot expand by more."""

_SNAPPY_MAGIC: Final = b"\x82SNAPPY\0"
_SNAPPY_HEADER: Final = _SNAPPY_MAGIC + struct.pack(">ii", 1, 1)
_SNAPPY_BLOCK = struct.Struct(">I")

_LZ4_HEADER: Final = b"\x04\x22\x4d\x18" + b"\x60\x40" + b"\x82"
"""Magic; version 1 with independent blocks of at most 64 kB; the checksum of these two bytes."""
_LZ4_BLOCK = struct.Struct("<I")
_LZ4_BLOCK_BYTES: Final = 64 * 1024
_LZ4_STORED: Final = 1 << 31
_LZ4_END: Final = bytes(4)
_LZ4_BLOCK_CHECKSUM: Final = 0x10
_LZ4_CONTENT_SIZE: Final = 0x08


def decompress(codec: str, data: Buffer, bytes_max: int) -> bytes:
    """The decompressed bytes. Refused if they are damaged, or more than `bytes_max`."""
    if codec == "none":
        return bytes(data)
    if codec == "snappy":
        return _snappy_decompress(data, bytes_max)
    return _decompress_growing(codec, data, bytes_max)


def compress(codec: str, data: Buffer, level: int | None = None) -> bytes:
    """Compressed, by default at the codec's default level; snappy has no levels."""
    if codec == "none":
        return bytes(data)
    return _COMPRESSORS[codec](data, level)


def _library() -> ModuleType:
    import cramjam

    return cramjam


def _too_large(bytes_max: int) -> Refused:
    return Refused(ErrorCode.invalid_record, f"the records expand to more than {bytes_max} bytes")


def _damaged(codec: str, why: object) -> Refused:
    return Refused(ErrorCode.corrupt_message, f"the records cannot be decompressed with {codec}: {why}")


def _decompress_growing(codec: str, data: Buffer, bytes_max: int) -> bytes:
    """Into a buffer that doubles for as long as it turns out too small."""
    cramjam = _library()
    into = getattr(cramjam, codec).decompress_into
    size = min(max(OUTPUT_BYTES_FIRST, 4 * len(data)), bytes_max)
    while True:
        output = bytearray(size)
        try:
            written = into(data, output)
        except cramjam.DecompressionError as error:
            if "failed to write whole buffer" not in str(error):
                raise _damaged(codec, error) from None
        else:
            return bytes(memoryview(output)[:written])
        if size >= bytes_max:
            raise _too_large(bytes_max)
        size = min(2 * size, bytes_max)


def _snappy_decompress(data: Buffer, bytes_max: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(_SNAPPY_MAGIC)]) != _SNAPPY_MAGIC:
        return _snappy_block(view, bytes_max)
    parts: list[bytes] = []
    pos = len(_SNAPPY_HEADER)
    while pos < len(view):
        if len(view) - pos < _SNAPPY_BLOCK.size:
            raise _damaged("snappy", "the last block is cut short")
        (size,) = _SNAPPY_BLOCK.unpack_from(view, pos)
        pos += _SNAPPY_BLOCK.size
        if size > len(view) - pos:
            raise _damaged("snappy", "a block is longer than the data")
        parts.append(_snappy_block(view[pos : pos + size], bytes_max))
        bytes_max -= len(parts[-1])
        pos += size
    return b"".join(parts)


def _snappy_block(block: memoryview, bytes_max: int) -> bytes:
    cramjam = _library()
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > bytes_max:
            raise _too_large(bytes_max)
        if size > SNAPPY_RATIO_MAX * len(block):
            raise _damaged("snappy", f"{size} bytes cannot come out of {len(block)}")
        output = bytearray(size)
        cramjam.snappy.decompress_raw_into(block, output)
    except cramjam.DecompressionError as error:
        raise _damaged("snappy", error) from None
    return bytes(output)


def _gzip_compress(data: Buffer, level: int | None) -> bytes:
    return bytes(_library().gzip.compress(data, level=6 if level is None or level < 0 else level))


def _zstd_compress(data: Buffer, level: int | None) -> bytes:
    return bytes(_library().zstd.compress(data, level=3 if level is None else level))


def _snappy_compress(data: Buffer, _: int | None) -> bytes:
    compress_raw = _library().snappy.compress_raw
    view = memoryview(data)
    parts = [_SNAPPY_HEADER]
    for pos in range(0, len(view), SNAPPY_BLOCK_BYTES):
        block = bytes(compress_raw(view[pos : pos + SNAPPY_BLOCK_BYTES]))
        parts += (_SNAPPY_BLOCK.pack(len(block)), block)
    return b"".join(parts)


def _lz4_compress(data: Buffer, level: int | None) -> bytes:
    view = memoryview(data)
    starts = range(0, len(view), _LZ4_BLOCK_BYTES)
    blocks = [_lz4_block(view[start : start + _LZ4_BLOCK_BYTES], level or 0) for start in starts]
    return b"".join((_LZ4_HEADER, *blocks, _LZ4_END))


def _lz4_block(data: memoryview, level: int) -> bytes:
    """One block with its length, cut out of a frame: only frames have a compression level in the library."""
    frame = bytes(_library().lz4.compress(data, level=level))
    flags = frame[4]
    start = 15 if flags & _LZ4_CONTENT_SIZE else 7
    stop = start + 4 + (_LZ4_BLOCK.unpack_from(frame, start)[0] & ~_LZ4_STORED)
    after = stop + 4 if flags & _LZ4_BLOCK_CHECKSUM else stop
    assert frame[after : after + 4] == _LZ4_END, "64 kB are one block"
    return frame[start:stop]


_COMPRESSORS: Final[dict[str, Callable[[Buffer, int | None], bytes]]] = {
    "gzip": _gzip_compress,
    "snappy": _snappy_compress,
    "lz4": _lz4_compress,
    "zstd": _zstd_compress,
}
