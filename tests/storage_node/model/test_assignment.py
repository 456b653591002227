"""KIP-455's set algebra: its own examples, and what holds for any sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.model.assignment import Assignment

nodes = st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True).map(tuple)


@pytest.mark.conformance(144, 145, 146, 147, 148)
def test_worked_example_of_the_proposal() -> None:
    going = Assignment((1, 2, 3)).reassign((4, 3, 2))
    assert going.replicas == (4, 3, 2, 1), "the target in its order, then who leaves"
    assert (going.adding, going.removing, going.original) == ((4,), (1,), (1, 2, 3))
    assert going.reassigning and set(going.original) == set(going.replicas) - set(going.adding)
    assert going.complete({1, 2, 3}) is None, "nobody is removed before all have been added"
    assert going.complete({1, 2, 3, 4}) == Assignment((4, 3, 2))


@pytest.mark.conformance(149)
def test_cancel_restores_the_set_from_before() -> None:
    before = Assignment((1, 2, 3))
    for target in ((3, 4, 5), (4, 5, 6), (2, 1), (1, 2, 3, 4)):
        assert before.reassign(target).cancel() == before
    settled = Assignment((1, 2))
    assert settled.cancel() is settled


def test_second_target_starts_again_from_the_original_set() -> None:
    first = Assignment((0, 1)).reassign((2, 3))
    second = first.reassign((2, 4))
    assert second.adding == (2, 4) and second.original == (0, 1)
    assert first.dropped_by(second) == (3,), "what only the old target wanted is stopped"
    assert second.cancel() == Assignment((0, 1))


@pytest.mark.conformance(143)
def test_mere_reorder_is_complete_at_once() -> None:
    assert Assignment((1, 2, 3)).reassign((3, 1, 2)) == Assignment((3, 1, 2))


@pytest.mark.parametrize(
    ("replicas", "adding", "removing", "original"),
    [
        ((1, 1), (), (), ()),
        ((1,), (2,), (), (1,)),
        ((1, 2), (2,), (2,), (1,)),
        ((1, 2), (2,), (), ()),
    ],
)
def test_what_cannot_be_is_no_assignment(
    replicas: tuple[int, ...], adding: tuple[int, ...], removing: tuple[int, ...], original: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError):
        Assignment(replicas, adding, removing, original)


@pytest.mark.parametrize("target", [(), (1, 1), (-1,)])
def test_what_is_no_target(target: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        Assignment((1,)).reassign(target)


@pytest.mark.conformance(145, 146, 147)
@given(start=nodes, targets=st.lists(nodes, min_size=1, max_size=4), isr=st.sets(st.integers(0, 6)))
def test_however_often_the_target_changes(
    start: tuple[int, ...], targets: list[tuple[int, ...]], isr: set[int]
) -> None:
    it, before = Assignment(start), start
    for target in targets:
        before = before if it.reassigning else it.replicas  # another order of the same set is done at once
        it = it.reassign(target)
    last = targets[-1]
    assert it.target == last
    assert set(it.replicas) <= set(before) | set(last)
    if it.reassigning:
        assert it.cancel() == Assignment(before)
        done = it.complete(isr)
        assert (done is not None) == (set(last) <= isr)
        assert done is None or done == Assignment(last)
