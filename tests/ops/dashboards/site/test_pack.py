"""Packed tables: what a page reads is what was packed, in a script that no text can leave."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.dashboards.site.pack import Packed, pack, script, significant, unpack
from ops.dashboards.site.tables import long_id, short_id

NASTY = '</script><script>alert(1)</script>");\n\u2028'


def read(packed: dict[str, Any]) -> list[Any]:
    """A column as `lib.js` reads it."""
    if "of" in packed:
        return [None if at < 0 else packed["of"][at] for at in packed["at"]]
    if "plus" not in packed:
        return list(packed["is"])
    total, found = 0, []
    for plus in packed["plus"]:
        total += plus
        found.append(total)
    return found


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.text(max_size=20)),
            st.integers(-(10**15), 10**15),
            st.one_of(st.none(), st.floats(-1e6, 1e6)),
        ),
        max_size=30,
    )
)
def test_what_was_packed_is_read(rows: list[tuple[str | None, int, float | None]]) -> None:
    text = script("t", pack(("text", "whole", "real"), rows).as_json())
    found = unpack(text)
    assert found["rows"] == len(rows)
    columns = {name: read(column) for name, column in found["columns"].items()}
    assert columns["text"] == [row[0] for row in rows]
    assert columns["whole"] == [row[1] for row in rows]
    for was, value in zip(columns["real"], [row[2] for row in rows], strict=True):
        assert (was is None) == (value is None)
        assert was is None or was == pytest.approx(value, abs=0.001 * max(1, len(rows)))


def test_sorted_numbers_are_differences_and_texts_are_named_once() -> None:
    packed = pack(("at", "name"), [(1_700_000_000.5, "a"), (1_700_000_003, "b"), (1_700_000_003, "a")])
    assert packed.columns["at"] == {"plus": [1_700_000_000.5, 2.5, 0]}
    assert packed.columns["name"] == {"of": ["a", "b"], "at": [0, 1, 0]}
    assert pack(("a",), [(3,), (None,), (1,)]).columns["a"] == {"is": [3, None, 1]}
    assert pack(("a", "b"), []) == Packed(0, {"a": {"is": []}, "b": {"is": []}})


def test_text_cannot_leave_the_script() -> None:
    text = script("t", pack(("text",), [(NASTY,)]).as_json())
    assert set(text) <= set(string.ascii_letters + string.digits + '+/=.(",);\n')
    assert read(unpack(text)["columns"]["text"]) == [NASTY]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (0, 0),
        (123_456_789, 123_460_000),
        (0.0421234, 0.042),
        (12.34567, 12.346),
        (99_999, 99_999),
        (7, 7),
    ],
)
def test_figures_keep_five_digits(value: float | None, expected: float | None) -> None:
    assert significant(value) == expected


@given(
    st.text("a-1/.%#=é", max_size=12), st.text("ab-._1", min_size=1, max_size=6), st.integers(0, 99), st.integers(0, 12)
)
def test_short_ids_can_be_read_again(text: str, topic: str, partition: int, node: int) -> None:
    for workflow_id in (text, f"{text}/move/{node}/{topic}-{partition}/3", f"{text}/{topic}-{partition}+4/{node}/1"):
        short = short_id(workflow_id, topic, partition, node)
        assert long_id(short, topic, partition, node) == workflow_id


def test_ids_of_many_moves_become_one_text() -> None:
    shorts = {short_id(f"prod/move/{n % 9}/t-{n}/1", "t", n, n % 9) for n in range(500)}
    assert shorts == {"prod/move/#/%/1"}
