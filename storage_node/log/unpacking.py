"""The records of a compressed batch, unpacked: gzip, snappy, LZ4 and Zstandard as Kafka's clients write them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from storage_node.log.batch import Buffer

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
_FRAMES = {LZ4: "lz4", ZSTD: "zstd"}

MOST = 128 << 20
"""A batch is not looked into beyond so many unpacked bytes."""
_CHUNK = 64 << 10

#: Java's snappy streams begin with this, a version and the oldest version that reads them; other clients write none.
_SNAPPY_MAGIC = b"\x82SNAPPY\x00"
_SNAPPY_HEADER = 16
#: Nothing that snappy writes for three bytes stands for more than 64, and its header has at most five bytes.
_SNAPPY_RATIO = 22
_INT = struct.Struct(">i")


class TooLarge(Exception):
    """A batch unpacks to more than is looked into."""


class Unpacked:
    """What was packed, byte by byte from front to back, with no more than two chunks of it in memory.

    A thousandth of it is enough to send: whoever asks for a time stamp must not have it all unpacked at once.
    """

    def __init__(self, chunks: Iterator[Buffer]) -> None:
        self._chunks = chunks
        self._start = 0
        self._chunk: Buffer = b""

    def __getitem__(self, position: int) -> int:
        """The byte at a position that is not before the chunk of the one asked for last.

        Raises IndexError after the end, TooLarge, and ValueError for what cannot be unpacked.
        """
        while position - self._start >= len(self._chunk):
            self._start += len(self._chunk)
            if self._start > MOST:
                raise TooLarge
            chunk = next(self._chunks, None)
            if chunk is None:
                raise IndexError(position)
            self._chunk = chunk
        return self._chunk[position - self._start]


def unpack(packed: Buffer, compression: int) -> Buffer | Unpacked | None:
    """What `packed` holds; None for a compression that is not known."""
    if compression == NONE:
        return packed
    if compression == GZIP:
        return Unpacked(_gzip(packed))
    if compression == SNAPPY:
        return Unpacked(_snappy(memoryview(packed)))
    return Unpacked(_frame(packed, _FRAMES[compression])) if compression in _FRAMES else None


def _gzip(packed: Buffer) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        while chunk := unpacker.decompress(packed, _CHUNK):
            yield chunk
            packed = unpacker.unconsumed_tail
    except zlib.error as problem:
        raise ValueError(f"it cannot be unpacked: {problem}") from problem


def _frame(packed: Buffer, codec: str) -> Iterator[bytes]:
    import pyarrow  # only here and below: few nodes ever need it, and it is large

    try:
        with pyarrow.CompressedInputStream(pyarrow.BufferReader(packed), codec) as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk
    except (pyarrow.ArrowException, OSError) as problem:
        raise ValueError(f"it cannot be unpacked: {problem}") from problem


def _snappy(packed: memoryview) -> Iterator[bytes]:
    import pyarrow

    try:
        for block in _blocks(packed):
            size = _snappy_size(block)
            yield pyarrow.decompress(block, decompressed_size=size, codec="snappy", asbytes=True)
    except (pyarrow.ArrowException, OSError, struct.error) as problem:
        raise ValueError(f"it cannot be unpacked: {problem}") from problem


def _blocks(data: memoryview) -> Iterator[memoryview]:
    """The blocks of Java's stream, each with its length before it; the one block of others."""
    if bytes(data[: len(_SNAPPY_MAGIC)]) != _SNAPPY_MAGIC:
        yield data
        return
    position = _SNAPPY_HEADER
    while position < len(data):
        (length,) = _INT.unpack_from(data, position)
        position += _INT.size
        if not 0 < length <= len(data) - position:
            raise ValueError("a snappy block that is longer than its batch")
        yield data[position : position + length]
        position += length


def _snappy_size(block: memoryview) -> int:
    """How many bytes a block unpacks to, as it says itself."""
    value = shift = 0
    for byte in block[:5]:
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    else:
        raise ValueError("a snappy block without a length")
    if value > _SNAPPY_RATIO * len(block):
        raise ValueError("a snappy block that cannot hold what it says")
    return value
