"""Packed values: what comes back, and what is refused."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.model import packing
from storage_node.model.packing import FAST, SMALL, pack, unpack

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(value=VALUES, level=st.sampled_from([FAST, SMALL]))
def test_what_was_packed_is_unpacked(value: Any, level: int) -> None:
    assert unpack(pack(value, level)) == value


@pytest.mark.parametrize("text", ["", "%%%", "aGVsbG8=", pack([1])[:-8], pack([1]) + "\ud800", "[1]"])
def test_anything_else_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="not a packed value"):
        unpack(text)


def test_what_is_too_large_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_BYTES", 1_000)
    assert unpack(pack("x" * 998)) == "x" * 998
    with pytest.raises(ValueError, match="larger than"):
        unpack(pack("x" * 1_000))


def test_text_that_is_no_json_and_json_that_is_too_deep_are_value_errors() -> None:
    for text in (b"{", b"[" * 100_000):
        with pytest.raises(ValueError, match="not a packed value"):
            unpack(base64.b64encode(zlib.compress(text)).decode())
