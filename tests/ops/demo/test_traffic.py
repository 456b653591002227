"""The values of the demo's records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ops.demo.traffic import payload, value_of


@given(st.from_regex(r"(load|live)-[0-9]{1,3}-[0-9]{1,9}", fullmatch=True), st.integers(min_value=30, max_value=5000))
def test_value_of_a_record_with_the_requested_size(value: str, size: int) -> None:
    raw = payload(value, size)
    assert value_of(raw) == value
    assert len(raw) == size


def test_record_without_a_value() -> None:
    assert value_of(None) == ""
