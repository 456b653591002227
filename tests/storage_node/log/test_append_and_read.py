"""Appends and reads of a log: offsets, segments, bounds, timestamps, and rejections."""

from __future__ import annotations

import struct
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node.errors import CorruptRecord, OffsetOutOfRange, RequestRefused
from storage_node.log import Appended, Log, LogClosed, LogConfig, UnexpectedAppendOffset, build_batch, headers, verify
from storage_node.log.batches.batch import checksum
from storage_node.model.error_codes import ErrorCode
from tests.support.batches import CODECS, Batch, packed, records_of

from .logs import SMALL, all_batches, batch, batches_in, files, fill, open_log, read_all


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return open_log(tmp_path / "topic-0")


# Appending


def test_append_as_leader_assigns_offset_and_epoch_only(log: Log) -> None:
    data = batch(3, timestamp=5_000)
    assert log.append_as_leader(data, 4) == Appended(0, 2)
    assert log.append_as_leader(memoryview(data), 4) == Appended(3, 5)
    stored = (log.path / f"{0:020d}.log").read_bytes()
    assert len(stored) == 2 * len(data)
    second = stored[len(data) :]
    assert second[17:] == data[17:]
    found = batches_in(stored)
    assert [(h.base_offset, h.leader_epoch) for h in found] == [(0, 4), (3, 4)]
    for position, header in headers(stored):
        verify(stored, position, header)


def test_many_batches_in_one_append(log: Log) -> None:
    copied = b"".join(batch(n, base_offset=n * (n - 1) // 2) for n in range(1, 30))
    assert log.append_copied(copied) == Appended(0, 434)
    assert len(log.segments) > 1
    expected = 0
    for header in all_batches(log):
        assert header.base_offset == expected
        expected = header.next_offset
    assert expected == log.log_end_offset == 435


def test_append_time_is_stamped_by_the_broker(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", replace(SMALL, message_timestamp_type="LogAppendTime"))
    assert log.append_as_leader(batch(2, timestamp=5), 0, now_ms=99_000) == Appended(0, 1, log_append_time=99_000)
    data = read_all(log)
    ((position, header),) = headers(data)
    verify(data, position, header)
    assert header.is_log_append_time and header.max_timestamp == 99_000
    assert log.offset_for_timestamp(6) == (0, 99_000)


def refused_code(log: Log, data: bytes) -> ErrorCode:
    with pytest.raises(RequestRefused) as refused:
        log.append_as_leader(data, 0)
    assert log.log_end_offset == log.size == 0
    return refused.value.code


def test_append_as_leader_rejects_invalid_batches(log: Log) -> None:
    good = batch(3)
    broken = bytearray(good)
    broken[-1] ^= 1
    assert refused_code(log, bytes(broken)) is ErrorCode.CORRUPT_MESSAGE
    assert refused_code(log, good + good) is ErrorCode.INVALID_RECORD
    assert refused_code(log, good + b"\x7f" * 100) is ErrorCode.CORRUPT_MESSAGE
    assert refused_code(log, good[:-1]) is ErrorCode.INVALID_RECORD
    assert refused_code(log, b"") is ErrorCode.INVALID_RECORD
    assert refused_code(log, bytes(200)) is ErrorCode.CORRUPT_MESSAGE
    assert refused_code(log, batch(1, 2_000_000)) is ErrorCode.MESSAGE_TOO_LARGE
    assert refused_code(log, batch(1, attributes=0x20)) is ErrorCode.INVALID_RECORD
    assert refused_code(log, batch(1, attributes=0x10)) is ErrorCode.INVALID_RECORD
    assert refused_code(log, batch(1, producer_id=4)) is ErrorCode.INVALID_RECORD
    assert refused_code(log, batch(0)) is ErrorCode.INVALID_RECORD


def claiming(data: bytes, count: int) -> bytes:
    """Return the batch with another record count in its header, and a matching CRC."""
    changed = bytearray(data)
    struct.pack_into(">i", changed, 23, count - 1)
    struct.pack_into(">i", changed, 57, count)
    struct.pack_into(">I", changed, 17, checksum(changed[21:]))
    return bytes(changed)


@pytest.mark.parametrize("size", [0, 10, 62, 70, 5_000, 9_000])
def test_batch_with_wrong_record_count_is_rejected(log: Log, size: int) -> None:
    true = batch(70, size)
    for count in (1, 69, 71, 100, 2**20):
        assert refused_code(log, claiming(true, count)) is ErrorCode.INVALID_RECORD
    # The first record's length: one of the other sign, and one that reaches beyond the batch.
    for first in (true[61] ^ 1, 0xFF):
        assert refused_code(log, claiming(true[:61] + bytes((first,)) + true[62:], 70)) is ErrorCode.INVALID_RECORD
    assert log.append_as_leader(true, 0).last_offset == 69


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_compressed_batch_with_wrong_record_count_is_rejected(log: Log, codec: int) -> None:
    payload = packed(records_of(70), codec)
    for count in (1, 69, 71, 2**20):
        assert refused_code(log, Batch(payload, count, attributes=codec).encode()) is ErrorCode.INVALID_RECORD
    assert refused_code(log, Batch(payload, 2**31 - 1, attributes=codec).encode()) is ErrorCode.MESSAGE_TOO_LARGE
    assert log.append_as_leader(Batch(payload, 70, attributes=codec).encode(), 0).last_offset == 69


def test_copy_keeps_offsets_epochs_and_bytes(log: Log, tmp_path: Path) -> None:
    fill(log, 30, epoch=2)
    log.assign_leader_epoch(5)
    fill(log, 30, epoch=5)
    copy = open_log(tmp_path / "copy-0")
    data = read_all(log)
    assert copy.append_copied(data) == Appended(0, 179)
    assert read_all(copy) == data
    assert copy.leader_epochs == log.leader_epochs
    assert files(copy.path, ".log") == files(log.path, ".log")
    assert copy.append_copied(b"") == Appended(180, 179)


def test_append_copied_rejects_batches_that_do_not_follow(log: Log) -> None:
    log.append_copied(batch(5))
    with pytest.raises(UnexpectedAppendOffset):
        log.append_copied(batch(5, base_offset=4))
    with pytest.raises(UnexpectedAppendOffset):
        log.append_copied(batch(5, base_offset=5) + batch(1, base_offset=9))
    with pytest.raises(CorruptRecord):
        log.append_copied(batch(5, base_offset=5)[:-1] + b"!")
    assert log.log_end_offset == 5
    assert log.append_copied(batch(2, base_offset=20)) == Appended(20, 21), "a gap is allowed at the end"
    assert [log.read(offset, 1).base_offset for offset in (0, 4, 5, 12, 20, 21)] == [0, 0, 20, 20, 20, 20]


def test_copy_may_begin_inside_a_batch(tmp_path: Path) -> None:
    copy = open_log(tmp_path / "copy-0", log_start_offset=7)
    copy.append_copied(batch(5, base_offset=5))
    assert (copy.log_start_offset, copy.log_end_offset, copy.segments[0].base_offset) == (7, 10, 5)
    assert copy.read(7, 1_000).base_offset == 5
    with pytest.raises(OffsetOutOfRange):
        copy.read(6, 1_000)
    copy.close(True)
    copy = open_log(tmp_path / "copy-0", log_start_offset=7, clean=True)
    assert (copy.log_start_offset, copy.log_end_offset) == (7, 10)


def test_batch_larger_than_a_segment_gets_one_of_its_own(log: Log) -> None:
    fill(log, 2)
    log.append_as_leader(batch(1, 10_000), 0)
    fill(log, 2)
    assert [s.base_offset for s in log.segments] == [0, 6, 7]


def test_segments_roll_by_time_of_the_records(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", replace(SMALL, segment_ms=1_000))
    for timestamp in (10_000, 10_900, 11_000, 11_001, 11_500, 20_000):
        log.append_as_leader(batch(1, timestamp=timestamp), 0, now_ms=0)
    assert [s.base_offset for s in log.segments] == [0, 3, 5]
    untimed = open_log(tmp_path / "other-0", replace(SMALL, segment_ms=1_000), now_ms=0)
    for now in (500, 1_000, 1_001):
        untimed.append_as_leader(batch(1, timestamp=-1), 0, now_ms=now)
    assert [s.base_offset for s in untimed.segments] == [0, 2]


def test_segments_roll_before_offsets_or_indexes_overflow(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", replace(SMALL, segment_bytes=1 << 30))
    log.append_copied(batch(1))
    log.append_copied(batch(1, base_offset=2**31 - 1))
    log.append_copied(batch(1, base_offset=2**31))
    assert [s.base_offset for s in log.segments] == [0, 2**31]
    assert log.read(2**31, 100).base_offset == 2**31
    full = open_log(tmp_path / "full-0", LogConfig(index_interval_bytes=0, segment_index_bytes=40))
    fill(full, 20)
    assert [s.base_offset for s in full.segments] == [0, 9, 18, 27, 36, 45, 54]


# Reading


def test_every_offset_with_every_size(log: Log) -> None:
    for number in range(40):
        log.append_as_leader(batch(1 + number % 4, 5 * number, timestamp=number), 0)
    known = all_batches(log)
    for offset in range(log.log_end_offset):
        index = next(i for i, h in enumerate(known) if h.last_offset >= offset)
        for max_bytes in (0, 1, 100, 300, 900, 1 << 20):
            found = log.read(offset, max_bytes)
            got = batches_in(found.data)
            assert got == known[index : index + len(got)]
            assert (found.base_offset, found.next_offset) == (got[0].base_offset, got[-1].next_offset)
            assert len(found.data) <= max_bytes or len(got) == 1
            following = known[index + len(got)] if index + len(got) < len(known) else None
            in_segment = following is not None and all(s.base_offset != following.base_offset for s in log.segments)
            if following is not None and in_segment:
                assert len(found.data) + following.length > max_bytes, "as much as fits"


def test_bounds(log: Log) -> None:
    fill(log, 40)
    assert log.read(120, 1_000) == log.read(120, 0)
    assert (log.read(120, 1_000).data, log.read(120, 1_000).next_offset) == (b"", 120)
    for outside in (-1, 121):
        with pytest.raises(OffsetOutOfRange) as refused:
            log.read(outside, 1_000)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    first = all_batches(log)[0]
    assert log.read(0, first.length - 1, min_one=False).data == b""
    assert len(log.read(0, first.length, min_one=False).data) == first.length


def test_only_batches_below_the_high_watermark(log: Log) -> None:
    fill(log, 40)
    known = all_batches(log)
    for upto in range(121):
        offset, got = 0, []
        while (found := log.read(offset, 1 << 20, upto=upto)).data:
            got += batches_in(found.data)
            offset = found.next_offset
        assert got == [h for h in known if h.next_offset <= upto]
    assert log.read(0, 1 << 20, upto=10**9).data


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 900), st.integers(0, 5)), min_size=1, max_size=40),
    interval=st.integers(0, 2_000),
    max_bytes=st.integers(0, 3_000),
)
def test_consecutive_reads_return_the_appended_batches(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int, int]], interval: int, max_bytes: int
) -> None:
    log = open_log(tmp_path_factory.mktemp("log") / "t-0", replace(SMALL, index_interval_bytes=interval))
    offset, expected = 0, b""
    for count, size, gap in sizes:
        made = batch(count, size, base_offset=offset + gap)
        log.append_copied(made)
        expected += made
        offset += gap + count
    assert read_all(log, max_bytes=max_bytes) == expected
    for start in range(log.log_end_offset):
        found = batches_in(log.read(start, max_bytes).data)
        assert found[0] == next(h for h in batches_in(expected) if h.last_offset >= start)
    log.close(False)


def test_readers_beside_a_writer_see_whole_batches_in_order(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", replace(SMALL, segment_bytes=4_000))
    wrong: list[str] = []
    done = threading.Event()

    def consume() -> None:
        offset = 0
        while not (done.is_set() and offset == log.log_end_offset):
            end = log.log_end_offset
            found = log.read(offset, 5_000)
            if offset < end and not found.data:
                wrong.append(f"nothing at {offset} although the log ends at {end}")
                return
            for header in batches_in(found.data):
                if header.base_offset != offset:
                    wrong.append(f"{header.base_offset} instead of {offset}")
                    return
                offset = header.next_offset
            if found.next_offset != offset:
                wrong.append(f"next_offset is {found.next_offset}, expected {offset}")
                return

    readers = [threading.Thread(target=consume) for _ in range(3)]
    for reader in readers:
        reader.start()
    fill(log, 500)
    done.set()
    for reader in readers:
        reader.join(30)
    assert not wrong and len(log.segments) > 10


# Timestamps


def test_first_record_not_older_is_found_exactly(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    times = [[100, 103, 101], [110, 105], [90, 95], [200], [150, 220, 210], *[[300 + 7 * n] * 3 for n in range(60)]]
    rows: list[tuple[int, int]] = []
    for group in times:
        log.append_as_leader(build_batch([b"v" * 20] * len(group), timestamps=group), 0, now_ms=0)
        rows += [(len(rows) + i, t) for i, t in enumerate(group)]
    assert len(log.segments) > 3
    for target in range(80, 730):
        assert log.offset_for_timestamp(target) == next((row for row in rows if row[1] >= target), None), target
    log.advance_log_start(5)
    assert log.offset_for_timestamp(0) == (5, 90)
    assert log.max_timestamp() == (rows[-3][0], 713)


def test_empty_log_has_no_timestamps(log: Log) -> None:
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp() == (-1, -1)


def test_timestamps_after_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    fill(log, 50)
    log.close(True)
    log = open_log(tmp_path / "topic-0", clean=True)
    assert log.max_timestamp() == (149, 1_492)
    assert [log.offset_for_timestamp(t) for t in (1_000, 1_011, 1_492, 1_493)] == [
        (0, 1_000), (4, 1_011), (149, 1_492), None,
    ]  # fmt: skip


def test_closed_log_raises_log_closed(log: Log) -> None:
    fill(log, 1)
    log.close(False)
    for call in (
        lambda: log.append_as_leader(batch(1), 0), lambda: log.append_copied(batch(1, base_offset=3)),
        lambda: log.read(0, 1), log.flush, log.roll, lambda: log.truncate_to(0), lambda: log.truncate_fully(0),
    ):  # fmt: skip
        with pytest.raises(LogClosed) as refused:
            call()
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert log.delete_old_segments(10**15) == log.purge_deleted(10**15) == 0
    log.close(True)
