"""Placement of new replicas."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.directories.placement import MIN_ALLOWANCE, DirectoryLoad, assign, choose, expected_size

MIB = 1024 * 1024
GIB = 1024 * MIB


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ([DirectoryLoad("/a"), DirectoryLoad("/b")], "/a"),
        ([DirectoryLoad("/a", 10 * GIB, 1), DirectoryLoad("/b", 9 * GIB, 50)], "/b"),
        # Equal bytes: fewer replicas.
        ([DirectoryLoad("/a", GIB, 3), DirectoryLoad("/b", GIB, 2)], "/b"),
        # Empty replicas count as their expected size.
        ([DirectoryLoad("/a", 0, 2, 2), DirectoryLoad("/b", 100 * MIB, 1)], "/b"),
        # A full disk only as the last choice.
        ([DirectoryLoad("/a", 0, 0, 0, usable=MIB), DirectoryLoad("/b", GIB, 20, 0, usable=GIB)], "/b"),
        ([DirectoryLoad("/a", 0, 0, 0, usable=0)], "/a"),
    ],
)
def test_next_replica(loads: list[DirectoryLoad], expected: str) -> None:
    assert choose(loads) == expected


def test_without_directories_there_is_no_choice() -> None:
    with pytest.raises(ValueError):
        choose([])


def test_five_hundred_empty_replicas_spread() -> None:
    chosen = Counter(assign([DirectoryLoad("/a"), DirectoryLoad("/b"), DirectoryLoad("/c")], 500))
    assert sorted(chosen.values()) == [166, 167, 167]


def test_five_hundred_empty_replicas_do_not_all_go_to_the_emptier_disk() -> None:
    chosen = Counter(assign([DirectoryLoad("/a", 10 * GIB, 10), DirectoryLoad("/b", 5 * GIB, 5)], 500))
    assert chosen["/a"] >= 240 and chosen["/b"] >= 240


def test_empty_replica_counts_as_the_mean_one() -> None:
    assert expected_size([DirectoryLoad("/a")]) == MIN_ALLOWANCE
    assert expected_size([DirectoryLoad("/a", 3 * GIB, 4, 1), DirectoryLoad("/b", 3 * GIB, 1)]) == 6 * GIB // 4


loads = st.lists(
    st.builds(
        lambda data, full, empty: (data if full else 0, full + empty, empty),
        st.integers(0, 100 * GIB),
        st.integers(0, 100),
        st.integers(0, 100),
    ),
    min_size=1,
    max_size=6,
).map(lambda rows: [DirectoryLoad(f"/d{i}", *row) for i, row in enumerate(rows)])


@given(loads, st.integers(1, 60))
def test_new_replicas_never_widen_the_gap(before: list[DirectoryLoad], count: int) -> None:
    each = expected_size(before)
    start = {load.path: load.bytes + each * load.empty for load in before}
    chosen = Counter(assign(before, count))
    after = {path: weight + each * chosen[path] for path, weight in start.items()}
    assert chosen.total() == count
    for path in chosen:
        # Before its last replica, a chosen directory was not above any other.
        assert after[path] - each <= min(after.values())


@pytest.mark.conformance(78)
@given(st.integers(1, 8), st.integers(0, 200))
def test_equal_directories_differ_by_at_most_one(directories: int, count: int) -> None:
    chosen = Counter(assign([DirectoryLoad(f"/d{i}", GIB, 1) for i in range(directories)], count))
    got = [chosen[f"/d{i}"] for i in range(directories)]
    assert max(got) - min(got) <= 1
