"""The address of Temporal's UI: what is accepted, and what is not."""

from __future__ import annotations

import pytest

from ops.dashboards.links import temporal_ui


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("http://localhost:8233", "http://localhost:8233"),
        ("https://temporal.example/ui/", "https://temporal.example/ui"),
        ("http://[::1]:8233/", "http://[::1]:8233"),
    ],
)
def test_address_of_a_ui_has_no_slash_at_its_end(given: str, address: str) -> None:
    assert temporal_ui(given) == address


@pytest.mark.parametrize(
    "given",
    [
        *("", "localhost:8233", "javascript:alert(1)", "file:///etc/passwd", "http://", "http://:8233", "http://[::1"),
        *("http://ui/?a=b", "http://ui/#x", "http://u i", "http://ui/\n"),
    ],
)
def test_what_is_not_an_address_is_rejected(given: str) -> None:
    with pytest.raises(ValueError, match="is not the URL of Temporal's UI"):
        temporal_ui(given)
