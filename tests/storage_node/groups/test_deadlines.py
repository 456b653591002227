"""Deadlines of members: set, extended and cleared in any order, the earliest is known, and each is due once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage_node.groups.deadlines import Deadlines

IDS = st.sampled_from("abcdef")
TIMES = st.integers(0, 50).map(float)
STEPS = st.one_of(
    st.tuples(st.just("set"), IDS, TIMES),
    st.tuples(st.just("clear"), IDS, TIMES),
    st.tuples(st.just("due"), IDS, TIMES),
)


@given(st.lists(STEPS, max_size=200))
def test_deadlines_are_those_of_a_plain_dict(steps: list[tuple[str, str, float]]) -> None:
    deadlines, expected = Deadlines(), dict[str, float]()
    for step, id_, when in steps:
        if step == "set":
            deadlines.set(id_, when)
            expected[id_] = when
        elif step == "clear":
            deadlines.clear(id_)
            expected.pop(id_, None)
        else:
            due = {one for one, at in expected.items() if at <= when}
            found = deadlines.take_due(when)
            assert set(found) == due and len(found) == len(due)
            times = [expected.pop(one) for one in found]
            assert times == sorted(times), "the earliest first"
        assert deadlines.earliest() == min(expected.values(), default=None)
        assert len(deadlines) == len(expected)


def test_deadlines_put_off_and_brought_forward_leave_a_bounded_heap() -> None:
    deadlines = Deadlines()
    for turn in range(10_000):
        deadlines.set("a", 20_000.0 - turn)
        deadlines.set("b", 1e6 + turn)
    assert len(deadlines._heap) < 200
    assert deadlines.take_due(2e6) == ["a", "b"]
