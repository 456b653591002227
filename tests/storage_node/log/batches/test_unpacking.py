"""Decompression of batches as clients compress them; damaged and oversized ones are distinguished."""

from __future__ import annotations

import random
import struct
import zlib

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.log.batches import unpacking
from storage_node.log.batches.unpacking import GZIP, LZ4, NONE, SNAPPY, ZSTD, CannotUnpack, TooLarge, unpack
from tests.support import batches


def packed(data: bytes, compression: int) -> bytes:
    if compression == SNAPPY:
        return bytes(pyarrow.compress(data, codec="snappy", asbytes=True))
    return batches.packed(data, compression)


def java_snappy(*blocks: bytes) -> bytes:
    """Return a stream of these blocks in snappy-java's format."""
    small = {block: packed(block, SNAPPY) for block in set(blocks)}
    sized = {block: struct.pack(">i", len(data)) + data for block, data in small.items()}
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(map(sized.__getitem__, blocks))


def unpacked(data: bytes, compression: int) -> bytes:
    """Return the concatenated chunks."""
    chunks = unpack(data, compression)
    assert chunks is not None
    return b"".join(chunks)


@given(st.binary(max_size=2000), st.sampled_from([NONE, GZIP, SNAPPY, LZ4, ZSTD]))
def test_compressed_data_is_decompressed(data: bytes, compression: int) -> None:
    assert unpacked(packed(data, compression), compression) == data


@given(st.lists(st.binary(min_size=1, max_size=500), max_size=4))
def test_javas_stream_of_snappy_blocks(blocks: list[bytes]) -> None:
    assert unpacked(java_snappy(*blocks), SNAPPY) == b"".join(blocks)


@pytest.mark.parametrize("compression", [GZIP, SNAPPY, LZ4, ZSTD])
def test_more_than_one_chunk(compression: int) -> None:
    data = bytes(range(256)) * 1024
    assert unpacked(packed(data, compression), compression) == data


@pytest.mark.parametrize(
    ("compression", "data"),
    [
        (SNAPPY, java_snappy(*[b"x"] * 200_000)),
        (GZIP, packed(b"x" * 1000, GZIP) * 200),
        (LZ4, packed(b"x" * 200_000, LZ4)),
        (ZSTD, packed(b"x" * 100, ZSTD) * 2000),
    ],
    ids=["snappy", "gzip", "lz4", "zstd"],
)
def test_small_blocks_come_in_large_chunks(compression: int, data: bytes) -> None:
    chunks = unpack(data, compression)
    assert chunks is not None
    sizes = [len(chunk) for chunk in chunks]
    assert sum(sizes) == 200_000 and all(size >= 64 << 10 for size in sizes[:-1])


def test_tiny_blocks_count_by_their_cost() -> None:
    chunks = unpack(java_snappy(*[b"x"] * 10_000), SNAPPY, 1 << 20)
    assert chunks is not None
    with pytest.raises(TooLarge):
        list(chunks)
    assert len(unpacked(java_snappy(*[b"x"] * 10_000), SNAPPY)) == 10_000


def test_gzip_input_is_not_copied_once_per_chunk_or_member(monkeypatch: pytest.MonkeyPatch) -> None:
    real = zlib.decompressobj
    given = 0

    class Counting:
        def __init__(self, wbits: int) -> None:
            self._unpacker = real(wbits)

        def decompress(self, data: bytes, most: int) -> bytes:
            nonlocal given
            given += len(data)
            return self._unpacker.decompress(data, most)

        def __getattr__(self, name: str) -> object:
            return getattr(self._unpacker, name)

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    random_part = random.Random(1).randbytes(1 << 20)
    data = packed(b"first", GZIP) + packed(b"", GZIP) * 900 + packed(bytes(8 << 20), GZIP) + packed(random_part, GZIP)
    assert unpacked(data, GZIP) == b"first" + bytes(8 << 20) + random_part
    assert given < 32 * len(data)


def test_gzip_member_behind_one_of_many_chunks_is_read_once() -> None:
    first = bytes(range(256)) * 4096
    assert unpacked(packed(first, GZIP) + packed(b"second", GZIP), GZIP) == first + b"second"


def test_gzip_of_too_many_members_is_rejected() -> None:
    member = packed(b"x", GZIP)
    assert unpacked(member * unpacking.MOST_MEMBERS, GZIP) == b"x" * unpacking.MOST_MEMBERS
    with pytest.raises(TooLarge, match="members"):
        unpacked(member * (unpacking.MOST_MEMBERS + 1), GZIP)


@pytest.mark.parametrize("compression", [GZIP, LZ4, ZSTD])
def test_decompression_is_bounded(compression: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "MOST", 1 << 20)
    chunks = unpack(packed(bytes(3 << 20), compression), compression)
    assert chunks is not None
    got = 0
    with pytest.raises(TooLarge):
        for chunk in chunks:
            got += len(chunk)
    assert got <= 1 << 20


def test_snappy_block_that_claims_gigabytes_takes_no_memory() -> None:
    claims = b"\xff\xff\xff\xff\x0f" + packed(b"small", SNAPPY)[1:]
    with pytest.raises(ValueError, match="too small for the size"):
        unpacked(claims, SNAPPY)


def test_unknown_compression_returns_none() -> None:
    assert unpack(b"x", 7) is None


@given(st.binary(min_size=1, max_size=200), st.sampled_from([GZIP, SNAPPY, LZ4, ZSTD]))
def test_random_bytes_raise_only_expected_errors(noise: bytes, compression: int) -> None:
    for data in (noise, b"\x82SNAPPY\0" + noise, packed(b"some data " * 20, compression)[: len(noise)] + noise):
        try:
            unpacked(data, compression)
        except (ValueError, TooLarge):
            continue


#: Bytes behind the compressed data: what Kafka's consumers read, or None if one of them fails.
BEHIND = {
    "a second gzip member": (GZIP, b"", packed(b"more", GZIP), b"firstmore"),
    "bytes behind gzip": (GZIP, b"", b"garbage", b"first"),
    "a second zstd frame": (ZSTD, b"", packed(b"more", ZSTD), b"firstmore"),
    "bytes behind zstd": (ZSTD, b"", b"garbage", None),
    "a second LZ4 frame": (LZ4, b"", packed(b"more", LZ4), None),
    "bytes behind LZ4": (LZ4, b"", b"garbage", None),
    "bytes before gzip": (GZIP, b"x", b"", None),
    "bytes before LZ4": (LZ4, b"x", b"", None),
    "bytes before zstd": (ZSTD, b"x", b"", None),
}


@pytest.mark.parametrize("case", BEHIND)
def test_trailing_bytes_are_handled_as_by_consumers(case: str) -> None:
    compression, before, behind, expected = BEHIND[case]
    data = before + packed(b"first", compression) + behind
    if expected is not None:
        assert unpacked(data, compression) == expected
        return
    with pytest.raises(CannotUnpack):
        unpacked(data, compression)


@pytest.mark.parametrize("compression", [GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("cut", [1, 5, 12])
def test_truncated_data_is_detected(compression: int, cut: int) -> None:
    data = packed(bytes(range(256)) * 40, compression)
    with pytest.raises(CannotUnpack):
        unpacked(data[:-cut], compression)


def test_no_consumer_is_given_a_zlib_stream_for_gzip() -> None:
    with pytest.raises(CannotUnpack):
        unpacked(zlib.compress(b"data"), GZIP)


def test_linked_lz4_blocks_are_rejected_as_by_java() -> None:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(b"data")
    with pytest.raises(CannotUnpack, match="linked"):
        unpacked(bytes(sink.getvalue()), LZ4)
