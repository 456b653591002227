"""Batches are checked and indexed alike however the stream of bytes is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node.errors import CorruptRecord
from storage_node.log.batches.batch import NO_PRODUCER, build_batch, headers
from storage_node.log.blocks import Walked
from storage_node.log.index import IndexBuilder
from storage_node.log.producers.state import ProducerState
from storage_node.move.copying.walk import BatchWalk

INTERVAL = 300


def segment(sizes: list[int], base: int = 7) -> bytes:
    """Batches of one record each, some of two producers, timestamps that also go back, epochs that rise."""
    out, offset = [], base
    for number, size in enumerate(sizes):
        producer = (NO_PRODUCER, 11, 12)[size % 3]
        known = producer != NO_PRODUCER
        data = build_batch(
            [b"v" * size] * (1 + size % 2),
            base_offset=offset,
            timestamp=1_000 + (size * 7919) % 500,
            leader_epoch=number // 4,
            producer_id=producer,
            producer_epoch=0 if known else -1,
            base_sequence=number if known else -1,
        )
        out.append(data)
        offset += 1 + size % 2
    return b"".join(out)


def walk(**given: int) -> BatchWalk:
    values = {"position": 0, "base_offset": 7, "expected": 7, "interval": INTERVAL, "entry": 0, "epoch": -1, **given}
    return BatchWalk(largest=(-1, 7), **values)


def fed(data: bytes, cuts: list[int]) -> list[Walked]:
    going = walk()
    ends = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    return [going.feed(memoryview(data)[a:b]) for a, b in zip([0, *ends], ends, strict=False) if b > a]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 700), min_size=1, max_size=30), st.lists(st.integers(1, 20_000), max_size=40))
def test_what_is_found_does_not_depend_on_the_cuts(sizes: list[int], cuts: list[int]) -> None:
    data = segment(sizes)
    rows = list(headers(data))
    blocks = fed(data, cuts)
    builder, producers = IndexBuilder(7, INTERVAL), ProducerState()
    for position, header in rows:
        builder.add(position, header)
        producers.update(header, 0)
    index, times = IndexBuilder(7, INTERVAL).index, IndexBuilder(7, INTERVAL).times
    mine = ProducerState()
    for block in blocks:
        for position, last, timestamp, at in block.entries:
            index.append(last - 7, position)
            times.maybe_append(timestamp, at - 7)
        for recent in block.producers.values():
            for header in recent.headers:
                mine.update(header, 0)
    assert sum(block.count for block in blocks) == len(rows)
    assert (index.encode(), times.encode()) == (builder.index.encode(), builder.times.encode())
    assert blocks[-1].largest == builder.max
    assert blocks[-1].next_offset == rows[-1][1].next_offset
    assert max(block.end for block in blocks) == len(data)
    assert {pid: p.batches for pid, p in mine.producers.items()} == {
        pid: p.batches for pid, p in producers.producers.items()
    }
    starts = [(h.leader_epoch, h.base_offset) for (_, h), before in zip(rows, [None, *rows], strict=False)
              if before is None or before[1].leader_epoch != h.leader_epoch]  # fmt: skip
    assert [epoch for block in blocks for epoch in block.epochs] == starts


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=8), st.data())
def test_no_damaged_byte_is_let_pass(sizes: list[int], data: st.DataObject) -> None:
    whole = segment(sizes)
    at = data.draw(st.integers(0, len(whole) - 1))
    starts = [position for position, _ in headers(whole)]
    inside = at - max(start for start in starts if start <= at)
    # Base offset and leader epoch are what the CRC does not cover: a broker may write them anew.
    if inside < 8 or 12 <= inside < 16:
        return
    damaged = bytearray(whole)
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    cuts = data.draw(st.lists(st.integers(1, len(whole)), max_size=5))
    try:
        blocks = fed(bytes(damaged), cuts)
    except CorruptRecord:
        return
    # A length that became larger: the batch never ends, and nothing of it counts.
    assert sum(block.count for block in blocks) < len(starts)


def test_offsets_that_go_back_are_refused() -> None:
    data = segment([10])
    with pytest.raises(CorruptRecord, match="do not follow 8"):
        walk(expected=8).feed(memoryview(data))


def test_log_that_begins_inside_its_first_batch() -> None:
    data = build_batch([b"a"] * 10, base_offset=0)
    going = walk(expected=5, base_offset=0)
    with pytest.raises(CorruptRecord):
        walk(expected=5, base_offset=0).feed(memoryview(data))
    going.straddling()
    assert going.feed(memoryview(data)).next_offset == 10
    with pytest.raises(CorruptRecord):
        going.feed(memoryview(data))
