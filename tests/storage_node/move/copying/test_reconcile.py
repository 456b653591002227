"""Up to where two copies hold the same records, by their leader epochs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.move.copying.reconcile import common_end


@pytest.mark.conformance(43, 44, 45)
@pytest.mark.parametrize(
    ("source", "source_end", "copy", "copy_end", "common"),
    [
        ([(0, 0)], 100, [(0, 0)], 60, 60),  # behind
        ([(0, 0)], 50, [(0, 0)], 60, 50),  # the source was truncated
        ([(0, 0), (1, 40)], 100, [(0, 0)], 60, 40),  # truncated and written anew under another leader
        ([(0, 0), (2, 40)], 100, [(0, 0), (1, 30)], 60, 30),  # the copy has an epoch that never was
        ([(0, 0), (1, 30), (3, 90)], 100, [(0, 0), (1, 30), (2, 50)], 60, 50),
        ([(5, 70)], 100, [(4, 0)], 60, 60),  # the source's beginning was deleted since
        ([], 100, [(0, 0)], 60, 60),  # nothing is known
        ([(0, 0)], 100, [], 0, 0),
        ([(0, 0), (7, 100)], 100, [(0, 0), (7, 100)], 100, 100),  # an epoch without records
    ],
)
def test_common_end(
    source: list[tuple[int, int]], source_end: int, copy: list[tuple[int, int]], copy_end: int, common: int
) -> None:
    assert common_end(tuple(source), source_end, tuple(copy), copy_end) == common


RECORDS = st.lists(st.integers(0, 4), min_size=1, max_size=30)
NEWER = st.lists(st.integers(5, 8), max_size=20)


@given(RECORDS, st.integers(0, 30), NEWER)
def test_never_more_than_is_really_shared(shared: list[int], kept: int, other: list[int]) -> None:
    """Two logs as lists of the epoch of each record: the same beginning, then newer epochs in the source only."""
    copy = sorted(shared)
    source = copy[:kept] + sorted(other)
    end = common_end(history(source), len(source), history(copy), len(copy))
    assert source[:end] == copy[:end]
    shorter = min(len(source), len(copy))
    assert end == shorter or source[end] != copy[end]


def history(log: list[int]) -> tuple[tuple[int, int], ...]:
    return tuple((epoch, log.index(epoch)) for epoch in sorted(set(log)))
