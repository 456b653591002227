"""The offset index and the time index: their files' bytes and their lookups."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage_node.log.index import OffsetIndex, TimeIndex


def test_golden_bytes_of_the_offset_index() -> None:
    index = OffsetIndex()
    index.append(17, 4_100)
    index.append(0x01020304, 0x7FFFFFFF)
    assert index.encode() == bytes.fromhex("00000011 00001004 01020304 7fffffff")
    assert OffsetIndex(index.encode()).last() == (0x01020304, 0x7FFFFFFF)


def test_golden_bytes_of_the_time_index() -> None:
    times = TimeIndex()
    assert times.maybe_append(1_700_000_000_000, 17)
    assert not times.maybe_append(1_700_000_000_000, 18)
    assert times.maybe_append(1_700_000_000_001, 0x01020304)
    assert times.encode() == bytes.fromhex("0000018bcfe56800 00000011 0000018bcfe56801 01020304")
    assert TimeIndex(times.encode()).last() == (1_700_000_000_001, 0x01020304)


ENTRIES = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5_000)), max_size=40)


def built(steps: list[tuple[int, int]]) -> tuple[OffsetIndex, list[tuple[int, int]]]:
    index, entries = OffsetIndex(), list[tuple[int, int]]()
    offset = position = 0
    for more, further in steps:
        offset, position = offset + more, position + further
        index.append(offset, position)
        entries.append((offset, position))
    return index, entries


@given(ENTRIES, st.integers(0, 2_100), st.integers(0, 250_000))
def test_lookups_find_the_last_entry_not_beyond(steps: list[tuple[int, int]], offset: int, position: int) -> None:
    index, entries = built(steps)
    assert index.lookup(offset) == max((p for o, p in entries if o <= offset), default=0)
    assert index.floor_position(position) == max((p for _, p in entries if p <= position), default=0)
    assert OffsetIndex(index.encode()).encode() == index.encode()
    assert index.sane(250_001)


@given(ENTRIES, st.integers(0, 2_100))
def test_truncating_keeps_what_is_before(steps: list[tuple[int, int]], offset: int) -> None:
    index, entries = built(steps)
    index.written = len(entries)
    index.truncate(offset)
    kept = [e for e in entries if e[0] < offset]
    assert (len(index), index.written) == (len(kept), len(kept))
    assert index.last() == (kept[-1] if kept else (0, 0))


@given(ENTRIES, st.integers(-1, 250_000))
def test_time_index_lookup_returns_an_offset_before_which_all_is_older(
    steps: list[tuple[int, int]], timestamp: int
) -> None:
    _, entries = built(steps)
    times = TimeIndex()
    for relative, at in entries:
        times.maybe_append(at, relative)
    assert times.lookup(timestamp) == max((o for o, at in entries if at < timestamp), default=0)


def test_sane_is_false_for_invalid_indexes() -> None:
    assert not OffsetIndex(bytes(80)).sane(1_000), "zeros, as a preallocated file has them"
    assert not OffsetIndex(bytes.fromhex("00000011 00001004")).sane(0x1004), "beyond the end of the .log"
    assert not OffsetIndex(bytes.fromhex("00000011 00001004 00000010 00002004")).sane(1 << 20), "falling offsets"
    assert not TimeIndex(bytes(120)).sane()
    assert OffsetIndex().sane(0) and TimeIndex().sane()
