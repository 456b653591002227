"""Batches as clients compress them are unpacked; what is damaged or too large is told apart."""

from __future__ import annotations

import gzip
import struct

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.log import unpacking
from storage_node.log.unpacking import GZIP, LZ4, NONE, SNAPPY, ZSTD, TooLarge, unpack

CODECS = {LZ4: "lz4", ZSTD: "zstd", SNAPPY: "snappy"}


def packed(data: bytes, compression: int) -> bytes:
    if compression == NONE:
        return data
    if compression == GZIP:
        return gzip.compress(data)
    return bytes(pyarrow.compress(data, codec=CODECS[compression], asbytes=True))


def java_snappy(*blocks: bytes) -> bytes:
    """Blocks of a stream as snappy-java writes it."""
    small = [packed(block, SNAPPY) for block in blocks]
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in small)


def unpacked(data: bytes, compression: int, step: int = 1) -> bytes:
    """Every so many-th byte until there is none."""
    source = unpack(data, compression)
    assert source is not None
    found, position = bytearray(), 0
    try:
        while True:
            found.append(source[position])
            position += step
    except IndexError:
        return bytes(found)


@given(st.binary(max_size=2000), st.sampled_from([NONE, GZIP, SNAPPY, LZ4, ZSTD]))
def test_what_was_packed_comes_out(data: bytes, compression: int) -> None:
    assert unpacked(packed(data, compression), compression) == data


@given(st.lists(st.binary(min_size=1, max_size=500), max_size=4))
def test_javas_stream_of_snappy_blocks(blocks: list[bytes]) -> None:
    assert unpacked(java_snappy(*blocks), SNAPPY) == b"".join(blocks)


@pytest.mark.parametrize("compression", [GZIP, SNAPPY, LZ4, ZSTD])
def test_more_than_one_chunk(compression: int) -> None:
    data = bytes(range(256)) * 1024
    assert unpacked(packed(data, compression), compression, 1021) == data[::1021]


@pytest.mark.parametrize("compression", [GZIP, LZ4, ZSTD])
def test_more_than_is_looked_into(compression: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "MOST", 1 << 20)
    source = unpack(packed(bytes(3 << 20), compression), compression)
    assert source is not None
    with pytest.raises(TooLarge):
        source[(2 << 20) + 70_000]


def test_a_snappy_block_that_claims_gigabytes_takes_no_memory() -> None:
    claims = b"\xff\xff\xff\xff\x0f" + packed(b"small", SNAPPY)[1:]
    with pytest.raises(ValueError, match="cannot hold"):
        unpacked(claims, SNAPPY)


def test_a_compression_that_nobody_knows() -> None:
    assert unpack(b"x", 7) is None


@given(st.binary(min_size=1, max_size=200), st.sampled_from([GZIP, SNAPPY, LZ4, ZSTD]))
def test_noise_is_never_more_than_refused(noise: bytes, compression: int) -> None:
    for data in (noise, b"\x82SNAPPY\0" + noise, packed(b"some data " * 20, compression)[: len(noise)] + noise):
        try:
            unpacked(data, compression)
        except (ValueError, TooLarge):
            continue
