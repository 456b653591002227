"""Records of one layout are checked all at once, with the same outcome as when each is read by itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storage_node.log.batches import record_columns as rc
from storage_node.log.batches.batch import HEADER_SIZE, BatchHeader, Buffer
from storage_node.log.batches.record_runs import (
    _FAR,
    _NUMBERS,
    _REACHES,
    _TAKES,
    LEAST_RUN,
    NEAR,
    Run,
    run_of,
    stretch_of,
)
from storage_node.log.batches.records import Seen, look_through
from storage_node.log.batches.unpacking import TooLarge
from tests.support.batches import body_of, record_of, zigzag

NOW = 1_700_000_000_000
Headers = Sequence[tuple[bytes, bytes | None]]


def one_by_one(data: bytes, count: int) -> Seen | str:
    """Return the fields of the records, each read by itself as the protocol defines it."""
    position, offsets, times = 0, [], []
    try:
        for _ in range(count):
            position, time, offset, _headers = rc._one(data, position)
            offsets.append(offset)
            times.append(NOW + time)
        if position != len(data):
            return "refused"
    except (IndexError, ValueError):
        return "refused"
    except TooLarge:
        return "too large"
    if not all(-1 < time < 1 << 63 for time in times):
        return "untimely"
    return Seen(min(times), max(times), offsets == list(range(count)))


def looked_through(data: Buffer, count: int) -> Seen | str | None:
    header = BatchHeader(0, HEADER_SIZE + len(data), 0, 2, 0, 0, count - 1, NOW, NOW, -1, -1, -1, count)
    try:
        return look_through(bytes(HEADER_SIZE) + data, header)
    except ValueError:
        return "refused"
    except TooLarge:
        return "too large"


def agree(data: bytes, count: int) -> None:
    expected = one_by_one(data, count)
    found = looked_through(data, count)
    if expected == "untimely":
        assert isinstance(found, Seen)
        return
    assert found == expected


@st.composite
def batches(draw: st.DrawFn) -> tuple[bytes, int]:
    """Return up to some hundred records in stretches of one layout each."""
    records: list[bytes] = []
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.sampled_from([1, 5, LEAST_RUN - 1, LEAST_RUN, 40, 64, 130]))
        mixed = draw(st.sampled_from([0, 7]))
        key = draw(st.none() | st.binary(max_size=3))
        value = draw(st.none() | st.binary(max_size=3) | st.sampled_from([bytes(63), bytes(64), bytes(200)]))
        headers: Headers = draw(
            st.lists(st.tuples(st.binary(max_size=2), st.none() | st.binary(max_size=2)), max_size=2)
        )
        time, step = (
            draw(st.sampled_from([0, -1, 30, 63, -64, 8_000, 2**31, -(2**40)])),
            draw(st.sampled_from([0, 1, -3])),
        )
        first = len(records) + draw(st.sampled_from([0, 0, 0, 0, 1, -1]))
        for number in range(count):
            more = bytes(number * mixed % 150)
            body = body_of(
                first + number,
                timestamp=time + step * number,
                key=key if key is None else key + more,
                value=value if value is None else value + more,
                headers=headers,
            )
            records.append(record_of(body))
    return b"".join(records), len(records)


@given(batches())
@example((b"".join(record_of(body_of(n)) for n in range(9_000)), 9_000))
def test_valid_records_read_the_same(batch: tuple[bytes, int]) -> None:
    data, count = batch
    agree(data, count)
    agree(data, count + 1)
    if count > 1:
        agree(data, count - 1)


@given(batches(), st.data())
def test_damaged_records_read_the_same(batch: tuple[bytes, int], data: st.DataObject) -> None:
    records, count = bytearray(batch[0]), batch[1]
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(records) - 1))
        records[place] = data.draw(st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0x81, 0xFF]) | st.integers(0, 255))
    agree(bytes(records), count)
    agree(bytes(records[: data.draw(st.integers(0, len(records)))]), count)


@given(batches(), st.sampled_from([29, 150, 1_000]), st.integers(-3, 3))
def test_records_that_come_in_chunks_read_the_same(batch: tuple[bytes, int], size: int, behind: int) -> None:
    data, count = batch[0] + b"x" * max(behind, 0), batch[1]
    data = data[: len(data) + min(behind, 0)]
    low, high, seen = 1 << 63, -1 << 63, 0
    try:
        for part in rc.runs_and_columns((data[at : at + size] for at in range(0, len(data), size)), count, packed=True):
            if isinstance(part, Run):
                low, high, seen = min(low, part.low), max(high, part.high), seen + part.count
            else:
                low, high, seen = min(low, *part[1]), max(high, *part[1]), seen + len(part[0])
    except ValueError:
        assert behind
        return
    expected = one_by_one(data, count)
    assert not behind and seen == count
    if isinstance(expected, Seen):
        assert (NOW + low, NOW + high) == (expected.oldest, expected.newest)


@given(st.binary(min_size=6, max_size=14), st.integers(1, 200), st.binary(max_size=4))
def test_bytes_that_repeat_read_the_same(unit: bytes, count: int, behind: bytes) -> None:
    agree(unit * count + behind, count)
    agree(zigzag(len(unit)) + (unit + zigzag(len(unit))) * count, count)


@pytest.mark.parametrize("count", [LEAST_RUN, 64, 100, 8_192])
@pytest.mark.parametrize("wrap", [bytes, memoryview])
def test_records_of_one_layout_are_one_run(count: int, wrap: type[bytes] | type[memoryview]) -> None:
    data = b"".join(record_of(body_of(n, timestamp=-7, key=b"k", headers=[(b"h", None)])) for n in range(count))
    parts = list(rc.runs_and_columns(iter((wrap(data),)), count, packed=False))
    assert all(isinstance(part, Run) for part in parts) and len(parts) == (1 if count <= 64 else 2)
    assert sum(part.count for part in parts if isinstance(part, Run)) == count


@pytest.mark.parametrize("times", [(0, 0), (-64, 63), (64, 8191), (-8192, -65), (2**20, 2**27 - 1), (2**30, 2**31)])
def test_run_has_its_smallest_and_largest_timestamp(times: tuple[int, int]) -> None:
    data = b"".join(record_of(body_of(n, timestamp=times[n == 20])) for n in range(64))
    run = run_of(data, 0, 0, 64)
    assert run == (64, len(data), *times, 0)
    assert all(abs(time) < NEAR for time in times)


def test_record_with_one_bit_of_a_length_changed_is_in_no_run() -> None:
    record = [
        record_of(body_of(n, timestamp=100, key=b"k", value=b"v" * 70, headers=[(b"h", b"x")])) for n in range(40)
    ]
    data, size = b"".join(record), len(record[0])
    free = {2, 7, *range(10, 80), 82, 84}
    for place in range(size):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[20 * size + place] ^= 1 << bit
            run = run_of(bytes(damaged), 0, 0, 40)
            if place == 5:
                assert run is None, "an offset delta out of order"
                continue
            assert run is not None
            kept = place in free or (place in (3, 4) and bit < 7)
            assert run.count == (40 if kept else 20), (place, bit)
            agree(bytes(damaged), 40)


@pytest.mark.parametrize("wrap", [bytes, memoryview])
def test_records_of_any_sizes_are_one_stretch(wrap: type[bytes] | type[memoryview]) -> None:
    rows = [
        body_of(
            n, timestamp=(n * 77) % 900 - 400, key=bytes(n % 90) or None, value=bytes(n * 7 % 400) if n % 3 else None
        )
        for n in range(300)
    ]
    data = b"".join(map(record_of, rows))
    run = stretch_of(wrap(data), 0, 0, 300)
    assert run == (300, len(data), -400, 499, 0)
    assert (cut := stretch_of(wrap(data[:-1]), 0, 0, 300)) is not None and cut.count == 299
    for place, other in enumerate(rows[::30]):
        for wrong in (other[:-1] + b"\2", other[:-1], other + b"\0", b"", other[:3]):
            damaged = [*rows[: 30 * place], wrong, *rows[30 * place + 1 :]]
            assert stretch_of(wrap(b"".join(map(record_of, damaged))), 0, 0, 300) is None


def test_numbers_of_two_bytes_are_in_the_tables() -> None:
    for value in range(-8192, 8192):
        number = zigzag(value)
        word = int.from_bytes((number + b"\xff")[:2], "little")
        assert (_NUMBERS[word], _TAKES[word]) == (value, len(number))
        assert _REACHES[word] == (len(number) + max(value, 0) if value >= -1 else _FAR)
    assert _TAKES[0xFFFF] == _FAR <= _REACHES[0x8080]
