"""Lists of a search attribute fit into the server's limit, and say where names are left out."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from workflows.model.search_attributes import MORE, capped


@given(st.lists(st.text(min_size=1, max_size=249), max_size=60))
def test_list_fits_and_says_where_it_was_cut(values: list[str]) -> None:
    found = capped(values)
    assert len(json.dumps(found).encode()) <= 2_048
    each = list(dict.fromkeys(values))
    assert found == each or found == [*each[: len(found) - 1], MORE]


def test_each_value_is_listed_once_in_order() -> None:
    assert capped(["b", "a", "b"]) == ["b", "a"]
    assert capped(str(number) for number in range(10_000))[-1] == MORE
