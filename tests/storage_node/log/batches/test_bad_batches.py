"""What a leader rejects, accepts and corrects: the same table that is sent to Apache Kafka's brokers."""

from __future__ import annotations

import struct
import time
from dataclasses import replace
from pathlib import Path

import pytest

from storage_node.errors import RequestRefused
from storage_node.log import Log, LogConfig, verify
from storage_node.log.batches import record_columns as rc
from storage_node.log.batches.batch import parse
from storage_node.log.batches.records import first_at_or_after
from storage_node.log.context import wall_ms
from storage_node.model.error_codes import ErrorCode
from tests.storage_node.log.logs import open_log, read_all
from tests.support.batches import (
    CODECS,
    GZIP,
    LOG_APPEND_TIME,
    REFUSED,
    REFUSED_HERE,
    SNAPPY,
    TAKEN,
    Batch,
    body_of,
    packed,
    record_of,
    records_of,
)

ALL = REFUSED | REFUSED_HERE


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return open_log(tmp_path / "topic-0", LogConfig(message_timestamp_after_max_ms=3_600_000))


def refused(log: Log, batch: Batch) -> int:
    with pytest.raises(RequestRefused) as caught:
        log.append_as_leader(batch.encode(), 0)
    assert caught.value.message and log.log_end_offset == log.size == 0
    return caught.value.code


@pytest.mark.parametrize("name", ALL)
def test_batch_unreadable_for_consumers_is_rejected(log: Log, name: str) -> None:
    batch, code = ALL[name]
    assert refused(log, batch) == code
    # Also as one record of many, which are read by other code.
    if name in REFUSED and not batch.attributes and batch.count == 1 and batch.payload != Batch().payload:
        before = records_of(100)
        many = replace(batch, payload=before + batch.payload, count=101)
        assert refused(log, many) == code


@pytest.mark.parametrize("name", TAKEN)
def test_readable_batch_is_accepted_with_its_max_timestamp(log: Log, name: str) -> None:
    batch, after = TAKEN[name]
    log.append_as_leader(batch.encode(), 0)
    assert log.log_end_offset == batch.count
    data = read_all(log, max_bytes=10 << 20)
    header = parse(data)
    verify(data, 0, header)
    assert header.max_timestamp - header.base_timestamp == after
    assert not header.is_log_append_time and header.count == batch.count


def test_producer_does_not_set_the_append_time(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", LogConfig(message_timestamp_type="LogAppendTime"))
    assert refused(log, Batch(attributes=LOG_APPEND_TIME)) == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("count", [1, 10, 64, 65, 300, 40_000])
@pytest.mark.parametrize("codec", [0, *CODECS.values()])
def test_records_of_any_sizes_are_found_by_their_times(log: Log, count: int, codec: int) -> None:
    now = wall_ms()
    sizes = [(number * 7919) % 300 if number % 5 else 9_000 * (number == 5) for number in range(count)]
    bodies = (
        body_of(
            number,
            timestamp=number * 3 if number != 20 else -70_000,
            key=b"k" * (number % 3) or None,
            value=b"v" * size if size != 7 else None,
            headers=[(b"h", b"x" * (number % 4))] * (number % 3),
        )
        for number, size in enumerate(sizes)
    )
    payload = b"".join(map(record_of, bodies))
    data = Batch(packed(payload, codec), count, attributes=codec, absolute=(now, now)).encode()
    log.config = replace(log.config, max_message_bytes=1 << 30)
    log.append_as_leader(data, 0)
    stored = read_all(log, max_bytes=1 << 30)
    header = parse(stored)
    assert header.max_timestamp == now + 3 * (count - 1 - (count == 21))
    for number in {0, count // 3, count - 1} - {20}:
        assert first_at_or_after(stored, header, now + 3 * number, 0) == (number, now + 3 * number)
        assert first_at_or_after(stored, header, 0, number) == (number, now + 3 * number)


def test_cost_of_validating_a_batch_is_bounded(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rc, "MOST_PACKED_RECORDS", 1_000)
    monkeypatch.setattr(rc, "MOST_HEADERS", 1_000)
    bomb = packed(bytes(200 << 20), GZIP)
    for batch in (
        Batch(packed(records_of(1_001), GZIP), 1_001, attributes=GZIP),
        Batch(record_of(body_of(headers=[(b"", None)] * 1_001))),
        Batch(b"".join(record_of(body_of(n, headers=[(b"", None)] * 11)) for n in range(100)), 100),
        Batch(packed(record_of(body_of(value=bytes(150 << 20))), GZIP), attributes=GZIP),
    ):
        assert refused(log, batch) == ErrorCode.MESSAGE_TOO_LARGE
    assert refused(log, Batch(bomb, attributes=GZIP)) == ErrorCode.INVALID_RECORD


def java_snappy_of_tiny_blocks(data: bytes) -> bytes:
    """Return a stream in snappy-java's format, with a block per byte."""
    blocks = (b"\x01\0" + bytes([byte]) for byte in data)
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", 3) + block for block in blocks)


def test_time_for_a_record_of_tiny_blocks_does_not_grow_with_the_square_of_its_size(log: Log) -> None:
    record = record_of(body_of(headers=[(b"", None)] * 8_000))
    data = Batch(java_snappy_of_tiny_blocks(record), attributes=SNAPPY).encode()
    begun = time.thread_time()
    log.append_as_leader(data, 0)
    assert time.thread_time() - begun < 0.5
    assert log.log_end_offset == 1
