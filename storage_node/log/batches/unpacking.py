"""Decompression of a batch's records: gzip, snappy, LZ4 and Zstandard as Kafka's clients write them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from storage_node.log.batches.batch import Buffer

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

MOST = 128 << 20
"""Maximum number of decompressed bytes that are read of a batch."""
MOST_MEMBERS = 1_000
"""Maximum number of gzip members in a batch; clients write one."""
_CHUNK = 128 << 10
_LEAST = 64 << 10
_WINDOW = 16 << 10
#: A smaller block counts as so many bytes, since it takes about as long to decompress.
_BLOCK_COST = 128

_GZIP_MAGIC = b"\x1f\x8b"
#: Magic, flags, block size and header checksum.
_LZ4_HEADER = struct.Struct("<IBBB")
_LZ4_MAGIC = 0x184D2204
_LZ4_VERSION, _LZ4_INDEPENDENT, _LZ4_BLOCK_CHECKSUM, _LZ4_SIZE, _LZ4_CHECKSUM = 0x40, 0x20, 0x10, 0x08, 0x04
#: The flags that must have one value: version, block independence, the reserved bit, dictionary.
_LZ4_MEANT = 0xE3
_LZ4_BLOCK = struct.Struct("<I")
_LZ4_PLAIN = 1 << 31

#: Java's snappy streams begin with this magic, a version and the oldest compatible version; other clients write none.
_SNAPPY_MAGIC = b"\x82SNAPPY\x00"
_SNAPPY_HEADER = 16
#: Three bytes of snappy decompress to at most 64, and its header has at most five bytes.
_SNAPPY_RATIO = 22
_INT = struct.Struct(">i")


class CannotUnpack(ValueError):
    """The bytes are not valid data of their compression type."""


class TooLarge(Exception):
    """A batch decompresses to more than the limits allow."""


def unpack(packed: Buffer, compression: int, most: int | None = None) -> Iterator[Buffer] | None:
    """Yield the decompressed data chunk by chunk; return None for an unknown compression type.

    `most`: maximum number of decompressed bytes, `MOST` by default. A thousandth of it is enough to send, so it is
    never all in memory. Iterating raises `CannotUnpack` for data that Kafka's consumers cannot decompress, and
    `TooLarge`.
    """
    if compression == NONE:
        return iter((packed,))
    most = MOST if most is None else min(most, MOST)
    if compression == GZIP:
        return _bounded(_gzip(memoryview(packed)), most)
    if compression == SNAPPY:
        return _bounded(_snappy(memoryview(packed)), most)
    if compression == LZ4:
        return _bounded(_lz4(memoryview(packed)), most)
    return _bounded(_frames(packed, "zstd"), most) if compression == ZSTD else None


def _bounded(chunks: Iterator[Buffer], most: int) -> Iterator[Buffer]:
    """Yield the same bytes in chunks of at least `_LEAST` bytes, since a reader may start over with each chunk."""
    size = waiting = 0
    parts: list[Buffer] = []
    for chunk in chunks:
        size += max(len(chunk), _BLOCK_COST)
        if size > most:
            raise TooLarge(f"unpacks to more than {most} bytes")
        parts.append(chunk)
        waiting += len(chunk)
        if waiting >= _LEAST:
            yield b"".join(parts) if len(parts) > 1 else chunk
            parts.clear()
            waiting = 0
    if parts:
        yield b"".join(parts)


def _gzip(packed: memoryview) -> Iterator[bytes]:
    """Decompress one member after the other; trailing bytes that are not a member are ignored, as Java and zlib do.

    zlib copies the input that it does not use yet, so it gets little at a time.
    """
    position = 0
    for _ in range(MOST_MEMBERS):
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        while not unpacker.eof:
            given = packed[position : position + _WINDOW]
            try:
                chunk = unpacker.decompress(given, _CHUNK)
            except zlib.error as problem:
                raise CannotUnpack(f"{problem}") from problem
            position += len(given) - len(unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail)
            if chunk:
                yield chunk
            elif not len(given) and not unpacker.eof:
                raise CannotUnpack("the compressed data ends early")
        if packed[position : position + len(_GZIP_MAGIC)] != _GZIP_MAGIC:
            return
    raise TooLarge(f"has more than {MOST_MEMBERS} gzip members")


def _frames(packed: Buffer, codec: str) -> Iterator[bytes]:
    import pyarrow  # imported on demand: it is large, and few nodes ever need it

    try:
        with pyarrow.CompressedInputStream(pyarrow.BufferReader(packed), codec) as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk
    except (pyarrow.ArrowException, OSError) as problem:
        raise CannotUnpack(f"{problem}") from problem


def _lz4(packed: memoryview) -> Iterator[bytes]:
    """Decompress one frame of independent blocks: Java reads no other, and librdkafka nothing behind it."""
    if len(packed) < _LZ4_HEADER.size or _LZ4_HEADER.unpack_from(packed)[0] != _LZ4_MAGIC:
        raise CannotUnpack("the data is not an LZ4 frame")
    flags = packed[4]
    if flags & _LZ4_MEANT != _LZ4_VERSION | _LZ4_INDEPENDENT:
        raise CannotUnpack("an LZ4 frame of another version, with a dictionary or linked blocks")
    position = _LZ4_HEADER.size + (8 if flags & _LZ4_SIZE else 0)
    checksum = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    try:
        while size := _LZ4_BLOCK.unpack_from(packed, position)[0]:
            position += _LZ4_BLOCK.size + (size & ~_LZ4_PLAIN) + checksum
    except struct.error as problem:
        raise CannotUnpack("the compressed data ends early") from problem
    if position + _LZ4_BLOCK.size + (4 if flags & _LZ4_CHECKSUM else 0) != len(packed):
        raise CannotUnpack("the data is more than one LZ4 frame")
    yield from _frames(packed, "lz4")


def _snappy(packed: memoryview) -> Iterator[bytes]:
    import pyarrow

    try:
        for block in _blocks(packed):
            size = _snappy_size(block)
            yield pyarrow.decompress(block, decompressed_size=size, codec="snappy", asbytes=True)
    except (pyarrow.ArrowException, OSError, struct.error) as problem:
        raise CannotUnpack(f"{problem}") from problem


def _blocks(data: memoryview) -> Iterator[memoryview]:
    """Yield the blocks of Java's stream, each preceded by its length; or the single block of other clients."""
    if bytes(data[: len(_SNAPPY_MAGIC)]) != _SNAPPY_MAGIC:
        yield data
        return
    position = _SNAPPY_HEADER
    while position < len(data):
        (length,) = _INT.unpack_from(data, position)
        position += _INT.size
        if not 0 < length <= len(data) - position:
            raise CannotUnpack("a snappy block that is longer than its batch")
        yield data[position : position + length]
        position += length


def _snappy_size(block: memoryview) -> int:
    """Return the decompressed size that a block's header declares."""
    value = shift = 0
    for byte in block[:5]:
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    else:
        raise CannotUnpack("a snappy block without a length")
    if value > _SNAPPY_RATIO * len(block):
        raise CannotUnpack("a snappy block that is too small for the size it declares")
    return value
