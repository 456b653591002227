"""Record batches that no real producer sends."""

from __future__ import annotations

import functools
import gzip
import random
import time

import pyarrow

from storage_node.log.batches.batch import CRC_FIELD, CRC_START, HEADER, HEADER_SIZE, PREFIX_SIZE, build_batch, crc_of
from storage_node.wire.primitives import varint

GZIP, SNAPPY, LZ4, ZSTD = range(1, 5)
#: Records of the dense batch, 10 bytes each.
DENSE_RECORDS = 200_000
DENSE_FROM, DENSE_TO = 1_000, 2_000
BOMB = 32 << 20
#: The most headers of two bytes each that a node accepts in a batch, and that max.message.bytes allows uncompressed.
MOST_HEADERS, PLAIN_HEADERS = 1 << 20, 500_000
TINY_BLOCKS = 100_000

_ONE = b"\x0e\0\0\0\1\2a\0"
"""A record: no key, the value "a"."""


def batch(
    payload: bytes = _ONE,
    count: int = 1,
    attributes: int = 0,
    *,
    first: int | None = None,
    last: int | None = None,
    producer: int = -1,
    delta: int | None = None,
) -> bytes:
    """Build a batch with an arbitrary payload and a valid CRC.

    `first`, `last`: base and max timestamp in milliseconds, by default now; `delta`: the last offset delta.
    """
    begun = time.time_ns() // 1_000_000 if first is None else first
    epoch, sequence = (0, 0) if producer >= 0 else (-1, -1)
    out = bytearray(HEADER_SIZE) + payload
    HEADER.pack_into(
        out,
        0,
        *(0, len(out) - PREFIX_SIZE, -1, 2, 0, attributes, count - 1 if delta is None else delta),
        *(begun, begun if last is None else last, producer, epoch, sequence, count),
    )
    CRC_FIELD.pack_into(out, CRC_START - CRC_FIELD.size, crc_of(out, 0, len(out)))
    return bytes(out)


@functools.cache
def dense() -> bytes:
    """Return a batch of `DENSE_RECORDS` empty records, of which only the last has the later timestamp."""
    times = [DENSE_FROM] * (DENSE_RECORDS - 1) + [DENSE_TO]
    plain = build_batch([None] * DENSE_RECORDS, timestamps=times)[HEADER_SIZE:]
    return batch(gzip.compress(plain, 6), DENSE_RECORDS, GZIP, first=DENSE_FROM, last=DENSE_TO)


@functools.cache
def bomb() -> bytes:
    """Return a valid batch with one record of zeros that decompresses to a thousand times its size."""
    return batch(gzip.compress(build_batch([bytes(BOMB)])[HEADER_SIZE:], 6), 1, GZIP)


def _record(headers: int) -> bytes:
    """Return a record with `headers` headers, each with an empty key and a null value."""
    body = b"\0\0\0\1\1" + varint(2 * headers) + b"\0\1" * headers
    return varint(2 * len(body)) + body


@functools.cache
def header_flood(codec: int) -> bytes:
    """Return a valid batch of one record with the maximum number of headers."""
    if codec == ZSTD:
        return batch(bytes(pyarrow.compress(_record(MOST_HEADERS), codec="zstd", asbytes=True)), 1, ZSTD)
    if codec == GZIP:
        return batch(gzip.compress(_record(MOST_HEADERS), 6), 1, GZIP)
    return batch(_record(PLAIN_HEADERS))


@functools.cache
def tiny_blocks() -> bytes:
    """Return a valid batch of one record in a snappy stream with one block per byte."""
    blocks = b"".join(b"\0\0\0\3\1\0%c" % byte for byte in _record(TINY_BLOCKS // 2))
    return batch(b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + blocks, 1, SNAPPY)


@functools.cache
def heavy_garbage() -> bytes:
    """Return a batch whose records a node finds invalid only after decompression."""
    return batch(gzip.compress(random.Random(2).randbytes(500_000), 1), 1, GZIP)


@functools.cache
def backlog() -> bytes:
    """Return a batch with one large incompressible record."""
    return build_batch([random.Random(1).randbytes(1_000_000)], timestamp=time.time_ns() // 1_000_000)


def claiming(payload: bytes) -> bytes:
    """Return a compressed batch whose header has a count of 2^31-1 records."""
    return batch(payload, 2**31 - 1, GZIP)


def _plain(*records: bytes) -> bytes:
    return b"".join(records)


def unreadable() -> dict[str, bytes]:
    """Return batches that no consumer can read, or whose header does not match their records, by their defect."""
    now = time.time_ns() // 1_000_000
    return {
        "codec 5": batch(b"garbage", 1, 5),
        "codec 7": batch(b"garbage", 1, 7),
        "gzip of garbage": batch(b"not gzip", 1, GZIP),
        "snappy of garbage": batch(b"not snappy", 1, 2),
        "lz4 of garbage": batch(b"not lz4", 1, 3),
        "zstd of garbage": batch(b"not zstd", 1, 4),
        "records of length 0": batch(b"\0\0\0", 3),
        "a record of garbage": batch(bytes((8, 255, 255, 255, 255))),
        "a record beyond its batch": batch(b"\x7f" + _ONE[1:]),
        "fewer records than claimed": batch(_ONE, 5),
        "more records than claimed": batch(_plain(_ONE, b"\x0e\0\0\2\1\2a\0"), 1),
        "gzip of fewer than claimed": batch(gzip.compress(_ONE), 5, GZIP),
        "offsets that do not fit the count": batch(_ONE, 1, delta=7),
        "no record at all": batch(b"", 0, delta=0),
        "LogAppendTime by a producer": batch(attributes=8),
        "a control batch": batch(attributes=0x20),
        "max timestamp below the base": batch(first=now, last=5),
        "two batches": batch() + batch(),
        "half a batch": batch()[:-3],
        "a wrong checksum": batch()[:-1] + b"\xff",
    }
