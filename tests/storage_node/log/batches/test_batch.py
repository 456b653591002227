"""The bytes of record batches: golden ones, those of other implementations, and damaged ones."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from storage_node.errors import CorruptRecord
from storage_node.log.batches.batch import HEADER_SIZE, BatchHeader, build_batch, headers, parse, verify
from storage_node.log.batches.records import first_at_or_after
from storage_node.wire.primitives import varint

GOLDEN = bytes.fromhex(
    "0000000000000000"  # base offset
    "00000042"  # length of what follows
    "ffffffff"  # partition leader epoch
    "02"  # magic
    "fede729c"  # CRC-32C of what follows
    "0000"  # attributes
    "00000001"  # last offset delta
    "0000018bcfe56800"  # base timestamp
    "0000018bcfe56801"  # max timestamp
    "0000000000000005"  # producer id
    "0001"  # producer epoch
    "00000009"  # base sequence
    "00000002"  # records
    "0e0000000102610010000202026b026200"
)
"""As built by another implementation (kafka-python)."""


def test_golden_bytes() -> None:
    made = build_batch(
        [b"a", b"b"], keys=[None, b"k"], timestamp=1_700_000_000_000, producer_id=5, producer_epoch=1, base_sequence=9
    )
    assert made == GOLDEN
    ((position, header),) = headers(GOLDEN)
    verify(GOLDEN, position, header)
    assert header == BatchHeader(0, 78, -1, 2, 0xFEDE729C, 0, 1, 1_700_000_000_000, 1_700_000_000_001, 5, 1, 9, 2)
    assert (header.last_offset, header.next_offset, header.is_control, header.is_transactional) == (1, 2, False, False)


def test_offset_and_leader_epoch_are_outside_the_crc() -> None:
    moved = build_batch([b"a"], base_offset=77, leader_epoch=4)
    still = build_batch([b"a"])
    assert moved[17:] == still[17:]
    assert parse(moved)[:3] == (77, len(moved), 4)


def kafka_python(compression: int, count: int = 20) -> bytes:
    builder = DefaultRecordBatchBuilder(2, compression, False, -1, -1, -1, 1 << 20)
    for number in range(count):
        builder.append(number, 5_000 + 100 * number, b"key", b"value" * 10, [])
    return bytes(builder.build())


@pytest.mark.parametrize("compression", [0, 1])
def test_batches_of_another_client_are_understood(compression: int) -> None:
    data = kafka_python(compression)
    ((position, header),) = headers(data)
    verify(data, position, header)
    assert (header.count, header.compression, header.max_timestamp) == (20, compression, 6_900)
    for number in range(20):
        assert first_at_or_after(data, header, 0, number) == (number, 5_000 + 100 * number)
    assert first_at_or_after(data, header, 5_201, 0) == (3, 5_300)
    assert first_at_or_after(data, header, 5_201, 7) == (7, 5_700)
    assert first_at_or_after(data, header, 6_901, 0) is None


def test_our_batches_are_understood_by_another_client() -> None:
    data = build_batch([b"one", None, b"three"], keys=[b"a", None, None], base_offset=40, timestamps=[10, 7, 30])
    theirs = DefaultRecordBatch(data)
    assert theirs.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value) for r in theirs] == [
        (40, 10, b"a", b"one"), (41, 7, None, None), (42, 30, None, b"three"),
    ]  # fmt: skip


def test_unknown_compression_returns_the_base_offset() -> None:
    header = parse(build_batch([b"x"] * 5, base_offset=10, timestamp=100, attributes=5))
    data = build_batch([b"x"] * 5, base_offset=10, timestamp=100, attributes=5)
    assert first_at_or_after(data, header, 102, 0) == (10, 104)
    assert first_at_or_after(data, header, 90, 12) == (12, 100)


def test_oversized_batch_is_not_decompressed_at_once() -> None:
    batch = build_batch([b"x"] * 3, base_offset=10, timestamp=100)
    first = b"\0\0\0\x01" + varint(2 * (150 << 20)) + bytes((150 << 20) + 1)
    data = batch[:HEADER_SIZE] + gzip.compress(varint(2 * len(first)) + first + batch[HEADER_SIZE:], 1)
    header = parse(data)._replace(length=len(data), attributes=1)
    del first
    tracemalloc.start()
    try:
        assert first_at_or_after(data, header, 101, 0) == (10, 102), "the batch's own times"
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def test_append_time_is_every_records_time() -> None:
    data = build_batch([b"x"] * 3, timestamp=100, attributes=8)
    assert [first_at_or_after(data, parse(data), 0, offset) for offset in range(3)] == [(0, 102), (1, 102), (2, 102)]


def test_many_batches_are_walked_in_order() -> None:
    data = b"".join(build_batch([b"x"] * n, base_offset=10 * n) for n in range(1, 6))
    found = list(headers(data))
    assert [h.base_offset for _, h in found] == [10, 20, 30, 40, 50]
    assert found == list(headers(memoryview(data))) == list(headers(bytearray(data)))
    second = found[1][0]
    assert [h.base_offset for _, h in headers(data, second)] == [20, 30, 40, 50]


@pytest.mark.parametrize("cut", [1, 11, 12, 60, 61, 70])
def test_partial_batch_is_rejected(cut: int) -> None:
    data = build_batch([b"value" * 10])
    with pytest.raises(CorruptRecord):
        list(headers(data[:cut]))


@pytest.mark.parametrize(
    ("position", "value"),
    [(8, b"\x7f\xff\xff\xff"), (8, b"\xff\xff\xff\xff"), (8, b"\0\0\0\0"), (8, b"\0\0\0\x30"), (16, b"\1"), (16, b"\0"),
     (23, b"\xff\xff\xff\xff"), (57, b"\x80\0\0\0")],
)  # fmt: skip
def test_invalid_header_is_rejected(position: int, value: bytes) -> None:
    data = bytearray(build_batch([b"value"] * 3))
    data[position : position + len(value)] = value
    with pytest.raises(CorruptRecord):
        list(headers(data))


def test_every_flipped_bit_under_the_crc_is_detected() -> None:
    good = build_batch([b"value"] * 3)
    for position in range(17, len(good)):
        bad = bytearray(good)
        bad[position] ^= 0x10
        try:
            for at, header in headers(bad):
                verify(bad, at, header)
        except CorruptRecord:
            continue
        raise AssertionError(position)


@pytest.mark.parametrize("body", [b"", b"\xff" * 30, b"\0" * 10, b"\x02"])
def test_invalid_records_are_rejected(body: bytes) -> None:
    data = bytearray(build_batch([b"v"] * 4))
    data[HEADER_SIZE:] = body
    header = parse(data)._replace(length=len(data))
    with pytest.raises(CorruptRecord):
        first_at_or_after(data, header, 1 << 60, 0)


def test_damaged_gzip_is_rejected() -> None:
    data = bytearray(kafka_python(1))
    data[HEADER_SIZE:] = b"no gzip at all"
    with pytest.raises(CorruptRecord):
        first_at_or_after(data, parse(data)._replace(length=len(data)), 1 << 60, 0)
